"""Answers under another row's key, and other answers of the same batch that cannot be proven.

An answer belongs to another row if it repeats that row's code. It also does if its quotes occur in that row's
document but not in its own row's. Once a batch has such an answer, orch accepts only answers with their own code or a
proving quote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core import batch_api
from orchestrator.core.counts import number_of
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.model import Outcome, RequestState
from orchestrator.core.row_codes import code_of
from orchestrator.pipeline.collect.sent_documents import SentDocuments
from orchestrator.pipeline.collect.unanswered import EndedShard
from orchestrator.policy.answer_text import Answer, answer_of, response_json
from orchestrator.policy.coded_lines import code_in
from orchestrator.policy.grounding import NOT_FOUND, QuoteStatus, is_too_short, read_quotes
from orchestrator.policy.quote_search import find_quotes
from orchestrator.policy.row_errors import SWAPPED, UNPROVEN
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import InShard

MOST_SUSPECTS = 200
"""Maximum number of answers whose quotes orch searches for in the other documents of their batch."""
LEAST_QUOTED = 40
"""Minimum characters of a quote that identifies a document. Several documents may share a shorter quote."""
_MOST_NAMED = 3
_decode_result = json_decoder(batch_api.ResultLine).decode
Ended = tuple[InShard, Outcome]


class Swaps(Struct, frozen=True):
    """The outcomes of a shard. `owners` maps each row that got another row's answer to that row's id."""

    outcomes: Sequence[Ended]
    owners: Mapping[str, str]
    unproven: int = 0

    def words(self, ended: EndedShard, *, late: bool = False) -> str:
        """Return a message that names the provider, batch and rows. With `late`, the rows have been asked
        elsewhere.
        """
        named = [f"{name} has the answer of {owner}" for name, owner in list(self.owners.items())[:_MOST_NAMED]]
        more = ", …" if len(self.owners) > _MOST_NAMED else ""
        others = f"; {number_of(self.unproven, 'other answer')} of it cannot be proved" if self.unproven else ""
        told = f"{ended.shard.backend} gave {number_of(len(self.owners), 'answer')} of batch {ended.shard.batch_id}"
        where = "these answers came late, and are not taken" if late else "these rows are in quarantine"
        return f"{told} to the wrong rows ({', '.join(named)}{more}){others}: {where}"


def may_show(ended: EndedShard, tasks: set[str]) -> bool:
    """True if answers of these tasks can show that keys were swapped."""
    checks = [ended.checks[task] for task in tasks if task in ended.checks]
    return any(check.has_codes or (check.has_quotes and not ended.handle.is_own) for check in checks)


def judged(
    store: Store,
    home: Home,
    ended: EndedShard,
    rows: Mapping[str, InShard],
    outcomes: Sequence[Ended],
    *,
    is_distrusted: bool = False,
) -> Swaps:
    """Return the outcomes of a shard, with swapped and unproven answers marked as failed.

    With `is_distrusted`, the batch is known to have answers under wrong keys.
    """
    owners = _owners_by_codes(store, home, ended, outcomes)
    if not ended.handle.is_own:
        owners = {**_owners_by_quotes(store, home, ended, rows, outcomes), **owners}
    if not owners and not is_distrusted:
        return Swaps(outcomes, owners)
    found, unproven = [], 0
    for row, outcome in outcomes:
        if (owner := owners.get(row.custom_id)) is not None:
            why = f"the answer under this row's key is that of row {owner}: the backend has swapped keys"
            found.append((row, _failed(outcome, SWAPPED, why)))
        elif outcome.state is RequestState.SUCCEEDED and not _is_proven(ended, row, outcome):
            unproven += 1
            why = "its batch has answers under the wrong keys, and nothing proves that this one is not"
            found.append((row, _failed(outcome, UNPROVEN, why)))
        else:
            found.append((row, outcome))
    return Swaps(found, owners, unproven)


def _failed(outcome: Outcome, code: str, why: str) -> Outcome:
    return replace(
        outcome,
        state=RequestState.FAILED,
        error_code=code,
        error_message=why,
        quotes=None,
        unverifiable=False,
        repaired=False,
        cut=False,
        odd_end=False,
    )


def _is_proven(ended: EndedShard, row: InShard, outcome: Outcome) -> bool:
    check = ended.checks.get(row.task)
    if check is not None and check.has_codes:
        return True
    quotes = () if outcome.quotes is None else read_quotes(outcome.quotes)
    return any(quote.status is QuoteStatus.FOUND for quote in quotes)


def _owners_by_codes(store: Store, home: Home, ended: EndedShard, outcomes: Sequence[Ended]) -> dict[str, str]:
    coded = {task for task, check in ended.checks.items() if check.has_codes}
    if not coded:
        return {}
    name = ended.job.name
    given: dict[str, list[str]] = {}
    suspects = ((row, one) for row, one in outcomes if _may_be_swapped(row, one, coded))
    for row, answer in _answers(home, ended, suspects):
        code = code_in(answer)
        if code is not None and code != code_of(name, row.custom_id):
            given.setdefault(code, []).append(row.custom_id)
    if not given:
        return {}
    owned = ((custom_id, given.get(code_of(name, custom_id), ())) for custom_id in store.rows.all_ids(ended.job.id))
    return {row: owner for owner, named in owned for row in named}


def _may_be_swapped(row: InShard, outcome: Outcome, coded: set[str]) -> bool:
    """True if an answer may be another row's: it failed its check, or its task has no row codes."""
    return outcome.is_answer and (outcome.state is RequestState.FAILED or row.task not in coded)


