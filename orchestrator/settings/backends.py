"""Settings of backends in orch.toml: the user's own servers, synchronous APIs, hosted Batch APIs."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from orchestrator.core import durations
from orchestrator.core.addresses import is_http_url
from orchestrator.core.hours import Hours
from orchestrator.settings.amounts import engine_counts, gpu_numbers, hours_of, length, memory_bytes
from orchestrator.settings.strict import OnUse, Strict, VariableName

StructuredOutput = Literal["json_schema", "json_object", "none"]
"""Ways to ask a server for JSON: by a schema, as any JSON, or in the prompt alone."""


class DialectRule(Strict):
    """A rule for a backend's models, in addition to orch's built-in rules. `models` is a glob of model names.

    `like` names a model whose rules apply, for deployments with names of their own. `endpoint` moves the models to
    the Responses API. A `field` can be renamed, refused, or limited by `at_least` or `at_most`.
    """

    models: str = Field("*", min_length=1)
    like: str | None = None
    endpoint: Literal["responses"] | None = None
    structured: StructuredOutput | None = None
    field: str | None = Field(None, min_length=1)
    rename: str | None = Field(None, min_length=1)
    refuse: bool = False
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _says_something(self) -> DialectRule:
        of_field = [name for name in ("rename", "at_least", "at_most") if getattr(self, name) is not None]
        of_field += ["refuse"] if self.refuse else []
        if self.field is None and of_field:
            raise ValueError(f"`{of_field[0]}` needs `field`: the name of a field of the request body")
        if self.field is not None and not of_field:
            raise ValueError("say what becomes of `field`: `rename`, `refuse`, `at_least` or `at_most`")
        if self.field is None and self.like is None and self.endpoint is None and self.structured is None:
            raise ValueError("says nothing: give `like`, `endpoint`, `structured` or `field`")
        return self


# Larger values are typing errors that would later overflow a clock, a socket or a database.
Dollars = Annotated[Decimal, Field(ge=0, le=1_000_000)]
Count = Annotated[int, Field(ge=1, le=2**53)]
Discount = Annotated[Decimal | None, Field(ge=0, lt=1, description="reduction from the standard price; 0.5: half")]
BucketFolder = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$", max_length=200)]


Wait = Annotated[float, Field(gt=0, le=30 * 86_400)]


Rate = Annotated[float, Field(gt=0, le=1e9)]


class LimitSettings(Strict):
    """Limits of a batch, and of all batches together; the backend's profile supplies missing values.

    `max_inputs` counts the inputs of embedding rows. `enqueued_tokens` limits a model's prompt tokens that wait at
    the backend. It is the same number for each model, or a table of numbers by the model's name there.
    """

    min_rows: Count | None = None
    max_rows: Count | None = None
    max_bytes: Count | None = None
    max_inputs: Count | None = None
    enqueued_tokens: Count | dict[str, Count] | None = None
    batches_per_hour: Count | None = None


class _AnyBackend(Strict):
    # Local stays local: a URL does not show where text ends up, as a gateway on loopback may forward it.
    location: Literal["hosted", "local"] = "hosted"
    limits: Annotated[LimitSettings, OnUse()] = Field(default_factory=LimitSettings.model_construct)
    dialect: tuple[Annotated[DialectRule, OnUse()], ...] = ()
    structured: StructuredOutput | None = Field(None, description="way to ask its models for JSON")
    poll_seconds: Wait | None = Field(None, description="seconds between two polls of a batch")


class OwnServer(_AnyBackend):
    """Our own batch server in front of synchronous endpoints.

    `rows_per_second` or `tokens_per_second` (prompts and answers together) is the assumed speed until orch measures
    the real speed. `body_memory` limits the bytes of request and answer bodies in memory at once.
    """

    request_timeout: Wait = 600.0
    patience: Wait = 600.0
    retry_delay: Wait = 0.5
    max_concurrency: Count = 1024
    body_memory: Annotated[int, BeforeValidator(memory_bytes)] | None = None
    rows_per_second: Rate | None = None
    tokens_per_second: Rate | None = None

    @model_validator(mode="after")
    def _has_one_rate(self) -> OwnServer:
        if self.rows_per_second is not None and self.tokens_per_second is not None:
            raise ValueError("say how fast it is once: either `rows_per_second` or `tokens_per_second`")
        return self


class TimedBackend(OwnServer):
    """Our own batch server in front of endpoints that are paid by the hour."""

    cost_per_hour: Dollars | None = None

    @property
    def is_free(self) -> bool:
        """True if an hour costs nothing."""
        return False

    @property
    def upstream_count(self) -> int:
        """Number of endpoints paid in parallel, each at `cost_per_hour`."""
        return 1


class LocalBackend(TimedBackend):
    """Our own batch server in front of endpoints that are paid by the hour, such as vLLM servers."""

    kind: Literal["local"] = "local"
    upstreams: tuple[str, ...] = Field(min_length=1)
    api_key_env: VariableName | None = None
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

    @property
    def is_free(self) -> bool:
        return self.idle

    @property
    def upstream_count(self) -> int:
        return len(self.upstreams)


ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,79}$")]


def _flags(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options. Raises ValueError if the first is not a flag, or if an option holds a flag and its
    value.
    """
    if options and not options[0].startswith("-"):
        raise ValueError('begins without a flag: write options = ["--max-model-len", "8192"]')
    if any(re.match(r"--?[\w-]+\s", option) for option in options):
        raise ValueError('holds a flag and its value in one text: write them apart, as "--max-model-len", "8192"')
    return options


