"""A job's canary: a few rows are sent first, and the other rows only if the canary rows succeed.

The build marks the canary rows. While rows are marked, only marked rows are sent. Their outcomes are read from the
store each time, so a kill at any point changes nothing. Removing the marks releases the other rows.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from orchestrator.core.counts import number_of, number_that
from orchestrator.core.events import EventKind
from orchestrator.core.model import CancelCode, Job
from orchestrator.core.shards import ShardState
from orchestrator.pipeline.plan.orders import Orders
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.policy import canary
from orchestrator.settings.job_spec import Canary
from orchestrator.settings.stored_spec import spec_of
from orchestrator.store import Store


class Stage(StrEnum):
    NONE = "none"  # the job has no canary, or the other rows already follow
    RUNS = "runs"  # only canary rows are sent
    FOLLOWS = "follows"  # the other rows follow from now on
    STOPPED = "stopped"  # the canary failed: the job ends


def mark(store: Store, job: Job, now: datetime) -> None:
    """Mark the canary rows if the job file asks for a canary. The build calls this."""
    if (wanted := _wanted(job)) is None:
        return
    rows = store.canary.mark(job.id, wanted.rows)
    skipped = f"skipped: no more than {number_of(wanted.rows, 'row')}"
    told = f"{number_that(rows, 'row', 'go')} first" if rows else skipped
    store.jobs.note(job.id, EventKind.CANARY, told, now)


def look(store: Store, job: Job, now: datetime) -> Stage:
    """Judge the canary once all of its rows have an outcome, then stop the job or release the other rows."""
    wanted = _wanted(job)
    if wanted is None or (found := store.canary.state(job.id)) is None:
        return Stage.NONE
    still, rows, failed = found
    limits = canary.CanaryLimits(wanted.max_failed, wanted.max_cost)
    if still:
        # While the canary runs, nothing else is sent, so rows that fail now are canary rows.
        verdict = canary.judge(canary.CanaryFigures(rows, failed + _failing(store, job), Decimal(0), None), limits)
        if not verdict.passed:
            return _stop(store, job, verdict.reason, now)
        by = canary.until(job.built_at or job.created_at, job.deadline_at)
        if by is None or now < by:
            return Stage.RUNS
        _leave_out(store, job, f"{still:,} of {number_of(rows, 'row')} not back by {by:%H:%M} UTC", now)
        return Stage.FOLLOWS
    cost = store.ledger.spent(job.id)
    seen = canary.CanaryFigures(rows, failed, cost, store.canary.foreseen(job.id))
    verdict = canary.judge(seen, limits)
    store.forecasts.settled(job.id, canary.KIND, float(cost), now)
    if verdict.passed:
        store.jobs.note(job.id, EventKind.CANARY, f"{verdict.reason}: the others follow", now)
        store.canary.all_follow(job.id)
        return Stage.FOLLOWS
    return _stop(store, job, verdict.reason, now)


def _stop(store: Store, job: Job, reason: str, now: datetime) -> Stage:
    if store.jobs.request_cancel(job.id, CancelCode.CANARY, reason, now):
        store.jobs.note(job.id, EventKind.STOPPED, reason, now, code=CancelCode.CANARY)
    return Stage.STOPPED


def _failing(store: Store, job: Job) -> Counter[str]:
    found: Counter[str] = Counter()
    for shard in store.shards.of_job(job.id):
        if shard.state is ShardState.SUBMITTED:
            for codes in (shard.failing or {}).values():
                found.update(codes)
    return found


def orders(store: Store, job: Job, planning: Planning, now: datetime) -> Orders | None:
    """Return the orders for canary rows. If the canary would end too late, release the other rows and return None."""
    by = canary.until(job.built_at or job.created_at, job.deadline_at)
    found = planning.of_canary().first(by)
    if isinstance(found, str):
        _leave_out(store, job, found, now)
        return None
    store.forecasts.made(found.foreseen)
    return found.orders


def _leave_out(store: Store, job: Job, why: str, now: datetime) -> None:
    store.jobs.note(job.id, EventKind.CANARY, f"skipped: {why}; the other rows follow without it", now)
    store.canary.all_follow(job.id)


def _wanted(job: Job) -> Canary | None:
    spec = spec_of(job)
    return None if spec is None else spec.canary
