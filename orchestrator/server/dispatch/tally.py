"""Counts of results and tokens in a batch's result files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter

from msgspec import Struct

from orchestrator.core.answers import NO_TOKENS, TokenCounts, answer_tokens
from orchestrator.core.batch_api import JSON_ERRORS, ResultLine


class Note(Struct, frozen=True, gc=False):
    """Facts about a row that the tally needs, kept until the row's line is written."""

    succeeded: bool
    tokens: TokenCounts
    seconds: float


def note_of(row: ResultLine, *, succeeded: bool) -> Note:
    """Return the note for a line of a result file. A damaged answer counts as zero tokens."""
    tokens = NO_TOKENS
    if succeeded and row.response is not None:
        with suppress(*JSON_ERRORS):
            tokens = answer_tokens(row.response.body)
    return Note(succeeded, tokens, row.orch.upstream_seconds if row.orch else 0.0)


class Tally:
    """Counts of a batch's results. A row counts once its line is durable."""

    def __init__(self) -> None:
        self.completed = 0
        self.failed = 0
        self.upstream_seconds = 0.0
        self._tokens = [0, 0, 0, 0]

    @property
    def rows(self) -> int:
        return self.completed + self.failed

    @property
    def tokens(self) -> TokenCounts:
        """Tokens of the successful rows."""
        return TokenCounts(*self._tokens)

    def add(self, notes: Sequence[Note]) -> None:
        tokens = [note.tokens for note in notes if note.succeeded]
        self.upstream_seconds += sum([note.seconds for note in notes])
        self.completed += len(tokens)
        self.failed += len(notes) - len(tokens)
        for place in range(len(self._tokens)):
            self._tokens[place] += sum(map(itemgetter(place), tokens))
