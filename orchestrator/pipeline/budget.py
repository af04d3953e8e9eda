"""A job's budget as a hard cap: what is spent and what is in flight never come to more.

What upstreams cost by the hour shows while they run, so a job is stopped in time. What is paid by the token is
bounded before it is sent: by its prompts, with a margin for our estimate of them, and by the most that its answers
may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

from orchestrator.errors import RefusedError
from orchestrator.model import Job, Shard, ShardState, Usage
from orchestrator.pipeline.lanes import Lane

# Between two looks at a batch and the last row that it still ends, no more than this passes.
REACTION_SECONDS = 2.0
MARGIN = Decimal("1.5")
"""Prompts are estimated; no text that people write has half as many tokens again."""
_AHEAD = (ShardState.PENDING, ShardState.SUBMITTING, ShardState.SUBMITTED)
_UNBOOKED = (ShardState.SUBMITTED, ShardState.ENDED)
_AT_BACKEND = (ShardState.SUBMITTING, ShardState.SUBMITTED, ShardState.ENDED)

LaneOf = Callable[[Shard], Lane]
ModelOf = Callable[[Job, Shard], str]


def used_up(job: Job, shards: Sequence[Shard], booked: Decimal, lane_of: LaneOf) -> str | None:
    """Why a job has to be stopped now, None where it may go on: stopping costs what the upstreams do until then."""
    if job.budget is None or job.cancel_requested_at is not None:
        return None
    lanes = {shard.backend: lane_of(shard) for shard in shards if shard.state in _AHEAD}
    spent = booked + _by_time((shard for shard in shards if shard.state in _UNBOOKED), lane_of)
    ahead = sum((lane.price.of_time(REACTION_SECONDS * lane.upstreams).cost for lane in lanes.values()), Decimal(0))
    if not ahead or spent + ahead < job.budget:
        return None
    return f"budget of ${job.budget:f} reached: ${spent:.4f} spent, stopping costs up to ${ahead:.4f}"


def no_room(
    job: Job, shard: Shard, others: Sequence[Shard], booked: Decimal, lane_of: LaneOf, model_of: ModelOf
) -> str | None:
    """Why a shard does not fit into what is left of the budget yet; None where it may be sent.

    Raises RefusedError where it never will.
    """
    if job.budget is None or (wanted := _at_most(job, shard, lane_of, model_of)) is None:
        return None
    flying = [other for other in others if other.state in _AT_BACKEND]
    bounds = [_at_most(job, other, lane_of, model_of) or Decimal(0) for other in flying]
    in_flight = sum(bounds, _by_time(flying, lane_of))
    if booked + in_flight + wanted <= job.budget:
        return None
    told = f"this batch may cost up to ${wanted:.4f}, and of the budget of ${job.budget:f} ${booked:.4f} are spent"
    if in_flight:
        return f"{told} and up to ${in_flight:.4f} in flight"
    raise RefusedError(
        f"job {job.id}: {told}",
        hint="give a larger budget, a lower max_tokens, or smaller batches (`limits` of the backend in orch.toml)",
    )


def _by_time(shards: Iterable[Shard], lane_of: LaneOf) -> Decimal:
    return sum((lane_of(shard).price.of_time(shard.provider_seconds).cost for shard in shards), Decimal(0))


def _at_most(job: Job, shard: Shard, lane_of: LaneOf, model_of: ModelOf) -> Decimal | None:
    """What a shard costs at most, in dollars; None where it is paid by the hour."""
    usage = Usage(input_tokens=int(shard.tokens * MARGIN), output_tokens=shard.max_output or 0)
    price = lane_of(shard).price.at_most(model_of(job, shard), usage)
    if price is None:
        return None
    if shard.max_output is None:
        raise RefusedError(
            f"job {job.id} has a budget, and rows whose answers have no bound",
            hint="give every row of the batch file a `max_tokens`, or run it without a budget",
        )
    return price.cost
