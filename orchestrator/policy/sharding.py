"""Rows → shards: as many rows as one batch may hold, in their order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct

EMBEDDINGS = "/v1/embeddings"


class WaitingRow(msgspec.Struct, frozen=True):
    """A row that waits for a shard; `length` is its line in bytes, without newline.

    `tokens` estimates its prompt, `inputs` counts the texts of an embedding row. `max_output` is the most tokens of
    its answer, None without a bound. `attempts` counts the batches that it was part of.
    """

    seq: int
    endpoint: str
    model: str
    length: int
    tokens: int = 0
    inputs: int = 1
    max_output: int | None = None
    attempts: int = 0


class Range(Struct, frozen=True):
    """The waiting rows of one endpoint and model with `first <= seq <= last`.

    `bytes`, `tokens`, `inputs` and `max_output` are sums, the last None if a row has no bound; `attempts` is the most
    of any of its rows.
    """

    endpoint: str
    model: str
    first: int
    last: int
    rows: int
    bytes: int
    tokens: int = 0
    inputs: int = 0
    max_output: int | None = 0
    attempts: int = 0


class _Open(Struct):
    """A range that still takes rows."""

    endpoint: str
    model: str
    first: int
    last: int = 0
    rows: int = 0
    bytes: int = 0
    tokens: int = 0
    inputs: int = 0
    max_output: int | None = 0
    attempts: int = 0

    def add(self, row: WaitingRow, size: int) -> None:
        self.last = row.seq
        self.rows += 1
        self.bytes += size
        self.tokens += row.tokens
        self.inputs += row.inputs
        self.max_output = self.most_with(row)
        self.attempts = max(self.attempts, row.attempts)

    def most_with(self, row: WaitingRow) -> int | None:
        """Return the most tokens of all answers if that row were added."""
        return None if self.max_output is None or row.max_output is None else self.max_output + row.max_output

    def closed(self) -> Range:
        return Range(
            self.endpoint, self.model, self.first, self.last, self.rows, self.bytes,
            self.tokens, self.inputs, self.max_output, self.attempts,
        )  # fmt: skip


def pack(
    rows: Iterable[WaitingRow],
    *,
    max_rows: int,
    max_bytes: int,
    max_tokens: int | None = None,
    max_inputs: int | None = None,
    slack: int = 0,
    fits: Callable[[int, int | None], bool] | None = None,
) -> Iterator[Range]:
    """Cut rows, which must be sorted by (endpoint, model, seq), into ranges within the limits.

    `slack` is how many bytes a line may grow when the model's name is put in. `max_inputs` holds for embeddings only.
    `fits` says whether a budget covers the tokens of prompts, and the most of their answers. A row that breaks a
    limit by itself gets its own range: then the backend's refusal concerns only that row.
    """
    open_: _Open | None = None
    for row in rows:
        size = row.length + 1 + slack
        if open_ is not None and (
            row.endpoint != open_.endpoint
            or row.model != open_.model
            or open_.rows >= max_rows
            or open_.bytes + size > max_bytes
            or (max_tokens is not None and open_.tokens + row.tokens > max_tokens)
            or (max_inputs is not None and row.endpoint == EMBEDDINGS and open_.inputs + row.inputs > max_inputs)
            or (fits is not None and not fits(open_.tokens + row.tokens, open_.most_with(row)))
        ):
            yield open_.closed()
            open_ = None
        if open_ is None:
            open_ = _Open(row.endpoint, row.model, row.seq)
        open_.add(row, size)
    if open_ is not None:
        yield open_.closed()
