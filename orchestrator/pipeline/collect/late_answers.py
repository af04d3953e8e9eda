"""Late answers: from a batch that was considered gone, or from files that came too late.

Their rows were released and perhaps asked again. A row that still waits takes its late answer. A row that has an
outcome keeps it; its late answer is only booked, because it was billed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.backends import RemoteBatch
from orchestrator.backends.profiles import Profile
from orchestrator.core.atomic import durable
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.counts import number_of
from orchestrator.core.errors import AccountError, BackendRefused
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job, Outcome, RequestState
from orchestrator.core.shards import Shard, ShardState
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.collect import swapped_answers
from orchestrator.pipeline.collect.fetch import download
from orchestrator.pipeline.collect.sent_documents import SentDocuments
from orchestrator.pipeline.collect.settling import abandon, settled
from orchestrator.pipeline.collect.swapped_answers import Ended
from orchestrator.pipeline.collect.unanswered import EndedShard
from orchestrator.pipeline.lost_answers import GONE, KINDS
from orchestrator.policy import results
from orchestrator.policy.answer_check import AnswerCheck
from orchestrator.policy.batch_evidence import ANSWERS_KEPT
from orchestrator.policy.overdue import OVERRUN
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import InShard

LATE = "late"
"""Kind of the file with a shard's late answers."""
CHUNK = 1000
LONGEST_PAUSE = timedelta(hours=1)


class Late(Struct, frozen=True):
    """Numbers of late answers: `taken` by rows that still waited, `booked` for other rows.

    `swapped` describes answers that belong to other rows, or is None.
    """

    taken: int = 0
    booked: int = 0
    swapped: str | None = None

    def __str__(self) -> str:
        parts = [f"{number_of(self.taken, 'answer')} arrived after all"] if self.taken else []
        if self.booked:
            parts.append(f"{self.booked:,} came too late for their rows, and are booked")
        return ", ".join(parts) or "its files arrived after all, with nothing new"


def is_waited_for(shard: Shard, profile: Profile, now: datetime) -> bool:
    """True if orch still looks for late answers of an ended shard."""
    return shard.owed > 0 and now < until(shard, profile)


def until(shard: Shard, profile: Profile | None) -> datetime:
    """Return when orch stops waiting for an ended shard's late answers. `profile` is None if its backend is gone."""
    kept = (shard.collected_at or shard.created_at) + ANSWERS_KEPT
    if profile is None or profile.cancels:
        return kept
    # A batch that cannot be cancelled continues, and has its answers when it ends.
    window = timedelta(seconds=shard.window_seconds)
    return max(kept, (shard.submitted_at or shard.created_at) + window + OVERRUN)


def look(store: Store, home: Home, shard: Shard, handle: BackendHandle, now: datetime) -> Path | None:
    """Look for a shard's late answers. Return their file, or None while they are incomplete. Raises BackendError.

    A batch that still runs is cancelled, because its rows are asked elsewhere. Files that the batch names are
    recorded so that they are deleted later. The last look accepts any answers that it finds.
    """
    path = home.results(shard.id, LATE)
    if path.exists():
        return path
    assert shard.batch_id is not None, "a batch that was never known owes nothing"
    batch = handle.api.retrieve(shard.batch_id)
    if batch is None:
        return None
    if not batch.status.is_final:
        with suppress(BackendRefused):
            handle.api.cancel(batch.id)
        return None
    named = {"output_file_id": batch.output_file_id, "error_file_id": batch.error_file_id}
    if found := {name: file_id for name, file_id in named.items() if file_id is not None}:
        store.shards.note(shard, **found)
    is_last = now >= until(shard, handle.profile) - LONGEST_PAUSE
    return _brought(store, home, shard, handle, batch, path, is_last=is_last)


def _brought(
    store: Store, home: Home, shard: Shard, handle: BackendHandle, batch: RemoteBatch, path: Path, *, is_last: bool
) -> Path | None:
    parts: list[Path] = []
    try:
        for kind, file_id in (("output", batch.output_file_id), ("error", batch.error_file_id)):
            if file_id is None:
                continue
            part = path.with_name(f"{path.name}.{kind}")
            try:
                if download(home, shard, handle, file_id, part).cut is not None:
                    return None
            except AccountError:
                raise
            except BackendRefused as refusal:
                if refusal.status not in GONE:
                    raise
                return None
            parts.append(part)
        if not parts or (not is_last and _lacks_some(store, home, shard, batch, parts)):
            return None
        with durable(path) as file:
            for part in parts:
                with part.open("rb") as came:
                    shutil.copyfileobj(came, file)
        return path
    finally:
        clear(home, shard)


