"""What a plan asks for: rows to send, batches to take back, and when to look again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orchestrator.core.model import Forecast
from orchestrator.core.shards import Shard


@dataclass(frozen=True, slots=True)
class Sending:
    """Up to `rows` waiting rows that go to a backend, those that keep away from `avoid`; and why.

    `avoid` names backends, none for rows that may go anywhere. With `canary`, only rows that go before the others; a
    `probe` measures a route long unused.
    """

    rows: int
    backend: str
    avoid: tuple[str, ...]
    reason: str
    canary: bool = False
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Orders:
    """What to do with a job's open rows now: shards to reroute, then rows to send. Look again at `next_look`."""

    reroutes: tuple[Shard, ...]
    sends: tuple[Sending, ...]
    reason: str
    next_look: datetime


@dataclass(frozen=True, slots=True)
class First:
    """The orders for rows that go before the others, and what they are to cost."""

    orders: Orders
    foreseen: tuple[Forecast, ...]
