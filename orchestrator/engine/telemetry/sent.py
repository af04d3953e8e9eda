"""What of a home was sent to its receiver, kept in a file there: an engine that starts again goes on from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from orchestrator.core.atomic import durable
from orchestrator.settings.home import Home

OVERLAP = timedelta(minutes=10)
"""What was sent is remembered by name for so long: an end may be committed a moment after its time."""


@dataclass(frozen=True, slots=True)
class SentLog:
    """What ended before `since` is settled; of what ended later, `ends` has what was sent or dropped, and when.

    `sent` and `dropped` count spans. `failing` is why the receiver takes nothing now.
    """

    since: datetime
    ends: Mapping[str, datetime] = field(default_factory=dict)
    sent: int = 0
    dropped: int = 0
    failing: str | None = None

    def with_ended(self, key: str, at: datetime, *, sent: int = 0, dropped: int = 0) -> SentLog:
        """One more that is settled."""
        ends = {**self.ends, key: at}
        return replace(self, ends=ends, sent=self.sent + sent, dropped=self.dropped + dropped)

    def settled(self, until: datetime) -> SentLog:
        """Everything that ended before `until`, but for a while, is settled."""
        since = max(self.since, until - OVERLAP)
        return replace(self, since=since, ends={key: at for key, at in self.ends.items() if at >= since})


def read(home: Home) -> SentLog | None:
    """What is remembered; None where nothing is, or the file cannot be read."""
    try:
        found = json.loads(home.telemetry.read_text(encoding="utf-8"))
        ends = {str(key): _instant(at) for key, at in found["ends"].items()}
        failing = found["failing"]
        words = None if failing is None else str(failing)
        return SentLog(_instant(found["since"]), ends, int(found["sent"]), int(found["dropped"]), words)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(home: Home, log: SentLog) -> None:
    """Remember it. Raises OSError."""
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
