"""Formatting and parsing of durations and dates, and random variation of waiting times."""

from __future__ import annotations

import random
import re
from datetime import date, datetime

MINUTE, HOUR, DAY = 60, 3600, 86_400
SPREAD = 0.2
_UNITS = {"s": 1, "m": MINUTE, "h": HOUR, "d": DAY}
_LENGTH = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([smhd])", re.ASCII)
_WINDOW = re.compile(r"([1-9]\d{0,6})([smhd])", re.ASCII)


def seconds_of(text: str) -> float | None:
    """Parse a duration as people write it (`90m`, `1.5 h`, `2d`) into seconds, or return None."""
    found = _LENGTH.fullmatch(text)
    return float(found[1]) * _UNITS[found[2]] if found else None


def window_seconds(text: str) -> int | None:
    """Parse a window as the Batch API writes it (`24h`, `30m`, `7d`) into seconds, or return None."""
    found = _WINDOW.fullmatch(text)
    return int(found[1]) * _UNITS[found[2]] if found else None


def duration(seconds: float) -> str:
    """Format a duration with at most two units: `41 s`, `3 min 20 s`, `41 min`, `1 h 10 min`, `24 h`, `7 d`."""
    whole = max(0, round(seconds))
    if whole < MINUTE:
        return f"{whole} s"
    if whole < 10 * MINUTE:
        return _two(whole, MINUTE, "min", 1, "s")
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    # A batch window is called 24 h, not 1 d.
    if whole < 2 * DAY:
        return _two(whole, HOUR, "h", MINUTE, "min")
    return _two(whole, DAY, "d", HOUR, "h")


def _two(whole: int, large: int, name: str, small: int, small_name: str) -> str:
    rest = whole % large // small
    return f"{whole // large} {name}" + (f" {rest} {small_name}" if rest else "")


def pace_words(per_second: float) -> str:
    """Format a rate per second, minute or hour: the first unit with at least one row, else the hour.

    Examples: `12.5 rows/s`, `3.0 rows/min`, `1.0 rows/h`.
    """
    if not per_second:
        return "0 rows/s"
    for unit, seconds in (("s", 1), ("min", MINUTE)):
        if per_second * seconds >= 1:
            return f"{per_second * seconds:,.1f} rows/{unit}"
    return f"{per_second * HOUR:,.1f} rows/h"


def spread(seconds: float, seed: str) -> float:
    """Return a duration up to a fifth shorter or longer; the same seed gives the same result."""
    return seconds * random.Random(seed).uniform(1 - SPREAD, 1 + SPREAD)


def day_words(day: date) -> str:
    """Format a day: `Sat 2026-11-21`."""
    return f"{day:%a %Y-%m-%d}"


def moment_words(at: datetime) -> str:
    """Format a time in this machine's time zone: `Sun 2026-11-22 06:00 CET`."""
    return f"{at.astimezone():%a %Y-%m-%d %H:%M %Z}"


def span_words(first: date, last: date) -> str:
    """Format the range of days from `first` to `last`."""
    return day_words(first) if first == last else f"{day_words(first)} to {day_words(last)}"
