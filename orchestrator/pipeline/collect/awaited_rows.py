"""Rows that wait for another job's rows: they take over its answers or are asked after all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from orchestrator.core.counts import number_of
from orchestrator.core.events import EventKind
from orchestrator.core.model import SUPERSEDED_BY, CancelCode, Job, JobId, RequestState
from orchestrator.pipeline.backend_set import BackendSet
from orchestrator.pipeline.build.awaited_rows import expected_at
from orchestrator.pipeline.build.reused_answers import Asked, may_take
from orchestrator.pipeline.succession import successor
from orchestrator.policy.row_errors import is_passing
from orchestrator.store import Store
from orchestrator.store.awaited_rows import AwaitedEnd

if TYPE_CHECKING:
    from orchestrator.pipeline.plan.planning import Planning

CHUNK = 500
LOOK = timedelta(minutes=5)
"""Time between two checks of whether to keep waiting or to ask the rows again."""
SLACK = timedelta(minutes=10)
"""Margin before the deadline. A row stops waiting for an overdue row once a new request would end within this
margin.
"""


class TakeOver:
    """Ends the waits of a job's rows for other jobs' rows."""

    def __init__(self, store: Store, backends: BackendSet, now: Callable[[], datetime]) -> None:
        self._store = store
        self._backends = backends
        self._now = now
        self._looked: dict[JobId, datetime] = {}

    def advance(self, job: Job) -> bool:
        """Take over answers that have arrived, and release rows whose answers will not come. True if a row moved."""
        awaited = self._store.awaited
        if not (sources := awaited.sources(job.id)):
            return False
        moved, asked = 0, self._backends.asked(job)
        while ended := awaited.ended(job.id, CHUNK):
            runs = {of.id for of in self._store.jobs.of_series(job.series)}
            answers = {
                one.seq: one.answer
                for one in ended
                if one.answer is not None and _may_take_over(one, asked, is_same_file=one.of_job in runs)
            }
            moved += awaited.take(job.id, answers)
            moved += self._release(job, [one.seq for one in ended if one.seq not in answers], "without an answer")
        for name in sources:
            of = self._store.jobs.find(name)
            if of is None or of.error is not None or of.finished_at is not None:
                moved += self._release(job, awaited.of_source(job.id, name), "its job is over")
            elif self._store.holds.of(name):
                moved += self._release(job, awaited.of_source(job.id, name), "its backend refuses rows")
            elif job.deadline_at is not None:
                moved += self._give_up_late(job, of, job.deadline_at)
        return moved > 0

    def _release(self, job: Job, seqs: list[int], why: str) -> int:
        number = self._store.awaited.release(job.id, seqs) if seqs else 0
        if number:
            self._store.escalations.inherit(job.id, seqs, self._superseded_with_same_models(job))
            told = f"asked here: {number_of(number, 'row')} that another job had under way: {why}"
            self._store.jobs.note(job.id, EventKind.RESCUED, told, self._now())
        return number

    def _superseded_with_same_models(self, job: Job) -> list[JobId]:
        earlier = [of for of in self._store.jobs.of_series(job.series) if of.options.get(SUPERSEDED_BY) == job.id]
        with suppress(ValueError):  # a job whose stored file is damaged has no answers to take over
            return [of.id for of in earlier if self._backends.models(of) == self._backends.models(job)]
        return []

    def _give_up_late(self, job: Job, of: Job, deadline: datetime) -> int:
        """Stop waiting if waiting would miss the deadline and asking again would keep it. Return the number of
        changes.

        If this job supersedes the other job, the other job is cancelled, which keeps its finished rows. Otherwise the
        waiting rows are released.
        """
        now = self._now()
        if of.cancel_requested_at is not None or self._looked.get(job.id, now) > now:
            return 0
        self._looked[job.id] = now + LOOK
        shards = self._store.awaited.shards_of(job.id, of.id)
        due = [expected_at(self._store, of.id, shard) for shard in shards]
        last = max((at for at in due if at is not None), default=None)
        if last is None or now < last <= deadline:
            return 0
        planning: Planning = self._backends.planning(job)
        plan = planning.with_work(self._store.sizes.open_work(job.id, awaiting=True)).plan()
        if not plan.verdict.holds or plan.done_p95 is None:
            return 0
        if last <= deadline and plan.done_p95 + SLACK < deadline:
            return 0
        under_way = {self._store.shards.get(shard).backend for shard in shards}
        if {route.backend for route in plan.routes} <= under_way & self._backends.config.hosted:
            return 0  # a new batch at this backend would end no sooner
        why = f"they are not expected before {deadline:%Y-%m-%d %H:%M} UTC"
        next_job = successor(self._store, of)
        if next_job is None or next_job.id != job.id:
            return self._release(job, self._store.awaited.of_source(job.id, of.id), why)
        reason = f"superseded by job {job.id}, which needs its rows earlier: {why}"
        return int(self._store.jobs.request_cancel(of.id, CancelCode.SUPERSEDED, reason, now))


def _may_take_over(one: AwaitedEnd, asked: Asked, *, is_same_file: bool) -> bool:
    answer = one.answer
    assert answer is not None, "there is one"
    is_run = is_same_file and answer.fingerprint == one.fingerprint
    if answer.state is RequestState.FAILED:
        return is_run and not is_passing(answer.error_code)
    if one.is_shown_fault and not is_run:
        return False
    return may_take(answer, asked, one.model, caches=one.caches or is_run)