class EngineModel(Strict):
    """A model of a fleet: a folder, a file or a name on the Hub. `options` are options of vLLM.

    `tensor_parallel` is the number of GPUs of an engine. `swap` is how the engine frees its GPUs for another model.
    """

    model: str = Field(min_length=1)
    tensor_parallel: int = Field(1, ge=1, le=64)
    swap: Literal["stop", "sleep"] = "stop"
    options: Annotated[tuple[str, ...], AfterValidator(_flags)] = ()


class FleetBackend(TimedBackend):
    """Engines started on demand; each model has its own name at this backend.

    Engines may run during `hours`, in local time. An engine ends after `idle` seconds without demand, and restarts if
    it uses more than `host_memory` bytes of its machine.
    """

    hours: Annotated[str, AfterValidator(hours_of)] | None = None
    host_memory: Annotated[int, BeforeValidator(memory_bytes)] | None = None
    idle: Annotated[float, BeforeValidator(length)] = 600.0
    vllm_python: str | None = None
    moves: ClassVar[tuple[str, ...]] = ("models", "vllm_python")
    """Settings whose change requires new engines."""

    @property
    def open_hours(self) -> Hours | None:
        """The hours in which engines may run, None for the whole day."""
        return None if self.hours is None else Hours.parse(self.hours)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the models, in order."""
        raise NotImplementedError

    @property
    def most_engines(self) -> int:
        """Maximum number of running engines, over all models."""
        raise NotImplementedError

    def gpus_of(self, model: str) -> int:
        """Return the number of GPUs of a model's engine; 1 for the CPU."""
        raise NotImplementedError

    def gpu_price(self, model: str) -> Decimal:
        """Return the price of one GPU of a model's engine in dollars an hour."""
        raise NotImplementedError


class EnginesBackend(FleetBackend):
    """vLLM engines on this machine. `vram` is a quota of each GPU in bytes, `cost_per_hour` the price of one GPU."""

    kind: Literal["engines"]
    models: dict[ModelName, EngineModel] = Field(min_length=1)
    cost_per_hour: Dollars
    gpus: Annotated[tuple[int, ...], BeforeValidator(gpu_numbers)] | None = None
    vram: Annotated[int, BeforeValidator(memory_bytes)] | None = None
    moves: ClassVar[tuple[str, ...]] = ("models", "gpus", "vram", "vllm_python")

    @model_validator(mode="after")
    def _fits(self) -> EnginesBackend:
        for name, model in self.models.items():
            if self.gpus is not None and len(self.gpus) % model.tensor_parallel:
                raise ValueError(
                    f"model {name} takes {model.tensor_parallel} GPUs; `gpus` has {len(self.gpus)}, not a multiple"
                )
        return self

    @property
    def is_free(self) -> bool:
        return not self.cost_per_hour

    @property
    def upstream_count(self) -> int:
        return len(self.gpus or (0,))

    @property
    def model_names(self) -> tuple[str, ...]:
        return tuple(self.models)

    @property
    def most_engines(self) -> int:
        return len(self.models) * self.upstream_count

    def gpus_of(self, model: str) -> int:
        return self.models[model].tensor_parallel

    def gpu_price(self, model: str) -> Decimal:
        return self.cost_per_hour


def _of_each_model(value: Any) -> None:
    raise ValueError("an engine's hour is priced with its model: backends.NAME.models.MODEL.cost_per_hour")


