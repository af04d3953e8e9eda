"""Controls a fleet's engines. Each second it reads their state, decides by `policy.engine_switches`, and acts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.engines import EngineHold, EngineState, ModelDemand
from orchestrator.core.errors import BackendError, OrchError
from orchestrator.daemon.drivers import AnyFleet
from orchestrator.daemon.engine_wishes import Wished, read_wishes
from orchestrator.daemon.held_gpus import HeldGpus
from orchestrator.policy import engine_switches as policy
from orchestrator.policy.degradation import SpeedWatch
from orchestrator.policy.engine_switches import (
    EngineStep,
    EngineView,
    EngineWish,
    FleetTerms,
    ModelTerms,
    StepCause,
    StepKind,
)
from orchestrator.policy.fleet_size import RateWatch
from orchestrator.policy.planner.stints import work_of
from orchestrator.server.engines.driver import EngineDriver, EngineReport, Slots
from orchestrator.settings.backends import RayBackend

if TYPE_CHECKING:
    from orchestrator.server.engine_control import SteeredServer

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
START_SECONDS = 60.0
"""Assumed seconds that a model needs to start, until a start was measured."""
GATHER_SECONDS = 3.0
"""Seconds from the first waiting rows to the first start of an engine.

A job's batches arrive one by one, and the choice of engine depends on all their models.
"""
PREPARE_SECONDS = 30.0
"""Seconds between attempts to find the engines' slots."""

Key = tuple[str, Slots]


