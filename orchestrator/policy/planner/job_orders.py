"""A job's open rows by place, and conversion of a decision into orders for shards. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from orchestrator.core.shards import AHEAD, Shard, ShardState
from orchestrator.policy.planner.observations import silent_since
from orchestrator.policy.planner.planning_problem import capacity_of, objection
from orchestrator.policy.planner.stints import unfinished, waits_for_answers
from orchestrator.policy.planner.types import (
    MAX_PROBE_SHARE,
    PROBE_ROWS,
    Claim,
    Cost,
    Decision,
    Open,
    Option,
    Running,
    SynchronousOption,
    Terms,
)

OVERDUE_SHARE = 0.5
"""Minimum further time that a cancel is expected to take, as a share of the time that it has taken so far."""
SENT_TOGETHER = timedelta(minutes=1)
"""Shards created at most this far apart count as sent by one decision."""
MIN_WANTED_SHARE = 0.05
"""A shard moves, always as a whole, if at least this share of its rows is wanted elsewhere."""


def locate_rows(
    shards: Sequence[Shard],
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
    """Return a job's open rows by place.

    `rows` counts the open rows of each shard. `synchronous` names the backends that answer row by row. `cancel` maps
    a backend to the seconds until the rows of a cancelled batch are free (95 %).
    """
    running: list[Running] = []
    held: dict[str, int] = {}
    coming, coming_at, coming_done, is_late = 0, None, 0, False
    left_backends = sorted({one.backend for one in shards if one.rerouted_at and one.backend not in synchronous})
    for shard in shards:
        open_rows = rows.get(shard.id, 0)
        left = unfinished(shard, open_rows)
        if shard.state is ShardState.SUBMITTED and shard.backend not in synchronous:
            if silent_since(shard, now) is not None:
                left = open_rows  # a provider that does not answer names no files: its done rows may be needed too
            elif not left:
                left = min(1, open_rows)  # all rows are counted as done, but the batch has not ended and has no files
        if not left:
            continue
        if shard.rerouted_at is not None:
            coming, coming_done = coming + left, coming_done + open_rows - left
            planned = cancel.get(shard.backend, 0.0)
            is_late = is_late or (now - shard.rerouted_at).total_seconds() > planned
            back = _free_at(shard.rerouted_at, planned, now)
            coming_at = back if coming_at is None else max(coming_at, back)
        elif shard.backend in synchronous:
            held[shard.backend] = held.get(shard.backend, 0) + left
        else:
            is_over = waits_for_answers(shard)
            is_probe = _is_probe(shard, shards)
            sent_at, has_begun = shard.submitted_at or now, shard.first_at is not None
            running.append(Running(shard.id, shard.backend, left, sent_at, is_over, is_probe, has_begun))
    return Open(
        waiting, rerouted, coming, coming_at, tuple(running), tuple(held.items()), later, claims, later_cost, is_late,
        coming_done, tuple(left_backends),
    )  # fmt: skip


def _is_probe(shard: Shard, shards: Sequence[Shard]) -> bool:
    """Return True for a small shard that was sent together with far more rows to other backends."""
    if shard.rows > PROBE_ROWS:
        return False
    beside = (
        one.rows for one in shards
        if one.backend != shard.backend and abs(one.created_at - shard.created_at) <= SENT_TOGETHER
    )  # fmt: skip
    return shard.rows <= MAX_PROBE_SHARE * (shard.rows + sum(beside))


def _free_at(rerouted_at: datetime, longest: float, now: datetime) -> datetime:
    """Return when rerouted rows are free: `longest` seconds after `rerouted_at`.

    The time from now is at least `OVERDUE_SHARE` of the time since `rerouted_at`, because a cancel may be overdue.
    """
    since = (now - rerouted_at).total_seconds()
    return now + timedelta(seconds=max(longest - since, OVERDUE_SHARE * since))


def to_reroute(decision: Decision, shards: Sequence[Shard]) -> tuple[Shard, ...]:
    """Return the shards to reroute.

    These are the batches that the decision cancels, and the newest shards at each option that loses rows.
    """
    wanted: dict[str, int] = {}
    for send in decision.sends:
        if send.source is not None:
            wanted[send.source] = wanted.get(send.source, 0) + send.rows
    reroutes = []
    for shard in sorted(shards, key=lambda one: -one.number):
        left, rows = wanted.get(shard.backend, 0), unfinished(shard, shard.rows)
        if shard.rerouted_at is not None or not (shard.state in AHEAD or waits_for_answers(shard)):
            continue
        if shard.id in decision.cancel or 0 < rows * MIN_WANTED_SHARE <= left:
            wanted[shard.backend] = left - rows
            reroutes.append(shard)
    return tuple(reroutes)


EARLY_RETURN = 0.3
"""Share of the longest expected time after which cancelled rows return if they return early."""


def returning_rows(job: Open, options: Sequence[Option], terms: Terms, now: datetime) -> dict[str, int]:
    """Return the number of rows that each option will get from batches being cancelled, cheapest option first."""
    usable = [option for option in options if objection(option, terms) is None]
    ours = capacity_of(usable, terms, now, job.later, job.claims)
    if not job.coming or not ours.sync_options:
        return {}
    synchronous = dict(job.synchronous)
    held = tuple(synchronous.get(sync.option.backend, 0) for sync in ours.sync_options)
    room = ours.room(held, _seconds_until_free(job, now), len(held), sure=False)
    filled = ours.fill(job.coming, room)
    return {sync.option.backend: rows for sync, rows in zip(ours.sync_options, filled, strict=True) if rows}


def seconds_beside(option: SynchronousOption, rows: int, back: int, job: Open, now: datetime, chance: float) -> float:
    """Return the quantile at `chance` of the seconds until an option has done `rows` rows.

    In the meantime, `back` rows may arrive from cancelled batches. They are assumed to arrive early for a quantile
    above the median, otherwise late.
    """
    alone = option.pace.seconds_for(rows, chance)
    arrival = _seconds_until_free(job, now) * (EARLY_RETURN if chance > 0.5 else 1.0)
    return option.pace.seconds_for(rows + back, chance) if back and arrival < alone else alone


def _seconds_until_free(job: Open, now: datetime) -> float:
    return 0.0 if job.coming_at is None else max(0.0, (job.coming_at - now).total_seconds())
