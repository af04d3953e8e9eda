"""Rows that an ended batch left unanswered: each is retried, rerouted or ended, with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from orchestrator.backends import BATCH_GONE, LineProblem
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.counts import number_of
from orchestrator.core.model import Job, Outcome, RequestState
from orchestrator.core.refused_fields import RefusedField
from orchestrator.core.shards import Shard
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.collect.common_refusals import FEWEST, CommonRefusal, of_verdict
from orchestrator.pipeline.collect.fetch import FetchedFiles
from orchestrator.pipeline.collect.learned_refusals import LearnedRefusals
from orchestrator.policy import batch_errors, results, row_errors
from orchestrator.policy.answer_check import AnswerCheck
from orchestrator.policy.batch_errors import INPUT_LOST, NOT_SENT, STRAY_UPLOADS, BatchFault, BatchVerdict
from orchestrator.policy.results import RowRefusal
from orchestrator.policy.row_errors import Disposition, RowVerdict
from orchestrator.settings.model_lists import RungStanding
from orchestrator.settings.stored_spec import expires
from orchestrator.store import Store
from orchestrator.store.records import InShard

CHUNK = 1000
MAX_ATTEMPTS = 3
BLAMELESS_FOR = timedelta(days=7)
"""How long to retry a row that is refused for reasons outside its control. After that, every attempt counts."""
ODD = 9

Ends = Iterator[tuple[InShard, Outcome]]


class ShardTally(Struct):
    """Counts of a shard's results for the event log, and lessons about the backend.

    `reasked` and `escalated` count rows by the fault of their answers; `escalated_to` is the stronger model. `stop`
    is the reason to send this backend no more rows now; `wait` is the same for this model. `refused_alike` has the
    refusals of whole tasks, `refusal` that of the batch. `lost` has the kinds of missing files, `odd` an id that no
    row has. `open` counts rows without an outcome; `owed` of them may still be answered. `answered` names a row of
    each task that got an answer, good or bad; `answers` counts answers. `swapped` describes answers under another
    row's key.
    """

    settled: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    reasked: Counter[str] = field(default_factory=Counter)
    escalated: Counter[str] = field(default_factory=Counter)
    escalated_to: str = ""
    duplicates: int = 0
    unknown: int = 0
    broken: int = 0
    released: int = 0
    stop: str | None = None
    wait: str | None = None
    refused_alike: Mapping[str, CommonRefusal] = field(default_factory=dict)
    refusal: BatchVerdict | None = None
    lost: tuple[str, ...] = ()
    odd: str | None = None
    open: int = 0
    owed: int = 0
    answered: dict[str, str] = field(default_factory=dict)
    answers: int = 0
    swapped: str | None = None

    def __str__(self) -> str:
        parts = [f"{number:,} {state}" for state, number in sorted(self.settled.items())]
        for name, (one, more) in _NAMES.items():
            if number := getattr(self, name):
                parts.append(f"{number:,} {one if number == 1 else more}")
            if name == "released":
                parts += [f"{number:,} for {code}" for code, number in sorted(self.again.items()) if number]
        goes_on = f"with {self.escalated_to}"
        for counted, one, more in (
            (self.reasked, "is re-asked", "are re-asked"),
            (self.escalated, f"continues {goes_on}", f"continue {goes_on}"),
        ):
            if counted:
                codes = ", ".join(f"{number:,} {code}" for code, number in sorted(counted.items()))
                parts.append(f"{counted.total():,} {one if counted.total() == 1 else more}: {codes}")
        if self.odd is not None:
            parts.append(f"an unknown id is {self.odd!r}")
        parts += [f"its {kind} file is no longer at the backend" for kind in self.lost]
        if self.owed:
            parts.append(f"up to {number_of(self.owed, 'answer')} may come there: orch looks for them")
        return ", ".join(parts) or "no rows"


_NAMES = {
    "released": ("continues in another batch", "continue in another batch"),
    "duplicates": ("second line for a row", "second lines for a row"),
    "unknown": ("line of an unknown custom_id", "lines of unknown custom_ids"),
    "broken": ("line that is not a result", "lines that are not results"),
}


class EndedShard(Struct, frozen=True):
    """An ended shard, with everything that its collection needs.

    `model` is the backend's name for its model. `problems` has the backend's errors of a failed batch. `elsewhere` is
    true if another backend can take rows. `standing` is the position of its model in the alias's list. `retries` has
    the maximum re-asks by task. `fetched` describes its files. If `blames_input`, an input file that the backend
    cannot find counts as an attempt of the rows.
    """

    job: Job
    shard: Shard
    handle: BackendHandle
    model: str
    checks: Mapping[str, AnswerCheck]
    problems: tuple[LineProblem, ...]
    elsewhere: bool
    now: datetime
    standing: RungStanding = field(default_factory=RungStanding)
    retries: Mapping[str, int] = field(default_factory=dict)
    fetched: FetchedFiles = field(default_factory=FetchedFiles)
    blames_input: bool = True

    @property
    def may_leave(self) -> bool:
        """True if rows that this backend cannot answer can go to another backend."""
        return self.elsewhere and not self.standing.is_alone


class UnansweredRows:
    """Rows of an ended batch that its files give no outcome: each continues, or ends with a reason.

    `failed` rows ran and are tried again, which counts as an attempt. `waiting` rows were refused for reasons outside
    their control. `elsewhere` rows go to another backend; so do `rerouted` rows, for the deadline. `held` rows wait,
    because all rows of their task are refused; `common` has these refusals. `lessons` records the fields that the
    model refuses.
    """

    def __init__(
        self, ended: EndedShard, tally: ShardTally, lessons: LearnedRefusals, common: Mapping[str, CommonRefusal]
    ) -> None:
        self._ended = ended
        self._tally = tally
        self.lessons = lessons
        self.common = common
        self.failed: list[int] = []
        self.waiting: list[int] = []
        self.elsewhere: list[int] = []
        self.rerouted: list[int] = []
        self.held: list[int] = []

    def unrecognised(self, missing: list[InShard]) -> Ends:
        """Reroute or fail rows of a batch with unknown ids. The same backend would return unknown ids again."""
        ended, tally = self._ended, self._tally
        for row in missing:
            if ended.may_leave and row.attempt + 1 < MAX_ATTEMPTS and ended.job.cancel_requested_at is None:
                self.elsewhere.append(row.seq)
                tally.again["unknown ids"] += 1
            else:
                yield row, results.unrecognised(row.seq, tally.odd or "")

    def goes_on(self, row: InShard, said: RowRefusal) -> bool:
        """True if a row that failed at its backend is tried again, here or elsewhere."""
        if self._ended.job.cancel_requested_at is not None:
            return False
        refused = self.lessons.field_of(row, said)
        verdict = row_errors.classify(said.status, said.code, said.type, said.message, refused)
        is_last = row.attempt + 1 >= MAX_ATTEMPTS
        if refused is not None and self.lessons.learn(row, said, refused) and not is_last:
            self.failed.append(row.seq)
            self._tally.again[_with_field(verdict.code, refused)] += 1
            return True
        if row.task in self.common:
            self.held.append(row.seq)
            self._tally.again[self.common[row.task].code] += 1
            return True
        # Our own server has already retried. Another backend may accept a request that our server refuses.
        if is_last or (self._ended.handle.is_own and refused is None):
            return False
        if not self._is_tried_again(row, verdict):
            return False
        self._tally.again[_with_field(verdict.code, refused)] += 1
        return True

    def _is_tried_again(self, row: InShard, verdict: RowVerdict) -> bool:
        match verdict.disposition:
            case Disposition.NEVER:
                return False
            case Disposition.RETRY:
                self.failed.append(row.seq)
            case Disposition.ELSEWHERE:
                if not self._ended.may_leave:
                    return False
                self.elsewhere.append(row.seq)
            case Disposition.WAIT:
                self.waiting.append(row.seq)
                self._tally.wait = self._tally.wait or verdict.why
            case Disposition.STOP:
                self.waiting.append(row.seq)
                self._tally.stop = self._tally.stop or verdict.why
            case _:
                assert_never(verdict.disposition)
        return True

    def decide(self, rows: list[InShard], missing: list[InShard]) -> Ends:
        """Yield outcomes for rows without a result line that end here. The other rows continue."""
        ended, tally = self._ended, self._tally
        job, shard = ended.job, ended.shard
        if job.cancel_requested_at is not None:
            code, reason = row_errors.cancelled(job)
            for row in missing:
                yield _ended(row, RequestState.CANCELLED, code, reason)
            return
        if is_refused(ended) and shard.preflight is None:
            missing = self._without_respelled(missing)
        self.held.extend(row.seq for row in missing if row.task in self.common)
        tally.again.update(self.common[row.task].code for row in missing if row.task in self.common)
        missing = [row for row in missing if row.task not in self.common]
        if shard.preflight is not None:
            tally.again["its batch"] += len(missing)
            return
        if shard.rerouted_at is not None:
            # A slow engine may still do some of these rows. The rows do not return to a hosted backend, whose next
            # batch would be as slow.
            if not ended.handle.is_own:
                self.rerouted.extend(row.seq for row in missing)
            tally.again["the deadline"] += len(missing)
            return
        if shard.provider_status == BatchStatus.EXPIRED:
            # If the deadline was extended since, the rows continue.
            late = job.deadline_at is None or job.deadline_at <= ended.now
            if late and expires(job):
                for row in missing:
                    yield _ended(row, RequestState.EXPIRED, *row_errors.TOO_LATE)
            return
        if is_refused(ended):
            yield from self._refused(rows, missing)
            return
        for row in missing:
            if row.attempt + 1 < MAX_ATTEMPTS:
                tally.again["no result"] += 1
                continue
            message = f"{MAX_ATTEMPTS} batches came back without a result for this row"
            yield _ended(row, RequestState.FAILED, "missing_result", message)

    def _without_respelled(self, missing: list[InShard]) -> list[InShard]:
        """Let rows continue if they can be asked without the refused field. Return the remaining rows."""
        first, others = self._ended.problems[0], list[InShard]()
        said = RowRefusal(400, first.code, None, first.message)
        for row in missing:
            refused = self.lessons.field_of(row, said)
            if refused is not None and self.lessons.learn(row, said, refused) and row.attempt + 1 < MAX_ATTEMPTS:
                self.failed.append(row.seq)
                self._tally.again[_with_field(first.code, refused)] += 1
            else:
                others.append(row)
        return others

    def _refused(self, rows: list[InShard], missing: list[InShard]) -> Ends:
        """Handle a batch that failed its validation. The refused lines fail, and the other rows continue.

        If the whole batch was refused, all of its rows end or continue alike, and the tally notes the refusal.
        """
        ended, tally = self._ended, self._tally
        first = ended.problems[0]
        verdict = batch_errors.classify_batch(first.code, first.message, first.line)
        tally.refusal = verdict
        by_seq = {
            rows[problem.line - 1].seq: problem
            for problem in ended.problems
            if problem.line is not None and 0 < problem.line <= len(rows)
        }
        if by_seq and verdict.kind is BatchFault.LINE:
            for row in missing:
                if (problem := by_seq.get(row.seq)) is not None:
                    yield _ended(row, RequestState.FAILED, problem.code, problem.message)
                else:
                    tally.again["further refused lines"] += 1
            return
        for row in missing:
            if not self._is_sent_again(row, verdict, len(rows)):
                yield _ended(row, RequestState.FAILED, first.code, first.message)
            else:
                tally.again[verdict.code] += 1

    def _is_sent_again(self, row: InShard, verdict: BatchVerdict, rows: int) -> bool:
        ended = self._ended
        match verdict.disposition:
            case Disposition.WAIT:
                # A single row that is too large for a batch or for the queue limit is itself at fault.
                fits = verdict.limit is None or ended.shard.tokens <= verdict.limit
                return rows > 1 or (verdict.kind is not BatchFault.TOO_LARGE and fits)
            case Disposition.STOP:
                return True
            case Disposition.RETRY if verdict.code == INPUT_LOST and not ended.blames_input:
                return True
            case Disposition.RETRY:
                return row.attempt + 1 < MAX_ATTEMPTS
            case Disposition.ELSEWHERE if ended.may_leave and row.attempt + 1 < MAX_ATTEMPTS:
                self.elsewhere.append(row.seq)
                return True
            case _:
                return False

    def release(self, store: Store) -> int:
        """Release the rows without an outcome so that they are asked again. Return their number."""
        ended, tally, shard = self._ended, self._tally, self._ended.shard
        # If most rows were answered, the few rows refused for lack of room have another fault. Their batches would be
        # refused forever. The same holds for rows that have been refused for days.
        is_long = (
            ended.now >= max(ended.job.created_at, ended.job.deadline_at or ended.job.created_at) + BLAMELESS_FOR
        )
        odd = is_long or tally.settled[RequestState.SUCCEEDED] > ODD * len(self.waiting)
        # A permanent refusal counts as an attempt; otherwise two backends would pass a row back and forth.
        lacks = ended.standing.lacks
        stays, leaves = tuple(sorted(lacks)), tuple(sorted({shard.backend, *lacks}))
        rerouted = stays if ended.standing.is_alone else leaves
        failed = (self.failed, True, rerouted if shard.rerouted_at is not None else stays)
        groups: tuple[tuple[list[int], bool, tuple[str, ...] | None], ...] = (
            failed, (self.waiting, odd, stays), (self.elsewhere, True, leaves), (self.rerouted, False, rerouted),
            (self.held, False, None),
        )  # fmt: skip
        for seqs, counts, avoid in groups:
            for start in range(0, len(seqs), CHUNK):
                store.rows.free(shard, seqs[start : start + CHUNK], count_attempt=counts, avoid=avoid)
        # Rows are not to blame if their batch expired, was rerouted or was refused as a whole.
        is_innocent = shard.provider_status == BatchStatus.EXPIRED or shard.rerouted_at is not None
        is_innocent = is_innocent or shard.preflight is not None
        refusal = tally.refusal
        blameless = is_innocent or (refusal is not None and refusal.disposition is not Disposition.RETRY)
        blameless = blameless or (refusal is not None and refusal.code == INPUT_LOST and not ended.blames_input)
        blameless = blameless and not is_long
        freed = sum(len(seqs) for seqs, _, _ in groups)
        return freed + store.rows.release(shard.id, count_attempt=not blameless)


def _with_field(code: str, refused: RefusedField | None) -> str:
    return code if refused is None else f"{code} ({refused.name})"


def is_refused(ended: EndedShard) -> bool:
    """True if the backend refused the batch, at its creation or by its validation."""
    is_failed = ended.shard.provider_status == BatchStatus.FAILED and bool(ended.problems)
    return is_failed and ended.problems[0].code != BATCH_GONE


def common_of_batch(ended: EndedShard, rows: Collection[InShard]) -> dict[str, CommonRefusal]:
    """Return the refusal of a batch by task, if it applies equally to all rows."""
    if not is_refused(ended) or ended.job.cancel_requested_at is not None:
        return {}
    first = ended.problems[0]
    verdict = batch_errors.classify_batch(first.code, first.message, first.line)
    named = {problem.line for problem in ended.problems if problem.code == first.code} - {None}
    is_each = verdict.kind is BatchFault.LINE and len(named) >= ended.shard.rows
    is_whole = verdict.kind is BatchFault.WHOLE or is_each
    if not is_whole or verdict.code in (NOT_SENT, STRAY_UPLOADS):
        return {}  # not a refusal: the rows could not be sent
    number = FEWEST if verdict.kind is BatchFault.WHOLE else len(rows)
    said = row_errors.classify(400, first.code, None, first.message)
    common = of_verdict(replace(said, disposition=verdict.disposition), first.code, first.message, number)
    return {} if common is None else dict.fromkeys({row.task for row in rows}, common)


def _ended(row: InShard, state: RequestState, code: str, message: str) -> tuple[InShard, Outcome]:
    return row, Outcome(row.seq, state, error_code=code, error_message=message)
