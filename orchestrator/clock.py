"""The one clock. `ORCH_NOW` (an ISO time) sets where it starts, so that a test can live through other nights."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta

from orchestrator.errors import InputError

_STARTED = time.monotonic()


def now() -> datetime:
    """The time, in UTC; with `ORCH_NOW` set, that time plus what has passed since this process began.

    Raises InputError where ORCH_NOW is no time.
    """
    fixed = os.environ.get("ORCH_NOW")
    if fixed is None:
        return datetime.now(UTC)
    try:
        start = datetime.fromisoformat(fixed)
        start = start.astimezone(UTC) if start.tzinfo else start.replace(tzinfo=UTC)
        return start + timedelta(seconds=time.monotonic() - _STARTED)
    except (ValueError, OverflowError):
        raise InputError(f"{fixed!r} is no time such as 2026-12-01T06:00+01:00", field="ORCH_NOW") from None
