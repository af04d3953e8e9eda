"""Backends as the pipeline uses them, and their health."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.backends import Backend
from orchestrator.backends.profiles import BatchLimits, Profile
from orchestrator.core.engines import EngineState
from orchestrator.core.model import Job, Outcome, Price, Usage
from orchestrator.policy.dialect import UNKNOWN, Recipient
from orchestrator.settings.config import ReadingSettings

if TYPE_CHECKING:
    from orchestrator.pipeline.build.reuse import Asked
    from orchestrator.pipeline.plan.planning import Planning

Models = Mapping[str, str | dict[str, str]]


class Prices(Protocol):
    """Prices of rows at a backend. Each method raises UsageError if no price is known."""

    def of_row(self, model: str, outcome: Outcome, expected: Usage) -> Price:
        """Price a row asked under this model name; `expected` stands in for unreported tokens."""

    def of_uncertain(self, model: str, sends: int, usage: Usage) -> Price | None:
        """Price sends of a row without an answer; None if they cost nothing beyond the row."""

    def of_time(self, seconds: float) -> Price:
        """Price upstream seconds; nothing if rows are paid by the token."""

    def known(self, model: str, endpoint: str) -> str:
        """Describe what a model costs there."""

    def at_most(self, model: str, usage: Usage) -> Price | None:
        """Price tokens as if none were cached; None if the price cannot be known beforehand."""

    def synchronous(self) -> Prices:
        """Return the prices of rows sent one by one, outside a batch."""


@dataclass(frozen=True, slots=True)
class BackendHandle:
    """A backend: its API, limits and prices.

    `is_own` marks our own server, which may be polled at will and retries rows itself. `upstreams` counts its
    endpoints that are paid by the hour. `recipient` says how requests are spelled there. With `preflight`, one row is
    asked synchronously before a batch of requests that it has never answered.
    """

    name: str
    api: Backend
    profile: Profile
    limits: BatchLimits
    poll_seconds: float
    price: Prices
    is_own: bool
    upstreams: int = 0
    recipient: Recipient = UNKNOWN
    preflight: bool = False


@dataclass(frozen=True, slots=True)
class BackendHandles:
    """Every backend by name, opened at its first use, with the planner's view of a job and its models' names.

    `shortage` returns why nothing more may be stored, or None. `down` returns backends with no upstream that has
    taken a row within their patience. `leaves` returns why rows should leave a backend, or None. `reading` limits the
    reading of documents. `health` returns the last report of a backend's own server.
    """

    open: Callable[[str], BackendHandle]
    planning: Callable[[Job], Planning]
    models: Callable[[Job], Models]
    asked: Callable[[Job], Asked]
    shortage: Callable[[], str | None] = lambda: None
    down: Callable[[], frozenset[str]] = frozenset
    leaves: Callable[[str], str | None] = lambda name: None
    reading: Callable[[], ReadingSettings] = ReadingSettings
    health: Callable[[str], Mapping[str, Any] | None] = lambda name: None


def last_to_fail(health: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the upstream that failed last if all of a server's upstreams are down, else None.

    Engines that wait for a machine, or were given up, are not upstreams yet. Without other upstreams, the engine that
    has waited for the shortest time counts as down.
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
    """Describe the engines of a server that has rows but no engine yet; None otherwise, or if no engine will come."""
    engines: list[Mapping[str, Any]] = health["engines"]
    if health["upstreams"] or not engines or not health["running_batches"]:
        return None
    return "; ".join(
        f"{one['model']} is {one['state'].replace('_', ' ')}" + (f" ({one['problem']})" if one["problem"] else "")
        for one in engines
    )


def down_for(health: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds for which backends have had no working upstream, without backends that have one."""
    last = {name: last_to_fail(told) for name, told in health.items()}
    return {name: float(one["problem_seconds"]) for name, one in last.items() if one is not None}
