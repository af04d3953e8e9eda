"""Settings, read once: `orch.toml` and the environment.

`orch.toml` is `$ORCH_CONFIG`, or the first found in the working directory, its parents, and the user's config
directory. `ORCH_HOME` moves all state, `ORCH_DATABASE_URL` chooses the database. Keys of providers are named by
environment variable and never stand in a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from orchestrator.errors import InputError
from orchestrator.located import load_toml, validated

FILE_NAME = "orch.toml"


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

    path: Path | None
    home: Path
    database_url: str
    backends: Mapping[str, LocalBackend]
    models: Mapping[str, str | dict[str, str]]
    report: Report
    database_timeout: float


def find_file(environ: Mapping[str, str], start: Path) -> Path | None:
    """The orch.toml that holds for `start`, or None."""
    if named := environ.get("ORCH_CONFIG"):
        return Path(named)
    user = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "orch" / FILE_NAME
    places = [folder / FILE_NAME for folder in (start, *start.parents)]
    return next((place for place in (*places, user) if place.is_file()), None)


def load(environ: Mapping[str, str] = os.environ, start: Path | None = None) -> Config:
    """Read the settings. Raises InputError naming file, line and field."""
    path = find_file(environ, start or Path.cwd())
    file = File()
    if path is not None:
        data, lines = load_toml(path)
        file = validated(File, data, lines, path)
    home = Path(environ.get("ORCH_HOME") or (_beside(path, file.home) if file.home else _default_home(environ)))
    home = home.expanduser().absolute()
    url = environ.get("ORCH_DATABASE_URL") or file.database_url or f"sqlite:///{home / 'orch.db'}"
    return Config(
        path=path,
        home=home,
        database_url=_with_driver(url),
        backends=file.backends,
        models=file.models,
        report=file.report,
        database_timeout=_seconds(environ, "ORCH_DATABASE_TIMEOUT", 10.0),
    )


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise InputError(f"{text!r} is no number of seconds", field=name) from None


def _beside(path: Path | None, home: str) -> Path:
    expanded = Path(home).expanduser()
    return expanded if path is None or expanded.is_absolute() else path.parent / expanded


def _default_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "orch"


def _with_driver(url: str) -> str:
    return re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)
