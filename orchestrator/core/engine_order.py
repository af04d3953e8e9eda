"""The order in which an engine takes rows, shared by planner and server so that forecasts are right."""

from __future__ import annotations

from datetime import datetime, timedelta

DAY = timedelta(days=1)


def due_at(deadline: datetime | None, now: datetime) -> datetime:
    """Return when rows are due: at their deadline, or a day from now if it is missing or has passed."""
    return now + DAY if deadline is None or deadline <= now else deadline


def turn(due: float, made: float) -> tuple[float, float]:
    """Return a row's place in the order: by due time, then by creation time."""
    return due, made
