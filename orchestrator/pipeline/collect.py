"""Stage 5: an ended batch's files become outcomes, by this one path whether it completed, failed, expired or
was cancelled.

Each row of the shard is ticked off once. What the files do not say of a row is decided here, with its reason: it goes
on in a new shard, or it ends. A row whose answer fails its check is asked again with what was wrong, as often as its
task says, and then goes on with the next model of its alias's list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import assert_never

from orchestrator import results, rowerrors, tokens
from orchestrator.backends import BATCH_GONE, Backend, LineProblem
from orchestrator.errors import BackendBusy, BackendError, BackendRefused, StorageError
from orchestrator.home import Home
from orchestrator.ladder import Standing, keep_from
from orchestrator.mending import MENDABLE
from orchestrator.model import Job, Outcome, RequestState, Shard, ShardState, Usage
from orchestrator.pipeline import again
from orchestrator.pipeline.lanes import Lane
from orchestrator.pipeline.track import FILES_APPEAR
from orchestrator.results import NotExecuted, OutputCheck, Refusal
from orchestrator.rowerrors import BatchFault, BatchVerdict, Disposition
from orchestrator.store import Store
from orchestrator.store.records import InShard, Settled
from orchestrator.wire import BatchStatus

CHUNK = 1000
MAX_ATTEMPTS = 3
ODD = 9

Ends = Iterator[tuple[InShard, Outcome]]


@dataclass(slots=True)
class Tally:
    """What a shard's files held, for the event log; and what they taught of the backend.

    `asked_again` are rows whose model is shown what was wrong with its answer, by what that was; `climbed` those that
    go on with a stronger model, `climbed_to` its name.
    `stop` is why nothing may be sent there now, `wait` why nothing of this model, `refusal` what the batch was
    refused for, `lost` the files that are no longer there.
    """

    settled: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    asked_again: Counter[str] = field(default_factory=Counter)
    climbed: Counter[str] = field(default_factory=Counter)
    climbed_to: str = ""
    duplicates: int = 0
    unknown: int = 0
    broken: int = 0
    released: int = 0
    stop: str | None = None
    wait: str | None = None
    refusal: BatchVerdict | None = None
    lost: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{number:,} {state}" for state, number in sorted(self.settled.items())]
        for name in ("released", "duplicates", "unknown", "broken"):
            if number := getattr(self, name):
                parts.append(f"{number:,} {_NAMES[name]}")
        if self.again:
            parts[-1:] = [*parts[-1:], *(f"{number:,} for {code}" for code, number in sorted(self.again.items()))]
        for counted, what in ((self.asked_again, "are asked again"), (self.climbed, f"go on with {self.climbed_to}")):
            if counted:
                codes = ", ".join(f"{number:,} {code}" for code, number in sorted(counted.items()))
                parts.append(f"{counted.total():,} {what}: {codes}")
        parts += [f"its {kind} file is no longer at the backend" for kind in self.lost]
        return ", ".join(parts) or "no rows"


_NAMES = {
    "released": "go on in another batch",
    "duplicates": "lines for rows that had one already",
    "unknown": "lines of unknown custom_ids",
    "broken": "lines that are no result",
}


@dataclass(frozen=True, slots=True)
class Ended:
    """A shard that has ended, with all that its collection needs.

    `model` is what its model is called there, `problems` what its backend says of a batch that failed, `elsewhere`
    whether another backend may take rows, `standing` where the rows are on their alias's list of models, `retries`
    how often each task's model is shown what was wrong.
    """

    job: Job
    shard: Shard
    lane: Lane
    model: str
    checks: Mapping[str, OutputCheck]
    problems: tuple[LineProblem, ...]
    elsewhere: bool
    now: datetime
    standing: Standing = field(default_factory=Standing)
    retries: Mapping[str, int] = field(default_factory=dict)

    @property
    def may_leave(self) -> bool:
        """Whether a row that this backend will never do has somewhere to go."""
        return self.elsewhere and not self.standing.is_alone


def collect(store: Store, home: Home, ended: Ended) -> Tally:
    """Download, settle, and decide on the rest. Doing it again after a crash changes nothing."""
    shard, now = ended.shard, ended.now
    tally, step = Tally(), ended.standing.step
    tally.climbed_to = " or ".join(step.models) if step is not None else ""
    for kind, file_id in (("output", shard.output_file_id), ("error", shard.error_file_id)):
        path = home.results(shard.id, kind)
        if file_id is not None and not path.exists() and not _downloaded(ended, file_id, home, kind):
            tally.lost.append(kind)
    rows = {row.custom_id: row for row in store.rows.of_shard(shard.id)}
    pending: list[Settled] = []
    climbing: list[Settled] = []
    mending: list[tuple[InShard, Settled]] = []

    def settle() -> None:
        store.rows.settle(shard.id, ended.job.id, shard.backend, pending, now, ended.model)
        pending.clear()
        again.ask_again(store, home, shard, mending, now)
        mending.clear()
        if step is not None:
            store.climbs.climb(shard, climbing, step, now)
            climbing.clear()

    rest = _Rest()
    for row, outcome in _outcomes(home, ended, rows, tally, rest):
        code = _bad_answer(ended, outcome)
        if code in MENDABLE and row.again < ended.retries.get(row.task, 0):
            mending.append((row, _settled(ended, row, outcome)))
            tally.asked_again[code] += 1
        elif code is not None and step is not None:
            climbing.append(_settled(ended, row, outcome))
            tally.climbed[code] += 1
        else:
            pending.append(_settled(ended, row, outcome))
            tally.settled[outcome.state] += 1
        if len(pending) + len(climbing) + len(mending) >= CHUNK:
            settle()
    settle()
    _book_taken_back(store, ended, rest)
    tally.released = _release(store, ended, rest, tally)
    return tally


def close(store: Store, home: Home, shard: Shard, lane: Lane, now: datetime) -> None:
    """Delete a collected shard's files at its backend, and have done with it. Raises BackendError; do it again then.

    In this order: a kill in between does it again, where one after the last move would leave the files for ever.
    """
    for file_id in (shard.input_file_id, shard.output_file_id, shard.error_file_id):
        if file_id is not None:
            _forget(lane.api, file_id)
    home.shard_input(shard.id).unlink(missing_ok=True)
    for kind in ("output", "error"):
        # A kill amid a download leaves one, and the file may be gone by the next try.
        path = home.results(shard.id, kind)
        path.with_name(f"{path.name}.partial").unlink(missing_ok=True)
    store.shards.move(shard, ShardState.COLLECTED, collected_at=now, held=None)


def abandon(home: Home, shard: Shard, lane: Lane | None) -> None:
    """Delete the files of a shard that is not sent after all; without a `lane`, there are none at its backend.

    What a backend does not let go now is left there: it goes away by itself, and must keep nobody waiting.
    """
    if lane is not None and shard.input_file_id is not None:
        with suppress(BackendError):
            lane.api.forget_file(shard.input_file_id)
    path = home.shard_input(shard.id)
    for left in path.parent.glob(f"{path.name}*"):  # a kill may have left what a backend made of it, too
        left.unlink(missing_ok=True)


def _forget(backend: Backend, file_id: str) -> None:
    try:
        backend.forget_file(file_id)
    except BackendBusy:
        raise
    except BackendRefused:
        return  # `orch reconcile` shows what a provider does not let go


def _book_taken_back(store: Store, ended: Ended, rest: _Rest) -> None:
    """Book what rows took that were in flight when their batch ended: time, or sends that may be billed."""
    shard, price = ended.shard, ended.lane.price
    spent, sent = {}, {}
    for row, said in rest.taken_back:
        spent[row.seq] = price.of_time(said.upstream_seconds)
        if said.uncertain and (cost := price.of_uncertain(ended.model, said.uncertain, _expected(row))) is not None:
            sent[row.seq] = cost
    store.ledger.book(shard, "taken_back", spent, ended.now)
    store.ledger.book(shard, "uncertain", sent, ended.now)


def _bad_answer(ended: Ended, outcome: Outcome) -> str | None:
    """The code of the check for which a row may be asked again, None where its outcome stands."""
    job = ended.job
    late = job.deadline_at is not None and job.deadline_at <= ended.now and job.spec.get("on_late") == "expire"
    if job.cancel_requested_at is not None or late:
        return None
    is_answer = outcome.status is not None and 200 <= outcome.status < 300
    return outcome.error_code if is_answer and outcome.error_code in rowerrors.BAD_ANSWERS else None


def _settled(ended: Ended, row: InShard, outcome: Outcome) -> Settled:
    if outcome.span is None:
        return Settled(outcome, None)
    price, expected = ended.lane.price, _expected(row)
    # Every row that reached the backend is booked, also one that failed there and one that cost nothing.
    cost, uncertain = price.of_row(ended.model, outcome, expected), None
    if outcome.uncertain:
        told = outcome.usage if outcome.usage.input_tokens else expected
        uncertain = price.of_uncertain(ended.model, outcome.uncertain, told)
    return Settled(outcome, cost, uncertain)


def _expected(row: InShard) -> Usage:
    """What a row uses at most, as far as we know it before it is answered."""
    return Usage(input_tokens=tokens.estimate(row.span.length), output_tokens=row.max_output or 0)


def _downloaded(ended: Ended, file_id: str, home: Home, kind: str) -> bool:
    """False where the file is no longer there: providers keep them for some weeks."""
    shard, path = ended.shard, home.results(ended.shard.id, kind)
    told = shard.provider_completed if kind == "output" else shard.provider_failed
    try:
        _download(ended.lane.api, file_id, home, shard, kind)
        # What HTTP calls whole may have ended too soon, and a row that is taken for missing is paid for again.
        if not ended.lane.is_own and sum(found.line is not None for found in results.read(path)) < told:
            _download(ended.lane.api, file_id, home, shard, kind)
    except BackendRefused as refusal:
        # A file may be named some time before it can be read.
        appears_until = (shard.ended_at or ended.now) + FILES_APPEAR
        if refusal.status != HTTPStatus.NOT_FOUND or ended.now < appears_until:
            raise
        return False
    return True


def _download(backend: Backend, file_id: str, home: Home, shard: Shard, kind: str) -> None:
    path = home.results(shard.id, kind)
    try:
        backend.download(file_id, path, home.shard_input(shard.id))
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", hint="make room, then run it again") from error


@dataclass(slots=True)
class _Rest:
    """Rows without an outcome here: those that had been sent when their batch ended, and where the others go on.

    Those in `waiting` were refused for what is no fault of theirs, those in `elsewhere` go on at another backend, and
    so do those in `pulled`, which were taken back for the deadline.
    """

    taken_back: list[tuple[InShard, NotExecuted]] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    elsewhere: list[int] = field(default_factory=list)
    pulled: list[int] = field(default_factory=list)


def _release(store: Store, ended: Ended, rest: _Rest, tally: Tally) -> int:
    """Let the rows without an outcome go on; how many."""
    shard = ended.shard
    # A few rows that are refused for want of room where all others were answered have something else about them: a
    # batch of theirs would come back like this for ever.
    odd = tally.settled[RequestState.SUCCEEDED] > ODD * len(rest.waiting)
    # What one backend will never do counts, or two of them would pass a row to and fro.
    lacks = ended.standing.lacks
    stays, leaves = keep_from(lacks), keep_from({shard.backend, *lacks})
    pulled = stays if ended.standing.is_alone else leaves
    groups = ((rest.waiting, odd, stays), (rest.elsewhere, True, leaves), (rest.pulled, False, pulled))
    for seqs, counts, avoid in groups:
        for start in range(0, len(seqs), CHUNK):
            store.rows.free(shard, seqs[start : start + CHUNK], count_attempt=counts, avoid=avoid)
    # No row of a batch that expired, was taken back, or was refused as a whole, is to blame for it.
    is_innocent = shard.provider_status == BatchStatus.EXPIRED or shard.pulled_at is not None
    blameless = is_innocent or (tally.refusal is not None and tally.refusal.disposition is not Disposition.RETRY)
    freed = len(rest.waiting) + len(rest.elsewhere) + len(rest.pulled)
    return freed + store.rows.release(shard.id, count_attempt=not blameless)


def _outcomes(home: Home, ended: Ended, rows: dict[str, InShard], tally: Tally, rest: _Rest) -> Ends:
    """One outcome for each row that ends here; the others are left without one, and `rest` says what of them."""
    told: set[str] = set()
    for kind in ("output", "error"):
        for found in results.read(home.results(ended.shard.id, kind)):
            if found.line is None or (custom_id := found.line.custom_id) is None:
                tally.broken += 1
                continue
            if (row := rows.get(custom_id)) is None:
                tally.unknown += 1
                continue
            if custom_id in told:
                tally.duplicates += 1
                continue
            said = results.outcome(row.seq, kind, found, ended.checks.get(row.task))
            if isinstance(said, NotExecuted):
                if said.upstream_seconds or said.uncertain:
                    rest.taken_back.append((row, said))
                continue  # otherwise as if the file did not name it: decided below
            told.add(custom_id)
            is_answer = said.status is not None and 200 <= said.status < 300
            if is_answer or not _goes_on(ended, row, results.refusal(found.line), tally, rest):
                yield row, said
    untold = [row for custom_id, row in rows.items() if custom_id not in told]
    yield from _decide(ended, list(rows.values()), untold, tally, rest)


def _goes_on(ended: Ended, row: InShard, said: Refusal, tally: Tally, rest: _Rest) -> bool:
    """Whether a row that failed at its backend is to be tried once more, here or elsewhere; if so, noted where."""
    if ended.lane.is_own or ended.job.cancel_requested_at is not None:
        return False  # our own server has tried all that there is to try
    verdict = rowerrors.classify(said.status, said.code, said.type, said.message)
    if row.attempt + 1 >= MAX_ATTEMPTS:
        return False
    match verdict.disposition:
        case Disposition.NEVER:
            return False
        case Disposition.RETRY:
            pass
        case Disposition.ELSEWHERE:
            if not ended.may_leave:
                return False
            rest.elsewhere.append(row.seq)
        case Disposition.WAIT:
            rest.waiting.append(row.seq)
            tally.wait = tally.wait or verdict.why
        case Disposition.STOP:
            rest.waiting.append(row.seq)
            tally.stop = tally.stop or verdict.why
        case _:
            assert_never(verdict.disposition)
    tally.again[verdict.code] += 1
    return True


def _decide(ended: Ended, rows: list[InShard], untold: list[InShard], tally: Tally, rest: _Rest) -> Ends:
    """The ends of rows that have no result line; a row that is not given one here goes on."""
    job, shard = ended.job, ended.shard
    if job.cancel_requested_at is not None:
        code = "budget_exhausted" if (job.cancel_reason or "").startswith("budget") else "cancelled"
        for row in untold:
            yield _ended(row, RequestState.CANCELLED, code, job.cancel_reason or "the job was cancelled")
        return
    if shard.pulled_at is not None:
        # A lane that did not keep up may do some of them all the same, and they keep away from what they did before;
        # another batch would be as slow.
        if not ended.lane.is_own:
            rest.pulled.extend(row.seq for row in untold)
        tally.again["the deadline"] += len(untold)
        return
    if shard.provider_status == BatchStatus.EXPIRED:
        # A deadline that was put off since leaves its rows time: they go on.
        late = job.deadline_at is None or job.deadline_at <= ended.now
        if late and job.spec.get("on_late") == "expire":
            for row in untold:
                yield _ended(row, RequestState.EXPIRED, "batch_expired", "the deadline passed before the row ran")
        return
    if shard.provider_status == BatchStatus.FAILED and ended.problems and ended.problems[0].code != BATCH_GONE:
        yield from _refused(ended, rows, untold, tally, rest)
        return
    for row in untold:
        if row.attempt + 1 < MAX_ATTEMPTS:
            tally.again["no result"] += 1
            continue
        message = f"{MAX_ATTEMPTS} batches came back without a result for this row"
        yield _ended(row, RequestState.FAILED, "missing_result", message)


def _refused(ended: Ended, rows: list[InShard], untold: list[InShard], tally: Tally, rest: _Rest) -> Ends:
    """A batch that failed its validation: the lines it names fail, the others go on without them.

    Where it was refused as a whole, all of its rows end or go on alike, and `tally` says what was learned.
    """
    first = ended.problems[0]
    verdict = rowerrors.classify_batch(first.code, first.message, first.line)
    tally.refusal = verdict
    by_seq = {
        rows[problem.line - 1].seq: problem
        for problem in ended.problems
        if problem.line is not None and 0 < problem.line <= len(rows)
    }
    if by_seq and verdict.kind is BatchFault.LINE:
        for row in untold:
            if (problem := by_seq.get(row.seq)) is not None:
                yield _ended(row, RequestState.FAILED, problem.code, problem.message)
            else:
                tally.again["other lines that were refused"] += 1
        return
    for row in untold:
        if not _goes_elsewhere(ended, row, verdict, len(rows), rest):
            yield _ended(row, RequestState.FAILED, first.code, first.message)
        else:
            tally.again[verdict.code] += 1


def _goes_elsewhere(ended: Ended, row: InShard, verdict: BatchVerdict, rows: int, rest: _Rest) -> bool:
    """Whether a row of a batch that was refused as a whole goes on in another batch; `rest` says where."""
    match verdict.disposition:
        case Disposition.WAIT:
            # One row that is too large for a batch of its own, or for all that may wait, is that row's fault.
            fits = verdict.limit is None or ended.shard.tokens <= verdict.limit
            return rows > 1 or (verdict.kind is not BatchFault.TOO_LARGE and fits)
        case Disposition.STOP:
            return True
        case Disposition.RETRY:
            return row.attempt + 1 < MAX_ATTEMPTS
        case Disposition.ELSEWHERE if ended.may_leave and row.attempt + 1 < MAX_ATTEMPTS:
            rest.elsewhere.append(row.seq)
            return True
        case _:
            return False


def _ended(row: InShard, state: RequestState, code: str, message: str) -> tuple[InShard, Outcome]:
    return row, Outcome(row.seq, state, error_code=code, error_message=message)
