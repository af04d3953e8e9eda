"""Settings, read once: `orch.toml` and the environment.

`place` says where they are and where the state is; here is what they say. Keys of providers are named by
environment variable and never stand in a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from orchestrator.located import load_toml, validated
from orchestrator.place import Place, locate


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(_Strict):
    """What one batch may hold. The defaults are OpenAI's."""

    max_rows: int = Field(50_000, ge=1)
    max_bytes: int = Field(200 * 1024 * 1024, ge=1)


class LocalBackend(_Strict):
    """Our own batch server in front of synchronous OpenAI-compatible endpoints (a vLLM server first of all)."""

    kind: Literal["local"] = "local"
    upstreams: tuple[str, ...] = Field(min_length=1)
    # P10: an address says nothing about where the text ends up (a gateway may listen on loopback).
    location: Literal["hosted", "local"] = "hosted"
    api_key_env: str | None = None
    cost_per_hour: Decimal | None = Field(None, ge=0)
    idle: bool = False
    request_timeout: float = Field(600.0, gt=0)
    patience: float = Field(600.0, gt=0)
    retry_delay: float = Field(0.5, gt=0)
    max_concurrency: int = Field(1024, ge=1)
    limits: Limits = Limits()

    @field_validator("upstreams")
    @classmethod
    def _are_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{url!r} is no http(s) URL such as http://127.0.0.1:8000/v1")
            if parts.username or parts.password:
                raise ValueError("a URL may not carry a password; name the key's variable in api_key_env")
        return tuple(url.rstrip("/") for url in value)

    @model_validator(mode="after")
    def _has_a_price(self) -> LocalBackend:
        if self.idle == (self.cost_per_hour is not None):
            raise ValueError("say what an hour costs: either `cost_per_hour = 2.50`, or `idle = true` for free")
        return self


class Report(_Strict):
    """`compare`: the hosted model, as `provider:model`, that cost reports compare with."""

    compare: Annotated[str, Field(pattern=r"^[^:\s]+:[^\s]+$")] = "openai:gpt-5-nano"


class File(_Strict):
    """The whole of orch.toml."""

    home: str | None = None
    database_url: str | None = None
    backends: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")], LocalBackend] = Field(
        default_factory=dict
    )
    models: dict[str, str | dict[str, str]] = Field(default_factory=dict)
    report: Report = Report()


@dataclass(frozen=True, slots=True)
class Config:
    """Settings as they hold for this process."""

    place: Place
    backends: Mapping[str, LocalBackend]
    models: Mapping[str, str | dict[str, str]]
    report: Report

    @property
    def path(self) -> Path | None:
        """The orch.toml that was read, None where there is none."""
        return self.place.path

    @property
    def home(self) -> Path:
        """Where all state lies."""
        return self.place.home


def load(place: Place | None = None) -> Config:
    """Read the settings. Raises InputError naming file, line and field."""
    place = place or locate()
    file = File()
    if place.path is not None:
        data, lines = load_toml(place.path)
        file = validated(File, data, lines, place.path)
    return Config(place, file.backends, file.models, file.report)
