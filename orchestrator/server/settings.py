"""The settings of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from orchestrator.core.client_limits import PATIENCE, ClientTimeouts
from orchestrator.server.memory_limits import BODY_MEMORY

MOST_IN_FLIGHT = 16_384


class Settings(Struct, frozen=True):
    """Settings of a server. Sizes are in bytes, times in seconds. With `dispatch=False`, the server sends no rows.

    `max_queued_rows` limits the waiting rows of all batches: a batch that exceeds it is refused with 429. If less
    than `min_free_bytes` of disk are free, the server accepts no data.
    """

    upstreams: Sequence[str]
    expected_models: Sequence[str] = ()
    """Models whose upstreams join and leave while the server runs. Their rows wait for an upstream."""
    most_upstreams: int = 0
    """Maximum number of upstreams at once, if they join on demand."""
    api_key: str | None = None
    request_timeout: float = 600.0
    retry_delay: float = 0.5
    max_concurrency: int = 1024
    most_in_flight: int = MOST_IN_FLIGHT
    """Maximum number of one upstream's rows in flight, including rows whose answers wait for memory. An answer that
    waits uses a slot of `max_concurrency` only for its own tenant.
    """
    measured_limits: Mapping[str, int] = field(default_factory=dict)
    """The best concurrency that a benchmark found for each model, used as the first limit of its upstreams."""
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
    """Hourly cost of all upstreams together. /metrics derives the cost per token from it."""
    stop_seconds: float = 0.0
    """Seconds that rows in flight may take at shutdown. Rows that are cut off run again after the next start."""
    upkeep_seconds: float = 60.0
    requests_per_minute: int | None = None
    """Maximum requests per minute to each upstream. None: learn it from the upstream's headers, if they state it."""
    tokens_per_minute: int | None = None
    """Maximum tokens per minute at each upstream: prompts, and the output that rows may generate. None: learn it from
    the upstream's headers, if they state it.
    """
    service_tier: str | None = None
    """Service tier to add to the body of each row that names no tier."""
    paid: bool = False
    """True if upstreams bill each request: the server keeps a send log, and waits for quotas. If an upstream refuses
    the account (its key, its credit), one row tries again after `account_seconds`.
    """
    account_seconds: float = 60.0
    max_connections: int = 4096
    """Maximum number of open connections. If keys are required, half are for clients with a valid key."""
    patience: ClientTimeouts = PATIENCE
    """Maximum times that a client may keep the server waiting."""
    max_calls: int = 1024
    """Maximum number of concurrent requests of one key, unless the key has its own limit."""
    aliases: Sequence[tuple[str, str]] = ()
    """Other names of the upstreams' models, each with its model; see `dispatch.aliases`."""
    allow_endpoints: Sequence[str] = ()
    """Upstream paths that tenants may use in addition to `endpoints.KNOWN`."""
