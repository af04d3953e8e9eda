"""Stage 5: an ended batch's files become outcomes, by this one path whether it completed, failed, expired or
was cancelled.

Each row of the shard is ticked off once. What the files do not say of a row is decided here, with its reason: it goes
on in a new shard, or it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from orchestrator import results
from orchestrator.backends import BATCH_GONE, Backend, LineProblem
from orchestrator.errors import StorageError
from orchestrator.home import Home
from orchestrator.model import Job, Outcome, Price, RequestState, Shard, ShardState
from orchestrator.results import NotExecuted, OutputCheck
from orchestrator.store import Store
from orchestrator.store.rows import InShard
from orchestrator.wire import BatchStatus

CHUNK = 1000
MAX_ATTEMPTS = 3


@dataclass(slots=True)
class Tally:
    """What a shard's files held, for the event log."""

    settled: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    unknown: int = 0
    broken: int = 0
    released: int = 0

    def __str__(self) -> str:
        parts = [f"{number:,} {state}" for state, number in sorted(self.settled.items())]
        for name in ("released", "duplicates", "unknown", "broken"):
            if number := getattr(self, name):
                parts.append(f"{number:,} {_NAMES[name]}")
        return ", ".join(parts) or "no rows"


_NAMES = {
    "released": "go on in another batch",
    "duplicates": "lines for rows that had one already",
    "unknown": "lines of unknown custom_ids",
    "broken": "lines that are no result",
}


def collect(
    store: Store,
    home: Home,
    job: Job,
    shard: Shard,
    backend: Backend,
    checks: Mapping[str, OutputCheck],
    price: Callable[[float], Price],
    problems: tuple[LineProblem, ...],
    now: datetime,
) -> Tally:
    """Download, settle, decide on the rest, and close the shard. Doing it again after a crash changes nothing."""
    for kind, file_id in (("output", shard.output_file_id), ("error", shard.error_file_id)):
        path = home.results(shard.id, kind)
        if file_id is not None and not path.exists():
            _download(backend, file_id, home, shard, kind)
    rows = {row.custom_id: row for row in store.rows.of_shard(shard.id)}
    tally = Tally()
    pending: list[tuple[Outcome, Price | None]] = []

    def settle() -> None:
        store.rows.settle(shard.id, job.id, shard.backend, pending, now)
        pending.clear()

    taken_back: dict[int, float] = {}
    for outcome in _outcomes(home, job, shard, rows, checks, problems, tally, taken_back, now):
        # Every row that reached the backend is booked, also one that failed there and one that cost nothing.
        pending.append((outcome, price(outcome.upstream_seconds) if outcome.span is not None else None))
        tally.settled[outcome.state] += 1
        if len(pending) >= CHUNK:
            settle()
    settle()
    store.ledger.book_taken_back(shard, {seq: price(seconds) for seq, seconds in taken_back.items()}, now)
    counted = shard.provider_status != BatchStatus.EXPIRED
    tally.released = store.rows.release(shard.id, count_attempt=counted)
    # Before the last move: a kill in between does this again, where one after it would leave the files for ever.
    home.shard_input(shard.id).unlink(missing_ok=True)
    for file_id in (shard.input_file_id, shard.output_file_id, shard.error_file_id):
        if file_id is not None:
            backend.forget_file(file_id)
    store.shards.move(shard, ShardState.COLLECTED, collected_at=now)
    return tally


def _download(backend: Backend, file_id: str, home: Home, shard: Shard, kind: str) -> None:
    path = home.results(shard.id, kind)
    try:
        backend.download(file_id, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", hint="make room, then run it again") from error


def _outcomes(
    home: Home,
    job: Job,
    shard: Shard,
    rows: dict[str, InShard],
    checks: Mapping[str, OutputCheck],
    problems: tuple[LineProblem, ...],
    tally: Tally,
    taken_back: dict[int, float],
    now: datetime,
) -> Iterator[Outcome]:
    """One outcome for each row that ends here; the others are left without one.

    `taken_back` is filled with what rows that were not brought to an end took of the upstream, in seconds.
    """
    told: set[str] = set()
    for kind in ("output", "error"):
        for found in results.read(home.results(shard.id, kind)):
            custom_id = found.line.custom_id if found.line is not None else None
            row = rows.get(custom_id) if custom_id is not None else None
            if custom_id is None or row is None:
                tally.broken += custom_id is None
                tally.unknown += custom_id is not None
                continue
            if custom_id in told:
                tally.duplicates += 1
                continue
            said = results.outcome(row.seq, kind, found, checks.get(row.task))
            if isinstance(said, NotExecuted):
                if said.upstream_seconds:
                    taken_back[row.seq] = said.upstream_seconds
                continue  # otherwise as if the file did not name it: decided below
            told.add(custom_id)
            yield said
    untold = [row for custom_id, row in rows.items() if custom_id not in told]
    yield from _decide(job, shard, list(rows.values()), untold, problems, now)


def _decide(
    job: Job,
    shard: Shard,
    rows: list[InShard],
    untold: list[InShard],
    problems: tuple[LineProblem, ...],
    now: datetime,
) -> Iterator[Outcome]:
    """The ends of rows that have no result line; a row that is not given one here goes on."""
    if job.cancel_requested_at is not None:
        code = "budget_exhausted" if (job.cancel_reason or "").startswith("budget") else "cancelled"
        for row in untold:
            yield _ended(row, RequestState.CANCELLED, code, job.cancel_reason or "the job was cancelled")
        return
    if shard.provider_status == BatchStatus.EXPIRED:
        # A deadline that was put off since leaves its rows time: they go on.
        late = job.deadline_at is None or job.deadline_at <= now
        if late and job.spec.get("on_late") == "expire":
            for row in untold:
                yield _ended(row, RequestState.EXPIRED, "batch_expired", "the deadline passed before the row ran")
        return
    if shard.provider_status == BatchStatus.FAILED and problems and problems[0].code != BATCH_GONE:
        yield from _refused(rows, untold, problems)
        return
    for row in untold:
        if row.attempt + 1 >= MAX_ATTEMPTS:
            message = f"{MAX_ATTEMPTS} batches came back without a result for this row"
            yield _ended(row, RequestState.FAILED, "missing_result", message)


def _refused(rows: list[InShard], untold: list[InShard], problems: tuple[LineProblem, ...]) -> Iterator[Outcome]:
    """A batch that failed its validation: the lines it names fail, the others go on without them."""
    by_seq = {rows[p.line - 1].seq: p for p in problems if p.line is not None and 0 < p.line <= len(rows)}
    for row in untold:
        problem = by_seq.get(row.seq) if by_seq else problems[0]
        if problem is not None:
            yield _ended(row, RequestState.FAILED, problem.code, problem.message)


def _ended(row: InShard, state: RequestState, code: str, message: str) -> Outcome:
    return Outcome(row.seq, state, error_code=code, error_message=message)
