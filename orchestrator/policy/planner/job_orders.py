"""Where a job's rows are, by its shards; and a decision as orders: shards to reroute, rows to send. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from orchestrator.core.shards import AHEAD, Shard, ShardState
from orchestrator.policy.planner.stints import unfinished, waits_for_answers
from orchestrator.policy.planner.types import Claim, Cost, Decision, Open, Running

OVERDUE = 0.5
A_GOOD_PART = 0.05
"""A shard of an option goes as a whole, so only where this part of what is left of it is wanted elsewhere."""


def lying(
    shards: Iterable[Shard],
    rows: Mapping[str, int],
    synchronous: Collection[str],
    cancel: Mapping[str, float],
    now: datetime,
    *,
    waiting: int,
    rerouted: int,
    later: int = 0,
    claims: tuple[Claim, ...] = (),
    later_cost: Cost | None = None,
) -> Open:
    """A job's open rows and where they are: `rows` by shard, those in `synchronous` backends at options.

    `cancel` says how many seconds it takes at the longest until the rows of a cancelled batch are free.
    """
    running: list[Running] = []
    held: dict[str, int] = {}
    coming, coming_at = 0, None
    for shard in shards:
        open_rows = rows.get(shard.id, 0)
        left = unfinished(shard, open_rows)
        if not left and shard.state is ShardState.SUBMITTED and shard.backend not in synchronous:
            left = min(1, open_rows)  # a batch that counts all rows as done is not over yet, nor are its files there
        if not left:
            continue
        if shard.rerouted_at is not None:
            coming += left
            back = _back(shard.rerouted_at, cancel.get(shard.backend, 0.0), now)
            coming_at = back if coming_at is None else max(coming_at, back)
        elif shard.backend in synchronous:
            held[shard.backend] = held.get(shard.backend, 0) + left
        else:
            is_over = waits_for_answers(shard)
            running.append(Running(shard.id, shard.backend, left, shard.submitted_at or now, is_over))
    return Open(waiting, rerouted, coming, coming_at, tuple(running), tuple(held.items()), later, claims, later_cost)


def _back(rerouted_at: datetime, longest: float, now: datetime) -> datetime:
    """When what was rerouted is free; what takes longer than ever may take half as long again."""
    since = (now - rerouted_at).total_seconds()
    return now + timedelta(seconds=max(longest - since, OVERDUE * since))


def to_reroute(found: Decision, shards: Sequence[Shard]) -> tuple[Shard, ...]:
    """The shards that a decision reroutes: the batches named, and of an option the newest that hold as many rows."""
    wanted: dict[str, int] = {}
    for send in found.sends:
        if send.source is not None:
            wanted[send.source] = wanted.get(send.source, 0) + send.rows
    reroutes = []
    for shard in sorted(shards, key=lambda one: -one.number):
        left, rows = wanted.get(shard.backend, 0), unfinished(shard, shard.rows)
        if shard.rerouted_at is not None or not (shard.state in AHEAD or waits_for_answers(shard)):
            continue
        if shard.id in found.cancel or 0 < rows * A_GOOD_PART <= left:
            wanted[shard.backend] = left - rows
            reroutes.append(shard)
    return tuple(reroutes)
