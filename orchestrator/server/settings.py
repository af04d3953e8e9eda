"""What a server needs to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.core.connections import PATIENCE, ClientTimeouts
from orchestrator.server.memory_limits import BODY_MEMORY


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes are bytes, times seconds. `dispatch=False` serves and cancels, but sends no row.

    `max_queued_rows` bounds the rows that wait in all batches: a batch above it is refused with 429.
    `min_free_bytes` of disk stay free: below it nothing is taken in.
    """

    upstreams: Sequence[str]
    expected_models: Sequence[str] = ()
    """Models whose upstreams join and leave while the server runs: their rows wait while there is none."""
    most_upstreams: int = 0
    """How many upstreams there may be at once, where they join."""
    api_key: str | None = None
    request_timeout: float = 600.0
    retry_delay: float = 0.5
    max_concurrency: int = 1024
    measured_limits: Mapping[str, int] = field(default_factory=dict, compare=False)
    """How many rows at once a bench found best for an upstream of each model: the limit that one starts with."""
    body_memory: int = BODY_MEMORY
    """Bytes of bodies that are in memory at once: of rows, of answers, of requests that are passed through."""
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
    """What an hour of all upstreams together costs; with it /metrics says what a token costs."""
    stop_seconds: float = 0.0
    """How long rows in flight may go on at the end; what is cut off runs again at the next start."""
    upkeep_seconds: float = 60.0
    """How often what is over its time is removed."""
    requests_per_minute: int | None = None
    """What each upstream takes; None is found out, from its headers where it tells."""
    tokens_per_minute: int | None = None
    """The same for tokens, of prompts and what may be generated."""
    service_tier: str | None = None
    """Put into the body of each row that names none."""
    paid: bool = False
    """Upstreams bill each request: an account is kept of what was sent, quotas are waited for, and one that refuses
    the account (its key, its credit) is left alone for `account_seconds` before one row asks again."""
    account_seconds: float = 60.0
    max_connections: int = 4096
    """Open at once. Half of them are for who has shown a valid key, where keys are asked for."""
    patience: ClientTimeouts = PATIENCE
    """How long a client may keep the server waiting."""
    max_calls: int = 1024
    """Requests of one key that are answered at once, where the key says nothing else."""
    aliases: Sequence[tuple[str, str]] = ()
    """Other names of the upstreams' models, each with its model; see `dispatch.aliases`."""
    allow_endpoints: Sequence[str] = ()
    """Paths that tenants may reach at upstreams beside those of `endpoints.KNOWN`."""
