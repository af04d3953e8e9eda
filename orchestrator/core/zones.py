"""Time zones by name, and their offsets from UTC."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from orchestrator.core.errors import InputError

_STEP = timedelta(days=1)
_EXACT = timedelta(seconds=1)


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by name. Raises InputError if no time zone has that name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # CEST and PST are not zones, and zones with similar names would be wrong suggestions.
        near = [] if name.isupper() else get_close_matches(name, available_timezones(), 1)
        tip = f"did you mean {near[0]}?" if near else "write one such as Europe/Berlin or UTC"
        raise InputError(f"{name!r} is not a time zone; {tip}") from None


def utc_offsets(zone: tzinfo | None, first: datetime, last: datetime) -> Iterator[tuple[datetime, timedelta]]:
    """Yield a zone's UTC offsets from `first` to `last`, each with the instant at which it ends.

    The last offset ends after `last`. If `zone` is None, this machine's zone is used. Assumes that clocks change at
    most once a day.
    """
    at = first.astimezone(UTC)
    while at <= last:
        after = at + _STEP
        if _offset(after, zone) != _offset(at, zone) or after > last:
            end = _change(at, after, zone)
            yield end, _offset(at, zone)
            at = end
        else:
            at = after


def _change(before: datetime, after: datetime, zone: tzinfo | None) -> datetime:
    offset = _offset(after, zone)
    if _offset(before, zone) == offset:
        return after
    while after - before > _EXACT:
        middle = before + (after - before) / 2
        if _offset(middle, zone) == offset:
            after = middle
        else:
            before = middle
    return after.replace(microsecond=0)


def _offset(at: datetime, zone: tzinfo | None) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta(0)
