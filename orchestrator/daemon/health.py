"""Health reports of a daemon's batch servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx2

from orchestrator.backends.open import key_cure
from orchestrator.backends.openai_http import unix_client
from orchestrator.core.durations import duration
from orchestrator.core.engines import EngineState
from orchestrator.core.errors import StorageError
from orchestrator.core.unreachable import CURES
from orchestrator.server.in_process import socket_path
from orchestrator.settings.backends import Backend, FleetBackend
from orchestrator.settings.home import Home


def fetch_health(home: Home, backend: str) -> dict[str, Any] | None:
    """Return the health of a backend's server, or None if it does not run or does not answer."""
    socket: Path = socket_path(home.server(backend))
    if not socket.exists():
        return None
    try:
        with unix_client(socket, "http://orch", 5.0) as client:
            found: dict[str, Any] = client.get("/health").json()
            return found
    except (httpx2.HTTPError, ValueError):
        return None


def last_to_fail(health: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the upstream that failed last if all of a server's upstreams are down, else None.

    Engines that wait for a machine, or were given up, are not upstreams yet. If the server has only these engines,
    one counts as down: the engine that has waited for the shortest time.
    """
    upstreams: list[Mapping[str, Any]] = health["upstreams"]
    if not upstreams:
        return _without_machine(health["engines"])
    if not all(one["problem"] for one in upstreams):
        return None
    return min(upstreams, key=lambda one: float(one["problem_seconds"]))


def _without_machine(engines: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    waiting = (EngineState.PENDING, EngineState.GIVEN_UP)
    wanted = [one for one in engines if one["state"] != EngineState.COLD]
    if not wanted or not all(one["state"] in waiting for one in wanted):
        return None
    first = min(wanted, key=lambda one: float(one["seconds"]))
    told = first["problem"] or "no machine has room for it yet"
    return {"url": first["name"], "problem": told, "problem_seconds": first["seconds"]}


def without_engine(health: Mapping[str, Any]) -> str | None:
    """Describe the engines of a server that has running batches but no upstream yet; None in any other case."""
    engines: list[Mapping[str, Any]] = health["engines"]
    if health["upstreams"] or not engines or not health["running_batches"]:
        return None
    return "; ".join(
        f"{one['model']} is {one['state'].replace('_', ' ')}, for {duration(float(one['seconds']))} so far"
        + (f" ({one['problem']})" if one["problem"] else "")
        for one in engines
    )


def down_for(health: Mapping[str, Any]) -> dict[str, float]:
    """Return for how many seconds each backend has had no working upstream. Working backends are left out."""
    last = {name: last_to_fail(told) for name, told in health.items()}
    return {name: float(one["problem_seconds"]) for name, one in last.items() if one is not None}


def lost(health: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the upstream that failed last if the server has work but all upstreams are down; otherwise None."""
    return last_to_fail(health) if health["running_batches"] else None


def remedy(first: Mapping[str, Any], name: str, settings: Backend | None) -> str:
    """Return advice about a backend's upstream that takes no rows."""
    match first.get("refusal"):
        case "key" if settings is not None and not isinstance(settings, FleetBackend):
            return key_cure(name, settings.api_key_env)
        case "account":
            return "correct its key, or settle its account there; see `orch doctor`"
    if first.get("answers"):
        return "it answers, but takes no rows: correct its address or key, or repair what it names; see `orch doctor`"
    if (why := first.get("unreached")) is not None:
        return f"{CURES[why]}; see `orch doctor`"
    return "is vLLM running? see `orch doctor`"


class ServerHealth:
    """Health of a daemon's batch servers. `told` holds each server's last report."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.told: dict[str, Any] = {}

    def look(self, names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Fetch the health of these servers. Return the upstream that failed last, for each server with work but no
        working upstream.

        Raises StorageError if a server cannot write.
        """
        found = {}
        for name in names:
            if (health := fetch_health(self._home, name)) is None:
                continue
            self.told[name] = health
            if health["status"] == "storage":
                hint = "free disk space, then run the same command again; nothing is lost"
                raise StorageError(health["problem"], hint=hint)
            if (first := lost(health)) is not None:
                found[name] = first
        return found

    def down(self) -> dict[str, float]:
        """Return for how many seconds each backend has had no working upstream. Working backends are left out."""
        return down_for(self.told)
