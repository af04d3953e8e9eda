"""Settings, read once: `orch.toml` and the environment.

`discovery` locates the files and the state; this module reads the settings. A file never holds a provider's key, only
the name of the key's environment variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from orchestrator.core.errors import InputError
from orchestrator.core.listening import is_local_url
from orchestrator.core.near_names import meant
from orchestrator.core.zones import zone_of
from orchestrator.settings.backend_kinds import AnyBackend
from orchestrator.settings.backends import (
    Backend,
    Count,
    Dollars,
    FleetBackend,
    HostedBackend,
    LocalBackend,
    window_seconds,
)
from orchestrator.settings.corrections import EMAIL
from orchestrator.settings.discovery import Place, locate
from orchestrator.settings.source_lines import load_toml, mistake, read_text, validated
from orchestrator.settings.strict import Ladder, OnUse, PlainPath, Strict, VariableName
from orchestrator.settings.telemetry import Telemetry


class RateSettings(Strict):
    """Prices in dollars per million tokens. Tokens read from or written to the cache default to the price of `input`.

    `cache_write_1h` is for tokens kept in the cache for an hour, `web_search` for a thousand searches. An embedding
    model has no `output`.
    """

    input: Dollars
    output: Dollars | None = None
    cached: Dollars | None = None
    cache_write: Dollars | None = None
    cache_write_1h: Dollars | None = None
    web_search: Dollars | None = None


class ModelPrice(RateSettings):
    """A model's prices, used instead of the price table: realtime, and other tiers if the provider offers them."""

    batch: RateSettings | None = None
    flex: RateSettings | None = None
    priority: RateSettings | None = None
    source: str | None = Field(None, description="source of these prices, for reports")


class Report(Strict):
    """The hosted model that cost reports compare with, as `provider:model`."""

    compare: Annotated[str, Field(pattern=r"^[^:\s]+:[^\s]+$")] = "openai:gpt-5-nano"


