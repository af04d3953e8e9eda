"""The clock of the whole program. Tests and simulations set it to run through other nights.

`ORCH_NOW` (an ISO time) sets the time at which the process starts; from there the clock runs normally. `ORCH_CLOCK`
names a file that several processes share and that may change while they run. Its `{"at": ISO time, "since": Unix
seconds, "speed": factor}` means `at + (Unix time now - since) x speed`.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, date, datetime, timedelta, tzinfo

from orchestrator.core.errors import InputError

_STARTED = time.monotonic()
NOON = 12
"""Hour at which a night ends and the next one begins."""


def now() -> datetime:
    """Return the time in UTC. Raises InputError if ORCH_NOW or ORCH_CLOCK is invalid."""
    if (shared := os.environ.get("ORCH_CLOCK")) is not None:
        return _shared(shared)
    fixed = os.environ.get("ORCH_NOW")
    if fixed is None:
        return datetime.now(UTC)
    try:
        return _utc(fixed) + timedelta(seconds=time.monotonic() - _STARTED)
    except (ValueError, OverflowError):
        raise InputError(f"{fixed!r} is not a time such as 2026-12-01T06:00+01:00", field="ORCH_NOW") from None


def day(at: datetime) -> str:
    """Format a day in this machine's time zone: `Mon 9 Nov`."""
    here = at.astimezone()
    return f"{here:%a} {here.day} {here:%b}"


def night_of(at: datetime, zone: tzinfo | None = None) -> date:
    """Return the date of the night that contains a moment: the day on which that night began.

    A night lasts from noon to noon, in `zone` or this machine's time zone.
    """
    here = at.astimezone(zone)
    return here.date() if here.hour >= NOON else here.date() - timedelta(days=1)


def iso(at: datetime | None) -> str | None:
    """Format a time for JSON, to the second; None stays None."""
    return None if at is None else at.isoformat(timespec="seconds")


def _shared(path: str) -> datetime:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (a third of the time of a Path's)
            told = json.loads(file.read())
        return _utc(told["at"]) + timedelta(seconds=(time.time() - told["since"]) * told["speed"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise InputError(f"{path} holds no clock: {error}", field="ORCH_CLOCK") from None


def _utc(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
