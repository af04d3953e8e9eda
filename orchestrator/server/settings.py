"""The settings of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from orchestrator.core.client_limits import PATIENCE, ClientTimeouts
from orchestrator.server.memory_limits import BODY_MEMORY

MOST_IN_FLIGHT = 16_384


class Settings(Struct, frozen=True):
    """Sizes are in bytes, times in seconds. With `dispatch=False` the server serves and cancels, but sends no row.

    `max_queued_rows` bounds the waiting rows of all batches: a batch beyond it is refused with 429. `min_free_bytes`
    of disk stay free: below that the server accepts no data.
    """

    upstreams: Sequence[str]
    expected_models: Sequence[str] = ()
    """Models whose upstreams join and leave while the server runs; their rows wait for an upstream."""
    most_upstreams: int = 0
    """Maximum number of upstreams together, if they join on demand."""
    api_key: str | None = None
    request_timeout: float = 600.0
    retry_delay: float = 0.5
    max_concurrency: int = 1024
    most_in_flight: int = MOST_IN_FLIGHT
    """Maximum number of rows of one upstream in flight, including rows whose answers wait for room. Beyond
    `max_concurrency`, such rows leave their slots to other tenants."""
    measured_limits: Mapping[str, int] = field(default_factory=dict)
    """The best concurrency that a bench found for an upstream of each model, used as its first limit."""
    body_memory: int = BODY_MEMORY
    """Bytes of bodies in memory at once: of rows, of answers, and of requests passed through."""
    max_file_bytes: int = 512 * 1024 * 1024
    max_rows: int = 50_000
    dispatch: bool = True
    require_keys: bool = False
    max_queued_rows: int = 5_000_000
    min_free_bytes: int = 64 * 1024 * 1024
    webhook_url: str | None = None
    webhook_secret: str | None = None
    log_prompts: bool = False
    cost_per_hour: float | None = None
    """Cost of an hour of all upstreams together, from which /metrics computes the cost of a token."""
    stop_seconds: float = 0.0
    """Time that rows in flight may take at the end; rows that are cut off run again after the next start."""
    upkeep_seconds: float = 60.0
    """Interval between removals of expired files and uploads."""
    requests_per_minute: int | None = None
    """Limit of each upstream on requests; None to learn the limit from its headers, if they state one."""
    tokens_per_minute: int | None = None
    """Limit of each upstream on tokens of prompts and of the output that they may generate; None to learn it."""
    service_tier: str | None = None
    """Service tier to add to the body of each row that names no tier."""
    paid: bool = False
    """Upstreams bill each request: keep a send log, and wait for quotas. After an upstream refuses the account (its
    key, its credit), wait `account_seconds` before one row tries again.
    """
    account_seconds: float = 60.0
    max_connections: int = 4096
    """Open connections at once. If keys are required, half of them are for clients with a valid key."""
    patience: ClientTimeouts = PATIENCE
    """How long a client may keep the server waiting."""
    max_calls: int = 1024
    """Concurrent requests of one key, unless the key has its own limit."""
    aliases: Sequence[tuple[str, str]] = ()
    """Other names of the upstreams' models, each with its model; see `dispatch.aliases`."""
    allow_endpoints: Sequence[str] = ()
    """Upstream paths that tenants may use in addition to `endpoints.KNOWN`."""
