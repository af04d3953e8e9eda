"""Where a job's rows are, by its shards; and a decision as orders: shards to reroute, rows to send. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from orchestrator.core.shards import AHEAD, Shard, ShardState
from orchestrator.policy.planner.planning_problem import capacity_of, objection
from orchestrator.policy.planner.stints import unfinished, waits_for_answers
from orchestrator.policy.planner.types import Claim, Cost, Decision, Open, Option, Running, SynchronousOption, Terms

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


SOONEST = 0.3
"""Rows on their way back are there after this part of the longest time, where they come soon."""


def returning(job: Open, options: Sequence[Option], terms: Terms, now: datetime) -> dict[str, int]:
    """By option, the rows that will come there from batches that are being cancelled: the cheapest first."""
    usable = [option for option in options if objection(option, terms) is None]
    ours = capacity_of(usable, terms, now, job.later, job.claims)
    if not job.coming or not ours.sync_options:
        return {}
    synchronous = dict(job.synchronous)
    held = tuple(synchronous.get(sync.option.backend, 0) for sync in ours.sync_options)
    room = ours.room(held, _longest(job, now), len(held), sure=False)
    filled = ours.fill(job.coming, room)
    return {sync.option.backend: rows for sync, rows in zip(ours.sync_options, filled, strict=True) if rows}


def seconds_beside(option: SynchronousOption, rows: int, back: int, job: Open, now: datetime, chance: float) -> float:
    """Seconds until an option is done with so many rows where `back` others come to it from cancelled batches.

    They count where they come before it is done: for a sure figure as soon as may be, else as late.
    """
    alone = option.pace.seconds_for(rows, chance)
    comes = _longest(job, now) * (SOONEST if chance > 0.5 else 1.0)
    return option.pace.seconds_for(rows + back, chance) if back and comes < alone else alone


def _longest(job: Open, now: datetime) -> float:
    return 0.0 if job.coming_at is None else max(0.0, (job.coming_at - now).total_seconds())