def _owners_by_quotes(
    store: Store, home: Home, ended: EndedShard, rows: Mapping[str, InShard], outcomes: Sequence[Ended]
) -> dict[str, str]:
    """Return the rows whose quotes all occur in one other document of the shard.

    Each is mapped to the id of a row of that document. A quote that occurs in several documents identifies none.
    """
    suspects = [(row, one) for row, one in outcomes if one.error_code == NOT_FOUND][:MOST_SUSPECTS]
    wanted = {row.custom_id: texts for row, texts in _quoted(home, ended, suspects)}
    if not wanted:
        return {}
    every = {text for texts in wanted.values() for text in texts}
    sent = SentDocuments(store, home, ended.job.id)
    owners: dict[str, dict[int, str]] = {}
    for row in rows.values():
        document = sent.of(row)
        if document is None:
            continue
        places = [find_quotes(one.text, every, by_ocr=document.by_ocr).places for one in document.texts]
        found = {text for place in places for text, at in place.items() if at}
        for name, texts in wanted.items():
            if name != row.custom_id and texts <= found:
                owners.setdefault(name, {}).setdefault(hash(document.texts), row.custom_id)
    return {name: next(iter(found.values())) for name, found in owners.items() if len(found) == 1}


def _quoted(home: Home, ended: EndedShard, suspects: Sequence[Ended]) -> Iterator[tuple[InShard, set[str]]]:
    statuses = {row.custom_id: read_quotes(one.quotes or "[]") for row, one in suspects}
    for row, answer in _answers(home, ended, suspects):
        if any(quote.status is QuoteStatus.FOUND for quote in statuses[row.custom_id]):
            continue
        texts = {quote.text for quote in ended.checks[row.task].quotes(answer) if not is_too_short(quote.text)}
        if texts and max(map(len, texts)) >= LEAST_QUOTED:
            yield row, texts


def _answers(home: Home, ended: EndedShard, outcomes: Iterable[Ended]) -> Iterator[tuple[InShard, Answer]]:
    files: dict[str, BinaryIO] = {}
    try:
        for row, outcome in outcomes:
            if outcome.span is None or outcome.kind is None:
                continue
            if outcome.kind not in files:
                files[outcome.kind] = home.results(ended.shard.id, outcome.kind).open("rb")
            file = files[outcome.kind]
            file.seek(outcome.span.offset)
            response = _decode_result(file.read(outcome.span.length)).response
            if response is not None:
                yield row, answer_of(response_json(response))
    finally:
        for file in files.values():
            file.close()