class Budget(Strict):
    """Dollars per night or month, in local time, shared by all jobs or by the jobs with a tag.

    `warn_at` and `stop_at` are shares of the amount. A night begins at `night_starts` and lasts until the next night.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")
    amount: Dollars = Field(gt=0)
    period: Literal["night", "month"]
    tag: str | None = Field(None, pattern=r"^[^=]+=.*$", description="key=value")
    warn_at: Decimal = Field(Decimal("0.8"), gt=0, le=1)
    stop_at: Decimal = Field(Decimal(1), gt=0, le=1)
    night_starts: time = time(12)

    @field_validator("night_starts", mode="before")
    @classmethod
    def _is_a_time_of_day(cls, value: Any) -> Any:
        if isinstance(value, int | float):
            raise ValueError(f'{value} is not a time of day such as "22:00"')  # pydantic would read it as seconds
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> Budget:
        if "warn_at" in self.model_fields_set and self.warn_at > self.stop_at:
            raise ValueError(
                f"warn_at = {self.warn_at} is never reached: everything stops at stop_at = {self.stop_at}"
            )
        if self.period == "month" and "night_starts" in self.model_fields_set:
            raise ValueError('night_starts is for `period = "night"`: a month starts at midnight')
        if self.night_starts.tzinfo is not None:
            raise ValueError("night_starts is local time: write it without an offset, such as 12:00")
        return self

    @property
    def key_value(self) -> tuple[str, str] | None:
        """The tag as key and value."""
        if self.tag is None:
            return None
        key, _, value = self.tag.partition("=")
        return key, value


SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size_bytes(value: Any) -> int:
    """Parse `50GB`, `1.5 TB` or a number of bytes. Raises ValueError."""
    text = str(value) if isinstance(value, int | str) else ""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,3})?)\s*([KMGT]?B|)", text.strip().upper())
    if found is None or (size := int(Decimal(found[1]) * SIZES[found[2]])) == 0:
        raise ValueError(f"{value!r} is not a size such as 500MB, 50GB or 2TB")
    return size


_LONG_TIME = re.compile(r"([1-9]\d{0,3})\s*(days?|m|months?|w|weeks?|y|years?)", re.IGNORECASE)
_DAYS_OF = {"d": 1, "w": 7, "m": 30, "y": 365}


def _days(value: Any) -> int:
    """Parse `90d` or `36h` into seconds. Refuses `3m`: a user who means months would lose files after three
    minutes.
    """
    if not isinstance(value, str):
        raise ValueError(f'{value} is not a time such as "90d" or "36h"')
    if found := _LONG_TIME.fullmatch(value):
        days = int(found[1]) * _DAYS_OF[found[2][0].lower()]
        raise ValueError(f"{value!r} is not a time such as 90d or 36h; write {days}d")
    return window_seconds(value, "a time such as 90d or 36h")


LEAST_MEMORY = 100 * 10**6
Seconds = Annotated[int, BeforeValidator(_days), Field(le=100 * 365 * 86_400)]
Bytes = Annotated[int, BeforeValidator(size_bytes)]


class Retention(Strict):
    """Seconds to keep the data of finished jobs, and the home's maximum size in bytes. None means no limit.

    `results` is for a job's files, `jobs` for its rows in the database and its ledger lines. The `keep_last` newest
    finished runs of each job file are kept at any age.
    """

    results: Seconds | None = None
    jobs: Seconds | None = None
    keep_last: Count = 2
    max_bytes: Bytes | None = None
    min_free: Bytes = 256 * 10**6

    @model_validator(mode="after")
    def _goes_together(self) -> Retention:
        if self.jobs is not None and self.results is not None and self.jobs < self.results:
            raise ValueError("jobs is shorter than results: a result cannot be found without its job")
        return self


class Smtp(Strict):
    """A mail server. `tls` is `starttls` (the default, port 587), `tls` from the first byte (port 465), or `none`."""

    host: str = Field(min_length=1)
    port: int = Field(587, ge=1, le=65535)
    sender: str = Field(alias="from", pattern=EMAIL)
    user_env: VariableName | None = None
    password_env: VariableName | None = None
    tls: Literal["starttls", "tls", "none"] = "starttls"

    @field_validator("host")
    @classmethod
    def _is_a_host(cls, value: str) -> str:
        if re.search(r"//|:\d+$|\s", value):
            raise ValueError('is not a host alone: write  host = "mail.example.com", port = 587')
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> Smtp:
        if (self.user_env is None) != (self.password_env is None):
            raise ValueError("user_env and password_env go together: name the variables of both")
        if self.user_env is not None and self.tls == "none":
            raise ValueError('with tls = "none" anybody could read the password in transit')
        return self


class Reports(Strict):
    """Channels for reports and alerts. orch uses every channel that is set. `webhook_env` names the variable that
    holds the webhook's URL.
    """

    webhook_env: VariableName | None = None
    email_to: tuple[Annotated[str, Field(pattern=EMAIL)], ...] = ()
    smtp: Smtp | None = None
    folder: PlainPath | None = Field(None, min_length=1, description="a relative path starts at orch.toml's folder")
    channels: dict[str, dict[str, Any]] = Field({}, description="options of plug-ins' channels by channel name")
    tz: str | None = Field(None, description="time zone of the days of budgets and costs; default: this machine's")

    @field_validator("tz")
    @classmethod
    def _is_a_zone(cls, value: str | None) -> str | None:
        try:
            return value and str(zone_of(value))
        except InputError as error:
            raise ValueError(error.message) from None

    @property
    def zone(self) -> tzinfo | None:
        """The time zone that `tz` names; None for the zone of this machine."""
        return None if self.tz is None else zone_of(self.tz)

    @model_validator(mode="after")
    def _goes_together(self) -> Reports:
        if self.email_to and self.smtp is None:
            raise ValueError('email_to needs a server: smtp = {host = "mail.example.com", from = "orch@example.com"}')
        if self.smtp is not None and not self.email_to:
            raise ValueError('smtp is for mail: say to whom, email_to = ["me@example.com"]')
        return self


class AlertSettings(Strict):
    """Thresholds of alerts about a running job. orch alerts if the chance to meet the deadline is below `chance`.

    orch also alerts if the share of failed rows exceeds `failed_share`. The same holds for `cut_share` and the
    accepted answers that were cut off at `max_tokens`. A `cut_share` of 1 never alerts.
    """

    chance: float = Field(0.8, gt=0, le=1)
    failed_share: float = Field(0.1, ge=0, lt=1)
    cut_share: float = Field(0.1, ge=0, le=1)


class RoutingSettings(Strict):
    """Probes: a few rows of a job that measure a backend without rows in the last `probe_after` seconds.

    Probes cost at most `probe_share` of the job's money. orch sends a probe only if the job would meet its deadline
    even after a failed probe.
    """

    probe: bool = False
    probe_after: Annotated[Seconds, Field(ge=3600)] = 7 * 86_400
    probe_share: float = Field(0.05, gt=0, le=0.2)


class ReadingSettings(Strict):
    """Limits for reading documents: `max_seconds` of CPU time and `max_memory` for each, in `workers` processes.

    Workers that read scans by OCR get `ocr_memory`. A document that exceeds a limit is a failed row. A file may
    unpack to `max_unpacked` or to 200 times its own bytes, whichever is more. `workers` defaults to one worker per
    core. With `pool = "ray"`, the nodes of the Ray cluster at `address` read documents, with the cluster's Python,
    `ray_python`. `converter` is the path of LibreOffice's program, which adds formats that orch cannot read itself.
    """

    pool: Literal["local", "ray"] = "local"
    ray_python: str | None = Field(None, min_length=1)
    address: str = Field("auto", min_length=1)
    workers: int | None = Field(None, ge=1, le=512)
    max_seconds: int = Field(120, ge=1, le=86_400)
    max_memory: Bytes = 10**9
    ocr_memory: Bytes = 2 * 10**9
    max_unpacked: Bytes = 200 * 10**6
    converter: str | None = Field(None, min_length=1)

    @field_validator("max_memory", "ocr_memory")
    @classmethod
    def _is_enough(cls, value: int) -> int:
        if value < LEAST_MEMORY:
            raise ValueError(f"must be {LEAST_MEMORY // 10**6}MB at least: the readers themselves take as much")
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> ReadingSettings:
        if self.pool == "ray" and self.ray_python is None:
            raise ValueError('pool = "ray" needs the cluster\'s own Python: ray_python = "/opt/ray/bin/python"')
        if self.pool == "local" and self.model_fields_set & {"ray_python", "address"}:
            raise ValueError('ray_python and address are for `pool = "ray"`')
        return self


class ConfigFile(Strict):
    """Tables and fields of orch.toml."""

    home: PlainPath | None = None
    database_url: str | None = None
    backends: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")], AnyBackend] = Field(default_factory=dict)
    models: dict[Annotated[str, Field(pattern=r"^[^@]+$")], Ladder] = Field(default_factory=dict)
    prices: dict[str, Annotated[ModelPrice, OnUse()]] = Field({}, description="by the model's name at its provider")
    report: Annotated[Report, OnUse()] = Field(default_factory=Report.model_construct)
    budgets: tuple[Annotated[Budget, OnUse()], ...] = ()
    retention: Annotated[Retention, OnUse()] = Field(default_factory=Retention.model_construct)
    reports: Annotated[Reports, OnUse()] = Field(default_factory=Reports.model_construct)
    alerts: Annotated[AlertSettings, OnUse()] = Field(default_factory=AlertSettings.model_construct)
    documents: Annotated[ReadingSettings, OnUse()] = Field(default_factory=ReadingSettings.model_construct)
    routing: Annotated[RoutingSettings, OnUse()] = Field(default_factory=RoutingSettings.model_construct)
    telemetry: Annotated[Telemetry, OnUse()] | None = None

    @field_validator("budgets")
    @classmethod
    def _have_names_of_their_own(cls, value: tuple[Budget, ...]) -> tuple[Budget, ...]:
        names = [budget.name for budget in value]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"several budgets are named {', '.join(sorted(twice))}: names must be unique")
        return value


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of this process. `text` is the file's content when it was read."""

    place: Place
    backends: Mapping[str, Backend]
    models: Mapping[str, Ladder]
    prices: Mapping[str, ModelPrice]
    report: Report
    budgets: tuple[Budget, ...] = ()
    retention: Retention = field(default_factory=Retention)
    reports: Reports = field(default_factory=Reports)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    documents: ReadingSettings = field(default_factory=ReadingSettings)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    telemetry: Telemetry | None = None
    text: str = field(default="", repr=False, compare=False)

    @property
    def path(self) -> Path | None:
        """The orch.toml that was read, or None."""
        return self.place.path

    @property
    def fleet_models(self) -> dict[str, dict[str, str]]:
        """Models of fleets, with their names at each backend. Tasks may name these models without an alias."""
        found: dict[str, dict[str, str]] = {}
        for backend, settings in self.backends.items():
            for model in settings.model_names if isinstance(settings, FleetBackend) else ():
                found.setdefault(model, {})[backend] = model
        return found

    @property
    def hosted(self) -> frozenset[str]:
        """Names of the backends that are a provider's Batch API."""
        return frozenset(name for name, one in self.backends.items() if isinstance(one, HostedBackend))

    @property
    def said(self) -> Mapping[str, Any]:
        """Values of `home` and `database_url` in the file itself, without the environment."""
        data, _ = ({}, None) if self.path is None else load_toml(self.path, self.text)
        return {name: data[name] for name in ("home", "database_url") if name in data}

    @property
    def keys_sent(self) -> list[tuple[str, str]]:
        """Pairs of a key's environment variable and the address, set in the file, that receives the key.

        Addresses of this machine are left out: a key sent to them never leaves the machine.
        """
        found = []
        for backend in self.backends.values():
            if isinstance(backend, LocalBackend):
                found += [(backend.api_key_env, url) for url in backend.upstreams if backend.api_key_env is not None]
            elif isinstance(backend, FleetBackend):
                continue
            elif backend.base_url != type(backend).model_fields["base_url"].default:
                found.append((backend.api_key_env or "the credentials' chain", backend.base_url))
        smtp = self.reports.smtp
        if smtp is not None and smtp.password_env is not None:
            found.append((smtp.password_env, smtp.host))
        if self.telemetry is not None:
            found += [(variable, self.telemetry.endpoint) for variable in self.telemetry.headers_env.values()]
        return [one for one in dict.fromkeys(found) if not is_local_url(one[1])]

    @property
    def unknown_backends(self) -> list[InputError]:
        """Errors about backends that [models] names but the file does not define."""
        found = [
            ((alias, name) if isinstance(ladder, dict) else (alias, number, name), name)
            for alias, ladder in self.models.items()
            for number, rung in enumerate(ladder if isinstance(ladder, (list, tuple)) else (ladder,))
            for name in (rung if isinstance(rung, dict) else ())
            if name not in self.backends
        ]
        known = f"known: {', '.join(self.backends)}"
        return [
            self.mistake(("models", *place), f"there is no backend {name!r}", meant(name, self.backends) or known)
            for place, name in found
            if self.backends
        ]

    def mistake(self, place: tuple[str | int, ...], message: str, hint: str | None) -> InputError:
        """Return an error with the file, line and field of its cause."""
        lines = {} if self.path is None else load_toml(self.path, self.text)[1]
        return mistake(self.path, lines, place, message, hint)

    @property
    def home(self) -> Path:
        """Folder of all state."""
        return self.place.home


def load(place: Place | None = None) -> Config:
    """Read the settings. Raises InputError naming file, line and field."""
    place = place or locate()
    return parse(place, "" if place.path is None else read_text(place.path))


def parse(place: Place, text: str) -> Config:
    """Parse the text of a settings file. Raises InputError naming file, line and field."""
    file = ConfigFile()
    if place.path is not None:
        data, lines = load_toml(place.path, text)
        file = validated(ConfigFile, data, lines, place.path)
    return Config(
        place, file.backends, file.models, file.prices, file.report, file.budgets, file.retention, file.reports,
        file.alerts, file.documents, file.routing, file.telemetry, text,
    )  # fmt: skip
