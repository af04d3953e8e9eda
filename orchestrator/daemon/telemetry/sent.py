"""A home's record of what was sent to its receiver: a daemon that starts again continues from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from orchestrator.core.atomic import durable
from orchestrator.settings.home import Home

OVERLAP = timedelta(minutes=10)
"""Time for which sent items are remembered by name: an end may be committed slightly after its time."""


class SentLog(Struct, frozen=True):
    """Sent work. Everything that ended before `since` is settled; `ends` has later items that were sent or dropped.

    `ends` maps them to their end times. `sent` and `dropped` count spans. `failing` is why the receiver accepts
    nothing now.
    """

    since: datetime
    ends: Mapping[str, datetime] = field(default_factory=dict)
    sent: int = 0
    dropped: int = 0
    failing: str | None = None

    def with_ended(self, key: str, at: datetime, *, sent: int = 0, dropped: int = 0) -> SentLog:
        """Return the log with another settled item."""
        ends = {**self.ends, key: at}
        return replace(self, ends=ends, sent=self.sent + sent, dropped=self.dropped + dropped)

    def settled(self, until: datetime) -> SentLog:
        """Return the log with everything settled that ended well before `until`."""
        since = max(self.since, until - OVERLAP)
        return replace(self, since=since, ends={key: at for key, at in self.ends.items() if at >= since})


def read(home: Home) -> SentLog | None:
    """Read the log; None if it is missing or unreadable."""
    try:
        found = json.loads(home.telemetry.read_text(encoding="utf-8"))
        ends = {str(key): _instant(at) for key, at in found["ends"].items()}
        failing = found["failing"]
        words = None if failing is None else str(failing)
        return SentLog(_instant(found["since"]), ends, int(found["sent"]), int(found["dropped"]), words)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(home: Home, log: SentLog) -> None:
    """Write the log. Raises OSError."""
    ends = {key: at.isoformat() for key, at in log.ends.items()}
    kept = {
        "since": log.since.isoformat(), "ends": ends, "sent": log.sent, "dropped": log.dropped,
        "failing": log.failing,
    }  # fmt: skip
    with durable(home.telemetry) as file:
        file.write(json.dumps(kept).encode())


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text} has no zone")
    return found