def clear(home: Home, shard: Shard) -> None:
    """Delete the files that `look` downloaded, including incomplete and hidden files that a killed process left."""
    path = home.results(shard.id, LATE)
    for kind in KINDS:
        path.with_name(f"{path.name}.{kind}").unlink(missing_ok=True)
        path.with_name(f".{path.name}.{kind}.partial").unlink(missing_ok=True)


def _lacks_some(store: Store, home: Home, shard: Shard, batch: RemoteBatch, parts: Sequence[Path]) -> bool:
    named = {name for part in parts for name in results.custom_ids(part)}
    names = store.rows.named(shard, named, anywhere=True)
    before = results.survey([home.results(shard.id, kind) for kind in KINDS], names).executed
    owed = shard.owed
    if batch.status is not BatchStatus.COMPLETED:
        owed = min(owed, batch.completed + batch.failed - len(before))
    return len(results.survey(parts, names).executed - before) < owed


def take(
    store: Store,
    home: Home,
    job: Job,
    shard: Shard,
    handle: BackendHandle,
    model: str,
    checks: Mapping[str, AnswerCheck],
    now: datetime,
) -> Late:
    """Give late answers to rows that have none yet, and book all late answers. A repeated call changes nothing."""
    handle = replace(handle, price=handle.price.at(now))
    for other in store.shards.of_job(job.id):
        if other.state is ShardState.PENDING:
            # Some of its rows may have answers now, so its other rows are planned anew.
            abandon(home, other)
            store.shards.dissolve(other, f"answers of {shard.id} arrived after all")
    ended = EndedShard(job, shard, handle, model, checks, problems=(), elsewhere=False, now=now)
    chunks: Iterator[Sequence[Ended]] = _chunks(store, home, ended)
    swapped = None
    if swapped_answers.may_show(ended, {*checks}):
        chunks, swapped = _proven(store, home, ended, [one for chunk in chunks for one in chunk])
    taken = booked = 0
    for chunk in chunks:
        answers = [settled(handle, model, row, outcome) for row, outcome in chunk]
        # An answer that fails its check is only booked: its row has already been asked again elsewhere.
        good = [one for one in answers if one.outcome.state is RequestState.SUCCEEDED]
        taken += store.rows.settle(shard.id, job.id, shard.backend, good, now, model, anywhere=True)
        bad = {one.outcome.seq: one.price for one in answers if one not in good and one.price is not None}
        store.ledger.book(shard, "late", bad, now)
        store.ledger.settle_uncertain(shard, [one.outcome.seq for one in answers])
        booked += sum(one.price is not None and one.price.cost > 0 for one in answers)
    return Late(taken, max(0, booked - taken), swapped)


def _chunks(store: Store, home: Home, ended: EndedShard) -> Iterator[list[Ended]]:
    """Yield late answers with their rows. Rows that the earlier files answered are left out."""
    shard, told = ended.shard, set[str]()
    before = [home.results(shard.id, kind) for kind in KINDS]
    found_lines, sent = results.read(home.results(shard.id, LATE)), SentDocuments(store, home, ended.job.id)
    while some := list(islice(found_lines, CHUNK)):
        names = {
            found.line.custom_id for found in some if found.line is not None and found.line.custom_id is not None
        }
        names -= results.survey(before, names).executed | told
        rows = store.rows.named(shard, names, anywhere=True)
        yield [*_answers(some, rows, ended.checks, sent)]
        told |= rows.keys()


def _answers(
    some: Iterable[results.FoundLine],
    rows: Mapping[str, InShard],
    checks: Mapping[str, AnswerCheck],
    sent: SentDocuments,
) -> Iterator[Ended]:
    told: set[str] = set()
    for found in some:
        row = rows.get((found.line.custom_id if found.line is not None else None) or "")
        if row is None or row.custom_id in told:
            continue
        told.add(row.custom_id)
        said = results.outcome(row.seq, LATE, found, checks.get(row.task), sent=partial(sent.of, row))
        if isinstance(said, Outcome):
            yield row, said


def _proven(
    store: Store, home: Home, ended: EndedShard, outcomes: Sequence[Ended]
) -> tuple[Iterator[Sequence[Ended]], str | None]:
    events = store.jobs.events(ended.job.id)
    is_distrusted = any(one.kind == EventKind.SWAPPED and one.shard_id == ended.shard.id for one in events)
    rows = {row.custom_id: row for row, _ in outcomes}
    swaps = swapped_answers.judged(store, home, ended, rows, outcomes, is_distrusted=is_distrusted)
    chunks = (swaps.outcomes[at : at + CHUNK] for at in range(0, len(swaps.outcomes), CHUNK))
    return chunks, swaps.words(ended, late=True) if swaps.owners else None


def next_look(times: int) -> timedelta:
    return min(LONGEST_PAUSE, timedelta(minutes=5 * 2 ** min(times, 5)))
