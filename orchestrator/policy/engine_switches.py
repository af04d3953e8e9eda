"""Decisions about which engines run on which slots, based on waiting rows. Pure: all inputs are arguments.

Models share the slots (GPUs) of a fleet. A switch costs minutes, so a slot keeps its model until no row of the model
waits. The slot switches earlier only if another model would otherwise miss its deadline. Outside its hours, a fleet
runs no engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from orchestrator.core.engines import EngineState, ModelDemand
from orchestrator.core.hours import Hours, Opening
from orchestrator.policy.fleet_size import MARGIN, due_of, engines_for

SETTLE_SECONDS = 5.0
"""Seconds without a waiting row before an engine yields to another model: the next rows may be on their way."""
RETRY_SECONDS = 600.0
"""Seconds before orch retries an engine that it gave up on."""
STOP_SECONDS = 40.0
"""Seconds reserved for a process to end, so that no process runs after the hours."""
ASSUMED_RATE = 1.0
"""Rate assumed for an engine whose rate is unknown, in rows a second."""
RUNNING = (EngineState.PENDING, EngineState.STARTING, EngineState.WARM, EngineState.DRAINING)

Slots = tuple[int, ...]


class StepKind(StrEnum):
    """Action on an engine."""

    START = "start"
    STOP = "stop"
    SLEEP = "sleep"
    WAKE = "wake"


class StepCause(StrEnum):
    """Reason for an action on an engine."""

    ROWS = "rows"  # rows wait for the engine
    SWAP = "swap"  # no row of its model waits, and another model's rows do
    DEADLINE = "deadline"  # another model would otherwise miss its deadline
    HOURS = "hours"  # the hours of the fleet end
    IDLE = "idle"  # the engine had no rows for a while
    ASKED = "asked"  # a person requested the action
    WORN = "worn"  # the engine has become slower, or uses more memory than allowed
    RETRY = "retry"  # the engine was given up a while ago


class EngineWish(StrEnum):
    """Action that a person requested for a model."""

    START = "start"
    STOP = "stop"
    SLEEP = "sleep"


class ModelTerms(Struct, frozen=True):
    """A model of a fleet. Each engine takes `size` slots; `rate` is the rows a second of one engine, None if unknown.

    `sleeps` is true if an engine of the model can sleep. `start_seconds` is how long an engine takes to start. A
    model with its `own` slots shares no slot with other models. Its engines cost money while they exist. orch runs
    the fewest of these engines that meet the deadlines, but at least `least`.
    """

    name: str
    size: int = 1
    sleeps: bool = False
    start_seconds: float = 60.0
    rate: float | None = None
    own: Slots | None = None
    least: int = 0


class FleetTerms(Struct, frozen=True):
    """Settings of a fleet: its slots, its models, and its hours (None: always).

    `idle_seconds` is how long an engine may have no waiting rows before orch stops it. `drain_seconds` is the maximum
    time for rows in flight to finish and the process to end.
    """

    slots: Slots
    models: tuple[ModelTerms, ...]
    hours: Hours | None = None
    idle_seconds: float = 600.0
    drain_seconds: float = 120.0

    def groups(self, model: ModelTerms) -> list[Slots]:
        """Return the groups of slots on which a model can run, one group per engine."""
        slots = self.slots if model.own is None else model.own
        return [slots[at : at + model.size] for at in range(0, len(slots) - model.size + 1, model.size)]


class EngineView(Struct, frozen=True):
    """An engine as it is now: `seconds` in its state, and `idle_seconds` without waiting rows of its model."""

    model: str
    slots: Slots
    state: EngineState
    seconds: float = 0.0
    idle_seconds: float = 0.0


class EngineStep(Struct, frozen=True):
    """An action on the engine of a model on `slots`. Rows in flight get `drain` seconds to finish."""

    kind: StepKind
    model: str
    slots: Slots
    cause: StepCause
    reason: str
    drain: float = math.inf


class _Asked(Struct, frozen=True):
    """Demand for a model: its waiting rows, the number of engines that it needs, and the deadline.

    `seconds` is how long the engines need for the rows.
    """

    terms: ModelTerms
    waiting: int
    engines: int
    seconds: float
    deadline: datetime


def steps(
    terms: FleetTerms,
    engines: Sequence[EngineView],
    demands: Sequence[ModelDemand],
    now: datetime,
    wishes: Mapping[str, EngineWish] | None = None,
) -> list[EngineStep]:
    """Return the actions to take now. Actions that are already under way are left out."""
    wishes = wishes or {}
    span = None if terms.hours is None else terms.hours.span(now)
    drain = timedelta(seconds=terms.drain_seconds)
    if span is not None and not span.opens <= now < span.closes - drain:
        return _stops_outside_hours(engines, span, now)
    asked = _asked_demands(terms, engines, demands, now, wishes)
    ordered = _in_turn(asked, engines, now)
    claims = _claims(terms, ordered, engines)
    found = _stops(terms, engines, claims, ordered, wishes)
    leaving = {(step.model, step.slots) for step in found}
    found += _starts(terms, engines, claims, wishes, span, now, leaving)
    return found


def _stops_outside_hours(engines: Sequence[EngineView], span: Opening, now: datetime) -> list[EngineStep]:
    """Return a stop for each running engine. Rows in flight may finish until `STOP_SECONDS` before the hours end."""
    left = max(0.0, (span.closes - now).total_seconds() - STOP_SECONDS) if now >= span.opens else 0.0
    at = span.closes if now >= span.opens else span.opens
    told = f"the hours of the fleet {'end' if now >= span.opens else 'begin'} at {at.astimezone():%H:%M}"
    running = [one for one in engines if one.state not in (EngineState.COLD, EngineState.DRAINING)]
    return [EngineStep(StepKind.STOP, one.model, one.slots, StepCause.HOURS, told, left) for one in running]


def _asked_demands(
    terms: FleetTerms,
    engines: Sequence[EngineView],
    demands: Sequence[ModelDemand],
    now: datetime,
    wishes: Mapping[str, EngineWish],
) -> list[_Asked]:
    running = [one.model for one in engines if one.state in RUNNING]
    anyone = next(iter(running), terms.models[0].name)
    found = []
    for model in terms.models:
        own = [one for one in demands if (one.model or anyone) == model.name]
        waiting = sum(one.waiting for one in own)
        wish = wishes.get(model.name)
        is_wanted = waiting or model.least or wish is EngineWish.START
        if wish in (EngineWish.STOP, EngineWish.SLEEP) or not is_wanted:
            continue
        rate, most = model.rate or ASSUMED_RATE, len(terms.groups(model))
        engines_wanted = _engines_wanted(model, own, rate, most, engines, now)
        seconds = MARGIN * waiting / (rate * max(1, engines_wanted))
        deadline = min((one.deadline for one in own if one.waiting), default=math.inf)
        by = datetime.max.replace(tzinfo=now.tzinfo) if math.isinf(deadline) else _moment(deadline, now)
        if most:
            found.append(_Asked(model, waiting, engines_wanted, seconds, by))
    return found


def _engines_wanted(
    model: ModelTerms, demands: Sequence[ModelDemand], rate: float, most: int, engines: Sequence[EngineView],
    now: datetime,
) -> int:  # fmt: skip
    waiting = sum(one.waiting for one in demands)
    if model.own is None:
        # A further engine is worth its start if the other engines need longer than the start takes.
        return min(most, max(1, math.ceil(waiting / (rate * max(1.0, model.start_seconds)))))
    running = sum(one.model == model.name and one.state in (*RUNNING, EngineState.GIVEN_UP) for one in engines)
    start, at = model.start_seconds, now.timestamp()
    found = engines_for(due_of(demands), rate=rate, start=start, running=running, most=most, now=at) if waiting else 0
    return min(most, max(1, model.least, found))


def _moment(seconds: float, now: datetime) -> datetime:
    return datetime.fromtimestamp(seconds, now.tzinfo)


def _in_turn(asked: Sequence[_Asked], engines: Sequence[EngineView], now: datetime) -> list[_Asked]:
    """Order the demands by deadline. Demands without waiting rows come last.

    Loaded models come first unless another model would miss its deadline by waiting.
    """
    loaded = {one.model for one in engines if one.state in (EngineState.STARTING, EngineState.WARM)}
    rivals = [one for one in asked if one.terms.name in loaded and one.waiting]

    def is_urgent(one: _Asked) -> bool:
        needs = one.seconds + one.terms.start_seconds
        return any(
            one.deadline < rival.deadline and _late(now, rival.seconds + needs, one.deadline) for rival in rivals
        )

    def place(one: _Asked) -> tuple[bool, bool, datetime, int]:
        goes_on = one.terms.name in loaded or is_urgent(one)
        return (not one.waiting, not goes_on, one.deadline, asked.index(one))

    return sorted(asked, key=place)


def _late(now: datetime, seconds: float, deadline: datetime) -> bool:
    return (deadline - now).total_seconds() < seconds


def _claims(terms: FleetTerms, ordered: Sequence[_Asked], engines: Sequence[EngineView]) -> dict[Slots, str]:
    claims: dict[Slots, str] = {}
    taken: set[int] = set()
    for asked in ordered:
        name = asked.terms.name
        has = {one.slots for one in engines if one.model == name and one.state is not EngineState.COLD}
        others = {slot for one in engines if one.model != name and one.state in RUNNING for slot in one.slots}
        groups = terms.groups(asked.terms)
        groups.sort(key=lambda slots: (slots not in has, not others.isdisjoint(slots)))
        free = [slots for slots in groups if taken.isdisjoint(slots)]
        for slots in free[: asked.engines]:
            claims[slots] = name
            taken.update(slots)
    return claims


def _stops(
    terms: FleetTerms,
    engines: Sequence[EngineView],
    claims: Mapping[Slots, str],
    ordered: Sequence[_Asked],
    wishes: Mapping[str, EngineWish],
) -> list[EngineStep]:
    found = []
    by_name = {model.name: model for model in terms.models}
    asked = {one.terms.name: one for one in ordered}
    for one in engines:
        if one.state in (EngineState.COLD, EngineState.DRAINING) or claims.get(one.slots) == one.model:
            if one.state is EngineState.GIVEN_UP and one.seconds >= RETRY_SECONDS:
                told = "it was given up a while ago, and is tried again"
                found.append(EngineStep(StepKind.STOP, one.model, one.slots, StepCause.RETRY, told))
            continue
        step = _stop_of(terms, one, by_name.get(one.model), claims, asked, wishes.get(one.model))
        if step is not None:
            found.append(step)
    return found


def _stop_of(
    terms: FleetTerms,
    one: EngineView,
    model: ModelTerms | None,
    claims: Mapping[Slots, str],
    asked: Mapping[str, _Asked],
    wish: EngineWish | None,
) -> EngineStep | None:
    if model is None:
        return EngineStep(
            StepKind.STOP, one.model, one.slots, StepCause.ASKED, f"{one.model} is no longer in orch.toml"
        )
    may_sleep = model.sleeps and one.state is EngineState.WARM
    if wish is EngineWish.STOP or (wish is EngineWish.SLEEP and one.state is not EngineState.ASLEEP):
        kind = StepKind.SLEEP if wish is EngineWish.SLEEP and may_sleep else StepKind.STOP
        return EngineStep(
            kind, one.model, one.slots, StepCause.ASKED, f"asked for: orch engines {wish.value} {one.model}"
        )
    other = next((name for slots, name in claims.items() if not set(slots).isdisjoint(one.slots)), None)
    if other is not None and one.state is not EngineState.ASLEEP:
        own = asked.get(one.model)
        if own is None or not own.waiting:
            if one.state in RUNNING and one.idle_seconds < SETTLE_SECONDS:
                return None
            cause, told = StepCause.SWAP, f"no row of {one.model} waits, and rows of {other} do"
        else:
            by = asked[other].deadline.astimezone()
            cause, told = StepCause.DEADLINE, f"{other} is due at {by:%H:%M}, and cannot wait for {one.model}"
        kind = StepKind.SLEEP if may_sleep else StepKind.STOP
        return EngineStep(kind, one.model, one.slots, cause, told)
    is_idle = one.idle_seconds >= terms.idle_seconds and one.model not in asked
    if is_idle and (one.state is not EngineState.ASLEEP or not asked):
        told = f"no row of {one.model} has waited for {one.idle_seconds:.0f} s"
        return EngineStep(StepKind.STOP, one.model, one.slots, StepCause.IDLE, told)
    return None


def _starts(
    terms: FleetTerms,
    engines: Sequence[EngineView],
    claims: Mapping[Slots, str],
    wishes: Mapping[str, EngineWish],
    span: Opening | None,
    now: datetime,
    leaving: set[tuple[str, Slots]],
) -> list[EngineStep]:
    by_name = {model.name: model for model in terms.models}
    found = []
    for slots, name in claims.items():
        there = next((one for one in engines if one.model == name and one.slots == slots), None)
        state = EngineState.COLD if there is None else there.state
        if state not in (EngineState.COLD, EngineState.ASLEEP) or (name, slots) in leaving:
            continue
        yielding = (EngineState.COLD, EngineState.ASLEEP, EngineState.GIVEN_UP)
        if any(one.state not in yielding and not set(one.slots).isdisjoint(slots) for one in engines):
            continue  # other engines still hold these slots
        start = 0.0 if state is EngineState.ASLEEP else by_name[name].start_seconds
        if span is not None and _late(now, 2 * start + terms.drain_seconds, span.closes):
            continue  # the engine would spend most of its time on the start
        cause = StepCause.ASKED if wishes.get(name) is EngineWish.START else StepCause.ROWS
        told = f"asked for: orch engines start {name}" if cause is StepCause.ASKED else f"rows of {name} wait"
        kind = StepKind.WAKE if state is EngineState.ASLEEP else StepKind.START
        found.append(EngineStep(kind, name, slots, cause, told))
    return found
