"""What orch.toml says of each backend: our own upstreams, synchronous APIs, hosted Batch APIs."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from orchestrator.core import durations
from orchestrator.core.model import MAX_TOKENS

# What is above these is a slip of the pen, and would overflow a clock, a socket or a database later on.
Dollars = Annotated[Decimal, Field(ge=0, le=1_000_000)]
Count = Annotated[int, Field(ge=1, le=2**53)]


Wait = Annotated[float, Field(gt=0, le=30 * 86_400)]


Rate = Annotated[float, Field(gt=0, le=1e9)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LimitSettings(Strict):
    """What one batch, and all of them together, may hold. What is not given here, the backend's profile says.

    `max_inputs` counts the inputs of embedding rows; `enqueued_tokens` are the prompt tokens of a model that may wait
    at the backend at once, for every model or for each by its name there.
    """

    max_rows: Count | None = None
    max_bytes: Count | None = None
    max_inputs: Count | None = None
    enqueued_tokens: Count | dict[str, Count] | None = None
    batches_per_hour: Count | None = None


class _AnyBackend(Strict):
    # Local stays local: an address says nothing about where the text ends up (a gateway may listen on loopback).
    location: Literal["hosted", "local"] = "hosted"
    limits: LimitSettings = LimitSettings()
    poll_seconds: Wait | None = Field(None, description="between two looks at a batch")


class _OwnServer(_AnyBackend):
    """Our own batch server in front of synchronous endpoints.

    `rows_per_second` or `tokens_per_second`, of prompts and answers together, is how fast it is taken to be before it
    was measured.
    """

    request_timeout: Wait = 600.0
    patience: Wait = 600.0
    retry_delay: Wait = 0.5
    max_concurrency: Count = 1024
    rows_per_second: Rate | None = None
    tokens_per_second: Rate | None = None

    @model_validator(mode="after")
    def _has_one_rate(self) -> _OwnServer:
        if self.rows_per_second is not None and self.tokens_per_second is not None:
            raise ValueError("say how fast it is once: either `rows_per_second` or `tokens_per_second`")
        return self


class LocalBackend(_OwnServer):
    """Our own batch server in front of endpoints that cost by the hour (a vLLM server first of all)."""

    kind: Literal["local"] = "local"
    upstreams: tuple[str, ...] = Field(min_length=1)
    api_key_env: str | None = None
    cost_per_hour: Dollars | None = None
    idle: bool = False

    @field_validator("upstreams")
    @classmethod
    def _are_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(url_of(url, "http://127.0.0.1:8000/v1") for url in value)

    @model_validator(mode="after")
    def _has_a_price(self) -> LocalBackend:
        if self.idle == (self.cost_per_hour is not None):
            raise ValueError("say what an hour costs: either `cost_per_hour = 2.50`, or `idle = true` for free")
        return self


class SyncBackend(_OwnServer):
    """Our own batch server in front of a provider's synchronous API, which costs by the token.

    `provider` names it in the price table; without it, the address tells.
    """

    kind: Literal["sync"]
    base_url: str
    api_key_env: str
    provider: str | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        return url_of(value, "https://api.openai.com/v1")


class _Provider(_AnyBackend):
    """A provider's Batch API. While one answer is waited for, for `request_timeout` seconds, no other job goes on."""

    api_key_env: str
    request_timeout: Wait = 120.0


class HostedBackend(_Provider):
    """A provider's Batch API that speaks OpenAI's protocol.

    `profile` names what is known of the provider (see `backends.profiles`); without it, the address tells.
    """

    kind: Literal["openai", "azure"]
    base_url: str = "https://api.openai.com/v1"
    profile: str | None = None
    provider: str | None = None
    organization: str | None = None
    project: str | None = None
    windows: tuple[str, ...] | None = None
    discount: Decimal | None = Field(None, ge=0, lt=1, description="0.5 is half price; where the table has none")
    webhook_secret_env: str | None = None

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        return url_of(value, "https://api.openai.com/v1")

    @field_validator("windows")
    @classmethod
    def _are_windows(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for window in value or ():
            window_seconds(window)
        return value

    @model_validator(mode="after")
    def _azure_has_an_address(self) -> HostedBackend:
        if self.kind == "azure" and "base_url" not in self.model_fields_set:
            raise ValueError('an azure backend needs `base_url = "https://RESOURCE.openai.azure.com/openai/v1/"`')
        return self


class AnthropicBackend(_Provider):
    """Anthropic's Message Batches. `max_tokens` is what a row asks for that names none: the API requires one."""

    kind: Literal["anthropic"]
    base_url: str = "https://api.anthropic.com"
    max_tokens: int = Field(4096, ge=1, le=MAX_TOKENS)

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        return url_of(value, "https://api.anthropic.com")


OwnBackend = LocalBackend | SyncBackend


Backend = LocalBackend | SyncBackend | HostedBackend | AnthropicBackend


def window_seconds(text: str) -> int:
    """`24h`, `7d` or `30m` in seconds. Raises ValueError."""
    if (seconds := durations.window_seconds(text)) is None:
        raise ValueError(f"{text!r} is not a window such as 24h, 7d or 30m")
    return seconds


def url_of(text: str, example: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not an http(s) URL such as {example}")
    if parts.username or parts.password:
        raise ValueError("a URL may not carry a password; name the key's variable in api_key_env")
    return text.rstrip("/")


def _kind(data: Any) -> str:
    kind = data.get("kind", "local") if isinstance(data, dict) else getattr(data, "kind", "local")
    return f"({kind})"


# In brackets, so that no key of a file is taken for a tag (see `located`).
AnyBackend = Annotated[
    Annotated[LocalBackend, Tag("(local)")]
    | Annotated[SyncBackend, Tag("(sync)")]
    | Annotated[HostedBackend, Tag("(openai)")]
    | Annotated[HostedBackend, Tag("(azure)")]
    | Annotated[AnthropicBackend, Tag("(anthropic)")],
    Discriminator(
        _kind,
        custom_error_type="unknown_kind",
        custom_error_message="kind must be one of local, openai, azure, anthropic, sync",
    ),
]
