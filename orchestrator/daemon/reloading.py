"""Reloading of orch.toml while a daemon runs: applies edits, and reports changes that it cannot apply.

An edit counts once two consecutive checks have read the same text, because a file may be read half written. A broken,
missing or empty file is refused, and the settings stay.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from orchestrator.core.errors import InputError, OrchError
from orchestrator.daemon.running_settings import InForce, digest_of
from orchestrator.settings import config as settings
from orchestrator.settings.backends import Backend
from orchestrator.settings.config import Config, Reports
from orchestrator.settings.discovery import home_beside
from orchestrator.settings.source_lines import text_of
from orchestrator.settings.telemetry import Telemetry

SECRETS = ("api_key_env", "webhook_secret_env")
_PLACES = {"home": "ORCH_HOME", "database_url": "ORCH_DATABASE_URL"}
"""Settings that say where the home's state is stored, and the environment variables that override them."""


class Reloader:
    """Checks a daemon's settings file for edits. `check` raises OrchError for invalid settings."""

    def __init__(
        self,
        config: Config,
        check: Callable[[Config], None] = lambda config: None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.config = config
        self._check = check
        self._environ = environ
        self._wanted = config
        self._began = config.said
        self._seen: str | InputError = config.text
        self._refused: str | InputError | None = None
        self.in_force = InForce(os.getpid(), str(config.home), None, "", "")

    def begin(self, now: datetime) -> None:
        """Record the settings with which the daemon starts."""
        self._hold(now, ())

    @property
    def moves_to(self) -> Path | None:
        """The home that the file now names, if it is not the daemon's home; otherwise None."""
        said, above = self._wanted.said.get("home"), self._environ.get(_PLACES["home"])
        if above or said == self._began.get("home") or not isinstance(said, str):
            return None
        return home_beside(self.config.path, said)

    def look(self, now: datetime) -> str | None:
        """Apply an edit of the file to `config`. Return a message about the edit. None without an edit."""
        if self.config.path is None:
            return None
        found = _content_or_error(self.config.path)
        settled, self._seen = _same(found, self._seen), found
        if not settled:
            return None
        if found == self._wanted.text:
            return self._taken_back()
        if self._refused is not None and _same(found, self._refused):
            return None
        try:
            wanted = self._parsed(found)
        except OrchError as error:
            self._refused = found
            self.in_force = replace(self.in_force, refused=str(error))
            return "\n".join(self.in_force.told)
        self._refused, self._wanted = None, wanted
        self.config, restart = adopt(self.config, wanted, self._began, self._environ)
        self._hold(now, tuple(restart))
        return "\n".join([f"{self.config.path} was edited: the new settings are in force", *self.in_force.told])

    def _taken_back(self) -> str | None:
        if self._refused is None:
            return None
        self._refused = None
        self.in_force = replace(self.in_force, refused=None)
        return f"{self.config.path} is back as it was: its settings are in force"

    def _parsed(self, found: str | InputError) -> Config:
        if isinstance(found, InputError):
            raise found
        if not found.strip() and self._wanted.text.strip():
            hint = "remove settings one by one"
            raise InputError("is empty", file=self.config.path, hint=hint)
        wanted = settings.parse(self.config.place, found)
        self._check(wanted)
        return wanted

    def _hold(self, now: datetime, restart: tuple[str, ...]) -> None:
        path = self.config.path
        self.in_force = InForce(
            pid=os.getpid(),
            home=str(self.config.home),
            file=None if path is None else str(path),
            digest=digest_of(self._wanted.text.encode()),
            read_at=now.isoformat(timespec="seconds"),
            restart=restart,
        )


def adopt(
    held: Config, wanted: Config, began: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Config, list[str]]:
    """Return the settings to use from now on, and the wanted changes that need a restart.

    `began` has the file's settings as they were at the daemon's start. The place where the state is stored and the
    environment cannot change while the daemon runs. A setting whose variable is not set stays as it was. A new
    backend without its key is left out.
    """
    backends: dict[str, Backend] = {}
    said = wanted.said
    restart = [
        f"{name}: takes effect when the daemon restarts"
        for name, above in _PLACES.items()
        if not environ.get(above) and began.get(name) != said.get(name)
    ]
    for name, backend in wanted.backends.items():
        before = held.backends.get(name)
        if not (missing := list(_unset(backend, before, environ))):
            backends[name] = backend
            continue
        restart += [_lacks(f"backends.{name}.{field}", variable) for field, variable in missing]
        if before is not None:
            backends[name] = before
    reports = wanted.reports
    if missing := list(_unset_reports(reports, held.reports, environ)):
        restart += [_lacks(f"reports.{field}", variable) for field, variable in missing]
        reports = held.reports
    telemetry = wanted.telemetry
    if missing := list(_unset_headers(telemetry, held.telemetry, environ)):
        restart += [_lacks(f"telemetry.{field}", variable) for field, variable in missing]
        telemetry = held.telemetry
    return dataclasses.replace(
        wanted, place=held.place, backends=backends, reports=reports, telemetry=telemetry
    ), restart


def _lacks(field: str, variable: str) -> str:
    return f"{field}: the daemon was started without {variable}; set it, then start the daemon again"


def _unset(backend: Backend, before: Backend | None, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for field in SECRETS:
        variable: str | None = getattr(backend, field, None)
        if variable is None or variable == getattr(before, field, None):
            continue
        if not environ.get(variable, "").strip():
            yield field, variable


def _unset_reports(wanted: Reports, held: Reports, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    known = set(_variables(held))
    for field, variable in _variables(wanted):
        if (field, variable) not in known and not environ.get(variable, "").strip():
            yield field, variable


def _unset_headers(
    wanted: Telemetry | None, held: Telemetry | None, environ: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    known = {} if held is None else held.headers_env
    named = {} if wanted is None else wanted.headers_env
    for header, variable in named.items():
        if known.get(header) != variable and not environ.get(variable, "").strip():
            yield f"headers_env.{header}", variable


def _variables(reports: Reports) -> Iterator[tuple[str, str]]:
    if reports.webhook_env is not None:
        yield "webhook_env", reports.webhook_env
    for field in ("user_env", "password_env"):
        if (variable := getattr(reports.smtp, field, None)) is not None:
            yield f"smtp.{field}", variable


def _content_or_error(path: Path) -> str | InputError:
    try:
        return text_of(path.read_bytes(), path)
    except FileNotFoundError:
        return InputError("is gone", file=path, hint="put it back, or end the daemon")
    except OSError as error:
        return InputError(f"cannot be read: {error.strerror}", file=path)
    except InputError as error:
        return error


def _same(one: str | InputError, other: str | InputError) -> bool:
    if isinstance(one, InputError) and isinstance(other, InputError):
        return str(one) == str(other)
    return one == other
