"""Orders of a plan: rows to send, batches to reroute, and when to plan again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orchestrator.core.model import Forecast
from orchestrator.core.shards import Shard


@dataclass(frozen=True, slots=True)
class Sending:
    """Up to `rows` waiting rows that avoid `avoid` go to a backend, with the reason.

    `avoid` names backends; it is empty for rows that may go anywhere. With `canary`, only canary rows go. A `probe`
    measures a route long unused.
    """

    rows: int
    backend: str
    avoid: tuple[str, ...]
    reason: str
    canary: bool = False
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders for a job's open rows: shards to reroute, then rows to send. Plan again at `next_look`."""

    reroutes: tuple[Shard, ...]
    sends: tuple[Sending, ...]
    reason: str
    next_look: datetime


@dataclass(frozen=True, slots=True)
class First:
    """The orders for canary rows, and their forecast cost."""

    orders: Orders
    foreseen: tuple[Forecast, ...]
