"""A home's record of the spans sent to its receiver. The next daemon continues from this record."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from orchestrator.core.atomic import durable
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.json_decoders import json_decoder
from orchestrator.settings.home import Home

Instant = Annotated[datetime, Meta(tz=True)]
OVERLAP = timedelta(minutes=10)
"""Time for which settled items are remembered by key: an item may be committed shortly after its recorded end."""


class SentLog(Struct, frozen=True):
    """The log of sent work. All items that ended before `since` are settled: sent or dropped.

    `ends` has the settled items that ended later, with their end times. `sent` and `dropped` count spans. `failing`
    is why the receiver accepts nothing now, or None.
    """

    since: Instant
    ends: Mapping[str, Instant] = field(default_factory=dict)
    sent: int = 0
    dropped: int = 0
    failing: str | None = None

    def with_ended(self, key: str, at: datetime, *, sent: int = 0, dropped: int = 0) -> SentLog:
        ends = {**self.ends, key: at}
        return replace(self, ends=ends, sent=self.sent + sent, dropped=self.dropped + dropped)

    def settled(self, until: datetime) -> SentLog:
        """Return the log with all items settled that ended at least OVERLAP before `until`."""
        since = max(self.since, until - OVERLAP)
        return replace(self, since=since, ends={key: at for key, at in self.ends.items() if at >= since})


_decode = json_decoder(SentLog).decode


def read(home: Home) -> SentLog | None:
    """Return the log, or None if it is missing or unreadable."""
    try:
        return _decode(home.telemetry.read_bytes())
    except (OSError, *JSON_ERRORS):
        return None


def write(home: Home, log: SentLog) -> None:
    with durable(home.telemetry) as file:
        file.write(msgspec.json.encode(log))
