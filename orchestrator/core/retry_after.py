"""The waiting time that an HTTP response requests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isnan

LONGEST_TEXT = 200


def retry_after(header: Callable[[str], str | None], now: datetime, *, most: float) -> float | None:
    """Return the seconds to wait by `retry-after-ms` or `Retry-After` (seconds, or a date), from 0 to `most`.

    A date counts from the response's own date, or from `now` (aware) if it has none. Returns None if neither header
    is readable. Never raises.
    """
    for name, seconds in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (number := _number(header(name))) is not None:
            return min(number * seconds, most)
    if (until := date_of(header("retry-after"))) is None:
        return None
    return min(max(0.0, (until - (date_of(header("date")) or now)).total_seconds()), most)


def _number(text: str | None) -> float | None:
    """Parse a number of at least 0. Return None for anything else, including negative numbers."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return None if isnan(number) or number < 0 else number


def date_of(text: str | None) -> datetime | None:
    """Parse an HTTP date as aware UTC; None if it is missing, invalid or outside the calendar."""
    if text is None or len(text) > LONGEST_TEXT:
        return None
    try:
        at = parsedate_to_datetime(text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
