"""Giving up the batches of a cancelled job whose backend is gone or does not answer. A person decides this."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

from orchestrator.core.counts import number_of
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job, Outcome, Price, RequestState
from orchestrator.core.money import money
from orchestrator.core.shards import AT_BACKEND, Shard, ShardState
from orchestrator.pipeline.collect import settling
from orchestrator.policy import row_errors
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import Settled


def abandon(
    store: Store,
    home: Home,
    job: Job,
    is_given_up: Callable[[Shard], bool],
    row_cost: Decimal | None,
    now: datetime,
) -> int:
    """End a cancelled job's batches without their backend, and return the number of their rows.

    The provider may continue a batch and bill it. So each row is booked at `row_cost` as an uncertain cost, which
    counts against budgets. If the backend returns in time, its batches are ended there, and late answers are booked
    at their own cost.
    """
    code, reason = row_errors.cancelled(job)
    price = Price(row_cost, "uncertain: the job's plan", estimated=True) if row_cost else None
    number = 0
    for shard in store.shards.of_job(job.id):
        if shard.state not in AT_BACKEND or not is_given_up(shard):
            continue
        seqs = [row.seq for row in store.rows.of_shard(shard.id)]
        ended = [Outcome(seq, RequestState.CANCELLED, error_code=code, error_message=reason) for seq in seqs]
        store.rows.settle(shard.id, job.id, shard.backend, [Settled(one, None, price) for one in ended], now)
        what = f"{shard.batch_id or 'a batch that may exist'} at {shard.backend}"
        told = f"{what} given up with {number_of(len(seqs), 'row')}; it may continue there and be billed"
        store.jobs.note(job.id, EventKind.CANCEL, told, now, shard.id)
        if shard.state is not ShardState.ENDED:
            store.shards.move(shard, ShardState.ENDED, ended_at=now, held=None)
        owed = 0 if shard.batch_id is None else len(seqs)
        settling.close(store, home, store.shards.get(shard.id), now, owed=owed)
        number += len(seqs)
    return number


def row_cost(store: Store, job: Job) -> Decimal | None:
    """Return the maximum cost of each unanswered row by the job's plan, or None if the plan gives none."""
    plan = next((one for one in store.forecasts.of_job(job.id) if one.kind == "cost"), None)
    counts = store.jobs.counts([job.id])[job.id]
    unanswered = counts.pending + counts.cancelled
    if plan is None or not unanswered:
        return None
    return max(Decimal(0), Decimal(str(plan.p95)) - store.ledger.spent(job.id)) / unanswered


def likely_cost(cost: Decimal | None, rows: int) -> str:
    return "an amount that its plan does not state" if cost is None else f"about {money(cost * rows)} by its plan"
