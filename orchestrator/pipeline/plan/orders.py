"""Orders of a plan: rows to send, batches to reroute, and when to plan again."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from orchestrator.core.model import Forecast
from orchestrator.core.shards import Shard


class Sending(Struct, frozen=True):
    """An order to send up to `rows` waiting rows to a backend, with the reason.

    These rows avoid the backends in `avoid`, which is empty if they may go anywhere. With `canary`, only canary rows
    go. A `probe` measures a route that was not used for long. `only` has the aliases of the rows; None: any.
    """

    rows: int
    backend: str
    avoid: tuple[str, ...]
    reason: str
    canary: bool = False
    probe: bool = False
    only: frozenset[str] | None = None


class Orders(Struct, frozen=True):
    """Orders for a job's open rows: shards to reroute, then rows to send. Plan again at `next_look`.

    From `gives_up_at` on, cancelled batches that have not ended are no longer waited for.
    """

    reroutes: tuple[Shard, ...]
    sends: tuple[Sending, ...]
    reason: str
    next_look: datetime
    gives_up_at: datetime | None = None


class First(Struct, frozen=True):
    """The orders for canary rows, and their forecast cost."""

    orders: Orders
    foreseen: tuple[Forecast, ...]