class FleetController:
    """Controls a fleet. `begin` starts to control a server's engines, `end` stops controlling, `close` also ends the
    engines.

    `folder` is the folder of the server, `tell` receives progress messages, and `now` is the clock for the hours.
    `starts` has the seconds that each model's earlier starts took.
    """

    def __init__(
        self,
        name: str,
        settings: AnyFleet,
        driver: EngineDriver,
        folder: Path,
        *,
        tell: Callable[[str], None],
        now: Callable[[], datetime],
        starts: Mapping[str, float] | None = None,
    ) -> None:
        self._name = name
        self._starts = dict(starts or {})
        self._settings = settings
        self._driver = driver
        self._folder = folder
        self._tell = tell
        self._now = now
        self._server: SteeredServer | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._joined: dict[Key, str] = {}
        self._watches: dict[Key, SpeedWatch] = {}
        self._rates: dict[str, RateWatch] = {}
        self._pending_since: dict[Key, float] = {}
        """Times at which engines began to wait for a machine, by engine."""
        self._leaving: dict[Key, threading.Thread] = {}
        self._waited_at: dict[str, datetime] = {}
        """Time of each model's last waiting row. Without rows so far, the time at which its engine or a wish for it
        was first seen.
        """
        self._asked_at: float | None = None
        """Time at which rows began to wait without any engine, or None."""
        self._holds = HeldGpus(name, now)
        self._told: list[dict[str, Any]] = []
        self._problem: str | None = None
        self._prepared_at = float("-inf")
        self._slots: Slots | None = None

    def begin(self, server: SteeredServer) -> None:
        """Control this server's engines in a thread, until `end`."""
        self._server = server
        server.tell_engines(lambda: self._told)
        self._thread = threading.Thread(target=self._run, name=f"fleet {self._name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop controlling the engines. They keep running."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Stop the engines, and return once they are gone."""
        self.end()
        self._driver.close()
        self._holds.look([], self._settings)

    def holds(self, home: str) -> list[EngineHold]:
        """Return the GPUs that the engines have held since the last call."""
        return self._holds.taken(home)

    def use(self, settings: AnyFleet) -> None:
        """Use new hours, prices and idle time."""
        self._settings = settings

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self.look()
            except Exception as error:  # further looks must follow a failed look
                log.exception("fleet %s", self._name)
                self._say(f"an internal error: {error}; engine.log has the details")
            self._ending.wait(LOOK_SECONDS)

    def look(self) -> None:
        """Run one round: read the engines' state, decide and act."""
        if not self._is_prepared():
            self._told = self._report([], {})
            return
        assert self._server is not None
        assert self._slots is not None
        now = self._now()
        try:
            demands = self._server.demand()
        except BackendError:
            return  # the server is ending, and its engines end too
        reports = self._driver.engines()
        wishes = self._valid_wishes(now)
        self._note_waiting_models(reports, demands, wishes, now)
        self._join_and_leave(reports)
        self._learn_speeds_and_starts(reports)
        steps = policy.steps(self._terms(self._slots), self._views(reports, now), demands, now, wishes)
        steps += self._stops_of_worn_engines(reports, {(step.model, step.slots) for step in steps})
        gathers = self._waits_for_more_rows(reports, demands)
        for step in steps:
            if step.cause is not StepCause.ROWS or not gathers:
                self._act(step, reports)
        reports = self._driver.engines()
        self._holds.look(reports, self._settings)
        self._told = self._report(reports, wishes)

    def _waits_for_more_rows(self, reports: Sequence[EngineReport], demands: Sequence[ModelDemand]) -> bool:
        if reports or not any(demand.waiting for demand in demands):
            self._asked_at = None
            return False
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        return time.monotonic() - self._asked_at < GATHER_SECONDS

    def _is_prepared(self) -> bool:
        if self._slots is None and time.monotonic() - self._prepared_at >= PREPARE_SECONDS:
            try:
                self._slots = self._driver.prepare(self._ending.is_set)
                self._problem = None
            except OrchError as error:
                if not self._ending.is_set():
                    self._say(str(error))
            self._prepared_at = time.monotonic()
        return self._slots is not None

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._tell(f"{self._name}: {problem}")

    def _terms(self, slots: Slots) -> FleetTerms:
        settings = self._settings
        models = tuple(map(self._model_terms, settings.model_names))
        return FleetTerms(slots, models, settings.open_hours, settings.idle)

    def _model_terms(self, name: str) -> ModelTerms:
        settings, start = self._settings, self._starts.get(name, START_SECONDS)
        if isinstance(settings, RayBackend):
            least, most = settings.models[name].engines
            first = sum(settings.models[one].engines[1] for one in takewhile(name.__ne__, settings.models))
            rate = (self._rates[name].rate if name in self._rates else None) or settings.rows_per_second
            return ModelTerms(
                name, start_seconds=start, rate=rate, own=tuple(range(first, first + most)), least=least
            )
        model = settings.models[name]
        return ModelTerms(name, model.tensor_parallel, model.swap == "sleep", start, settings.rows_per_second)

    def _valid_wishes(self, now: datetime) -> dict[str, EngineWish]:
        """Return the wishes that still count, by model. A start wish expires once the model has been idle for the
        idle time.
        """
        idle = self._settings.idle
        return {
            name: one.wish
            for name, one in read_wishes(self._folder).items()
            if name in self._settings.model_names
            and not (one.wish is EngineWish.START and self._idle_since(name, one, now) >= idle)
        }

    def _idle_since(self, model: str, wished: Wished, now: datetime) -> float:
        last = max(wished.at, self._waited_at.get(model, wished.at))
        return (now - last).total_seconds()

    def _note_waiting_models(
        self,
        reports: Sequence[EngineReport],
        demands: Sequence[ModelDemand],
        wishes: dict[str, EngineWish],
        now: datetime,
    ) -> None:
        waiting = {demand.model for demand in demands if demand.waiting}
        for report in reports:
            if None in waiting or report.model in waiting or report.model not in self._waited_at:
                self._waited_at[report.model] = now
        for name, wish in wishes.items():
            if wish is EngineWish.START:
                self._waited_at.setdefault(name, now)

    def _join_and_leave(self, reports: Sequence[EngineReport]) -> None:
        assert self._server is not None
        there = {(report.model, report.slots): report for report in reports}
        self._leaving = {key: thread for key, thread in self._leaving.items() if thread.is_alive()}
        for key, report in there.items():
            if key in self._leaving:
                continue
            if self._joined.get(key, report.url) != report.url:
                self._server.leave(self._joined.pop(key), 0.0)  # the engine has moved, or its machine is lost
            # A given-up engine counts as an upstream that is down, which matters for the choice among backends.
            is_shown = report.state in (EngineState.WARM, EngineState.GIVEN_UP) and report.url
            if is_shown and key not in self._joined:
                self._server.join(report.url, [report.model], report.key)
                self._joined[key] = report.url
        for key in [key for key in self._joined if key not in there and key not in self._leaving]:
            self._server.leave(self._joined.pop(key), 0.0)

    def _learn_speeds_and_starts(self, reports: Sequence[EngineReport]) -> None:
        assert self._server is not None
        at, model_at = time.monotonic(), {url: key[0] for key, url in self._joined.items()}
        for one in self._server.progress():
            if (model := model_at.get(one.url)) is not None:
                self._rates.setdefault(model, RateWatch()).observe(at, one.url, one.rows, one.in_flight)
        for watch in self._rates.values():
            watch.keep(model_at)
        for report in reports:
            key = (report.model, report.slots)
            if report.state is EngineState.PENDING:
                self._pending_since.setdefault(key, at)
            elif report.state is EngineState.WARM and (since := self._pending_since.pop(key, None)) is not None:
                known = self._starts.get(report.model, at - since)
                self._starts[report.model] = (known + at - since) / 2

    def _views(self, reports: Sequence[EngineReport], now: datetime) -> list[EngineView]:
        views = []
        for report in reports:
            key = (report.model, report.slots)
            state = EngineState.DRAINING if key in self._leaving else report.state
            idle = (now - self._waited_at.get(report.model, now)).total_seconds()
            views.append(EngineView(report.model, report.slots, state, report.seconds, idle))
        return views

    def _act(self, step: EngineStep, reports: Sequence[EngineReport]) -> None:
        key = (step.model, step.slots)
        report = next((one for one in reports if (one.model, one.slots) == key), None)
        if report is None or report.problem is None or step.kind is not StepKind.START:
            log.info("fleet %s: %s %s on %s: %s", self._name, step.kind, step.model, step.slots, step.reason)
        match step.kind:
            case StepKind.START:
                self._waited_at[step.model] = self._now()
                self._driver.start(step.model, step.slots)
            case StepKind.WAKE:
                self._tell(f"{self._name}: waking {step.model}: {step.reason}")
                self._waited_at[step.model] = self._now()
                self._driver.wake(step.model, step.slots)
            case StepKind.STOP | StepKind.SLEEP:
                verb = "stopping" if step.kind is StepKind.STOP else "putting to sleep"
                where = "" if report is None else f" on {report.name}"
                self._tell(f"{self._name}: {verb} {step.model}{where}: {step.reason}")
                self._drain_and_end(step, key)

    def _stops_of_worn_engines(self, reports: Sequence[EngineReport], others: set[Key]) -> list[EngineStep]:
        assert self._server is not None
        sizes = {(one.model, one.slots): one.host_memory for one in reports}
        done = {one.url: one for one in self._server.progress()}
        found, at = [], time.monotonic()
        for key, url in self._joined.items():
            if (one := done.get(url)) is None or key in others:
                continue
            watch = self._watches.setdefault(key, SpeedWatch())
            work = work_of(one.input_tokens - one.cached_tokens, one.output_tokens)
            why = watch.observe(at, work, one.in_flight)
            why = why or watch.too_large(at, sizes.get(key, 0), self._settings.host_memory)
            if why is not None:
                watch.restarted(at)
                found.append(EngineStep(StepKind.STOP, *key, StepCause.WORN, why))
        return found

    def _drain_and_end(self, step: EngineStep, key: Key) -> None:
        server, url = self._server, self._joined.pop(key, None)
        end = self._driver.stop if step.kind is StepKind.STOP else self._driver.sleep

        def let_go() -> None:
            try:
                if server is not None and url is not None:
                    server.leave(url, min(step.drain, self._settings.request_timeout))
            except BackendError as error:
                log.info("%s", error)
            end(*key)

        if url is None:
            end(*key)
            return
        thread = self._leaving[key] = threading.Thread(target=let_go, name=f"drain {step.model}", daemon=True)
        thread.start()

    def _report(self, reports: Sequence[EngineReport], wishes: dict[str, EngineWish]) -> list[dict[str, Any]]:
        shown = [
            replace(one, state=EngineState.DRAINING) if (one.model, one.slots) in self._leaving else one
            for one in reports
        ]
        found = [one.shown() for one in shown]
        models = self._settings.model_names
        for name in set(models) - {one.model for one in reports}:
            cold = EngineReport(
                "", name, (), "", EngineState.COLD, 0.0, problem=self._problem or self._why_cold(name, wishes)
            )
            found.append({**cold.shown(), "name": None, "url": None})
        return sorted(found, key=lambda one: models.index(one["model"]))

    def _why_cold(self, model: str, wishes: dict[str, EngineWish]) -> str | None:
        hours, now = self._settings.open_hours, self._now()
        if hours is not None and now < (opens := hours.span(now).opens):
            return f"outside its hours; they begin at {opens.astimezone():%H:%M}"
        if (wish := wishes.get(model)) in (EngineWish.STOP, EngineWish.SLEEP):
            return f"asked for: orch engines {wish.value} {model}; `orch engines start {model}` takes that back"
        return None
