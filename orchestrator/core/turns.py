"""Whose rows an engine does first. The planner and the server ask this alike, so what a plan counts on happens."""

from __future__ import annotations

from datetime import datetime, timedelta

DAY = timedelta(days=1)


def due_at(deadline: datetime | None, now: datetime) -> datetime:
    """Until when rows have to be done: a day from now where there is no deadline, or none any more."""
    return now + DAY if deadline is None or deadline <= now else deadline


def turn(due: float, made: float) -> tuple[float, float]:
    """The place in the order: what is due soonest, and of that what was made first."""
    return due, made
