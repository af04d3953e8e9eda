"""A backend as the pipeline uses it, and the choice among backends for a job."""

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
    """What rows cost at a backend. Each raises UsageError where no price is known."""

    def of_row(self, model: str, outcome: Outcome, expected: Usage) -> Price:
        """A row that was asked for under this name of the model there; `expected` stands in for tokens not told."""

    def of_uncertain(self, model: str, sends: int, usage: Usage) -> Price | None:
        """What sends of a row without an answer may have cost; None where they cost nothing beside the row."""

    def of_time(self, seconds: float) -> Price:
        """Seconds of upstream time; nothing where rows are paid by the token."""

    def known(self, model: str, endpoint: str) -> str:
        """What a model costs there, in words."""

    def at_most(self, model: str, usage: Usage) -> Price | None:
        """Tokens that may be used, if none of them is cached; None where that cannot be known beforehand."""

    def synchronous(self) -> Prices:
        """What rows cost there that are asked one by one, outside a batch."""


@dataclass(frozen=True, slots=True)
class BackendHandle:
    """A backend: its API, what it takes, and what a row costs there.

    `is_own` marks our own server: it is asked as often as we like, and tries rows again by itself. `upstreams` counts
    the endpoints behind it that are paid by the hour. `recipient` says how requests are spelled there. `preflight`:
    one row is asked at its synchronous endpoint before a batch of requests that it has never answered.
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
    """Every backend by name, opened at its first use; the planner's view of a job, and what its models are called.

    `shortage` says why nothing more may be stored, None where there is room; `down` names the backends none of whose
    upstreams has taken a row for longer than their patience; `leaves` says why rows are to come back from a backend,
    None where they may stay; `reading` what documents may take. `health` is what our server of a backend said last.
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
    """The upstream that failed last, where all of a server's are down by what it says; None where one takes rows.

    Engines that wait for a machine, or were given up on one, are no upstreams yet: where there are no others, the one
    that waits for the shortest time counts as one that is down.
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
    """What the engines of a server do that has rows and no engine for them yet, for people; None where one takes rows
    or there are none to come."""
    engines: list[Mapping[str, Any]] = health["engines"]
    if health["upstreams"] or not engines or not health["running_batches"]:
        return None
    return "; ".join(
        f"{one['model']} is {one['state'].replace('_', ' ')}" + (f" ({one['problem']})" if one["problem"] else "")
        for one in engines
    )


def down_for(health: Mapping[str, Any]) -> dict[str, float]:
    """For how many seconds no upstream of a backend has taken rows, by what its server says; those where one does
    are left out."""
    last = {name: last_to_fail(told) for name, told in health.items()}
    return {name: float(one["problem_seconds"]) for name, one in last.items() if one is not None}
