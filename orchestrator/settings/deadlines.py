"""Parser of the deadlines that users write."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from orchestrator.core.durations import seconds_of


def deadline_at(text: str, now: datetime) -> datetime:
    """Return the deadline `text` as a time in UTC.

    `8h` counts from `now`; `06:00` is the next 06:00 in local time; an ISO time without a zone is local. Raises
    ValueError with a sentence for the user.
    """
    try:
        return _instant(text, now)
    except OverflowError:
        raise ValueError(f"{text!r} is too far away") from None


def _instant(text: str, now: datetime) -> datetime:
    if (seconds := seconds_of(text)) is not None:
        return now + timedelta(seconds=seconds)
    if clock := re.fullmatch(r"(\d{1,2}):(\d{2})", text):
        return _next_time(text, int(clock[1]), int(clock[2]), now)
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise ValueError(f"{text!r} is not a deadline; write 8h, 90m, 06:00 or 2026-12-01T06:00+01:00") from None


def _next_time(text: str, hour: int, minute: int, now: datetime) -> datetime:
    local = now.astimezone().replace(tzinfo=None)
    try:
        today = local.replace(hour=hour, minute=minute, second=0, microsecond=0)
    except ValueError:
        raise ValueError(f"{text!r} is not a time of day; write 00:00 to 23:59") from None
    # The day is added before the zone, so 06:00 stays 06:00 in the night when clocks change. `fold` selects the
    # second occurrence of an hour that clocks show twice when they are set back.
    days = (today, today + timedelta(days=1))
    times = (day.replace(fold=fold).astimezone(UTC) for day in days for fold in (0, 1))
    return next(at for at in times if at > now)
