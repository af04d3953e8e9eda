"""Rows that come back from cancelled batches, as those see it who share an option with them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from orchestrator.policy.planner.planning_problem import capacity_of, objection
from orchestrator.policy.planner.types import Open, Option, SynchronousOption, Terms

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
