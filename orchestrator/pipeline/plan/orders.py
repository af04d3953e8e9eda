"""Orders for a job's open rows: rows to send, batches to reroute, and when to plan again."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from orchestrator.core.model import Forecast
from orchestrator.core.shards import Shard


class Sending(Struct, frozen=True):
    """An order to send up to `rows` waiting rows to a backend, with the reason.

    The order is for rows that avoid exactly the backends in `avoid`. With `canary`, only canary rows are sent. A
    `probe` measures a backend that has not been used for a long time. `only` limits the order to rows of these
    aliases; None means any alias.
    """

    rows: int
    backend: str
    avoid: tuple[str, ...]
    reason: str
    canary: bool = False
    probe: bool = False
    only: frozenset[str] | None = None


class Orders(Struct, frozen=True):
    """Orders for a job's open rows: first reroute shards, then send rows. Plan again at `next_look`.

    From `gives_up_at`, orch stops waiting for cancelled batches that have not ended.
    """

    reroutes: tuple[Shard, ...]
    sends: tuple[Sending, ...]
    reason: str
    next_look: datetime
    gives_up_at: datetime | None = None


class First(Struct, frozen=True):
    """Orders for canary rows, with their forecast cost."""

    orders: Orders
    foreseen: tuple[Forecast, ...]