class ClusterModel(Strict):
    """A model of a Ray fleet: a folder on every node, or a name on the Hub. `options` are options of vLLM.

    `gpus`, `cpus` and `resources` are the needs of one engine, in Ray's terms. `engines` is the number of engines.
    `cost_per_hour` is the price of one engine, from lease to release. `placement = "spread"` allows GPUs of several
    nodes.
    """

    model: str = Field(min_length=1)
    gpus: int = Field(1, ge=0, le=1024)
    cpus: float = Field(1.0, ge=0, le=4096)
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    placement: Literal["pack", "spread"] = "pack"
    engines: Annotated[tuple[int, int], BeforeValidator(engine_counts)] = (0, 1)
    cost_per_hour: Dollars
    options: Annotated[tuple[str, ...], AfterValidator(_flags)] = ()


class RayBackend(FleetBackend):
    """vLLM engines on a Ray cluster that includes this machine. `ray_python` is the cluster's own Python.

    `rows_per_second` is the speed of one engine.
    """

    kind: Literal["ray"]
    address: str = Field("auto", min_length=1)
    ray_python: str = Field(min_length=1)
    models: dict[ModelName, ClusterModel] = Field(min_length=1)
    cost_per_hour: Annotated[None, BeforeValidator(_of_each_model)] = None
    moves: ClassVar[tuple[str, ...]] = ("models", "address", "ray_python", "vllm_python")

    @property
    def is_free(self) -> bool:
        return not any(model.cost_per_hour for model in self.models.values())

    @property
    def upstream_count(self) -> int:
        return self.most_engines

    @property
    def model_names(self) -> tuple[str, ...]:
        return tuple(self.models)

    @property
    def most_engines(self) -> int:
        return sum(model.engines[1] for model in self.models.values())

    def gpus_of(self, model: str) -> int:
        return max(1, self.models[model].gpus)

    def gpu_price(self, model: str) -> Decimal:
        return self.models[model].cost_per_hour / self.gpus_of(model)


class SyncBackend(OwnServer):
    """Our own batch server in front of a provider's synchronous API, which is paid by the token.

    `provider` is the provider's name in the price table, by default taken from `base_url`.
    """

    kind: Literal["sync"]
    base_url: str
    api_key_env: VariableName
    provider: str | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        return url_of(value, "https://api.openai.com/v1")


class HostedBackend(_AnyBackend):
    """A provider's Batch API. Each package of a hosted backend has subclasses for its kinds.

    A call waits up to `request_timeout` seconds, and blocks all other jobs meanwhile. `api_key_env` is None only if
    the package's credentials are not a key.
    """

    kind: str
    base_url: str
    api_key_env: VariableName | None
    request_timeout: Wait = 120.0
    preflight: bool = Field(True, description="ask one row first if a model has never answered such requests")

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        return url_of(value, cls.model_fields["base_url"].default)

    @property
    def has_sync_api(self) -> bool:
        """True if a backend of kind `sync` may share this backend's address and key."""
        return False


class NotifyingBackend(HostedBackend):
    """A provider's Batch API that sends a signed webhook when a batch ends."""

    webhook_secret_env: VariableName | None = None


OwnBackend = LocalBackend | EnginesBackend | RayBackend | SyncBackend


Backend = LocalBackend | EnginesBackend | RayBackend | SyncBackend | HostedBackend


_NEVER = frozenset(("never", "forever", "none", "off", "no", "unlimited"))


def window_seconds(text: str, wanted: str = "a window such as 24h, 7d or 30m") -> int:
    """Parse `24h`, `7d` or `30m` into seconds. Raises ValueError with `wanted` in its message."""
    if (seconds := durations.window_seconds(text)) is None:
        cure = "; leave it out" if text.lower() in _NEVER else ""
        raise ValueError(f"{text!r} is not {wanted}{cure}")
    return seconds


_CALL = re.compile(r"/(chat/completions|completions|responses|embeddings|messages|batches|models)/?$")


def url_of(text: str, example: str) -> str:
    if not is_http_url(text):
        spaces = "; remove the whitespace in it" if any(map(str.isspace, text)) else ""
        raise ValueError(f"{text!r} is not an http(s) URL such as {example}{spaces}")
    parts = urlsplit(text)
    if parts.username or parts.password:
        raise ValueError("a URL may not carry a password; name the key's variable in api_key_env")
    if found := _CALL.search(parts.path):
        raise ValueError(f"ends with {found[0]}, which orch adds itself: leave that out")
    return text.rstrip("/")
