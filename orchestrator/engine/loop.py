"""The engine: one process per home that runs the batch servers and takes the home's jobs through the pipeline.

`orch up` is it for as long as it runs; `orch run` and `orch submit --wait` are it themselves while they wait, unless
another process is. A lock on the home, which the kernel drops with the process, says who.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

from orchestrator.core.clock import now
from orchestrator.core.errors import (
    AccountError,
    BackendError,
    InputError,
    JobFilesError,
    NoRoom,
    OutputError,
    OutputFault,
    RefusedError,
    RequestRefused,
    StateConflict,
    StorageError,
    UsageError,
)
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job, JobFault
from orchestrator.core.replica.replicator import NotReplicated
from orchestrator.engine.backend_opener import BackendOpener
from orchestrator.engine.handles import check
from orchestrator.engine.health import ServerHealth, remedy
from orchestrator.engine.health import fetch_health as fetch_health
from orchestrator.engine.home_fleets import HomeFleets
from orchestrator.engine.lock import Holder as Holder
from orchestrator.engine.lock import engine_lock as engine_lock
from orchestrator.engine.lock import running_engine as running_engine
from orchestrator.engine.monitor import Monitor, Obstacle, Standstill, problem_code
from orchestrator.engine.notices import Notices
from orchestrator.engine.open_backends import OpenBackends
from orchestrator.engine.reloading import Reloader
from orchestrator.engine.replica.home_replica import HomeReplica
from orchestrator.engine.settings_in_force import digest_of, keep, other_settings
from orchestrator.engine.telemetry.switch import TelemetrySwitch
from orchestrator.pipeline import Pipeline
from orchestrator.pipeline.backend_handles import BackendHandle, BackendHandles
from orchestrator.pipeline.build.builds import Builds
from orchestrator.pipeline.build.reuse import asked_of
from orchestrator.pipeline.finish.outputs.faults import fault_of
from orchestrator.pipeline.gc import disk
from orchestrator.pipeline.plan.engine_speeds import ObservationMemory
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.pipeline.plan.routes import models_of
from orchestrator.pipeline.provider_calls import ProviderCalls, Threads
from orchestrator.pipeline.submit.budget import REACTION_SECONDS, SharedBudgets
from orchestrator.policy.alerts import AlertKind, Notice
from orchestrator.policy.backoff import TRIES, Faults
from orchestrator.settings.backends import OwnBackend
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store

log = logging.getLogger(__name__)

SHORTEST_WAIT, LONGEST_WAIT = 0.05, 1.0
HEALTH_SECONDS = 1.0
BUSY_SHARE = 4.0
TIDY_SECONDS = 3.0


class Engine:
    """Runs jobs of a home; make it only while holding the home's lock.

    `dispatch=False` serves what is there and cancels batches, but sends no row. `provider_calls` ask the providers;
    without one, threads of its own do. `builds` builds jobs; without it, they are built here. With a `replica`, it
    acts only while it is the active engine of that. `problem` is what keeps rows from being run now, for people.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        *,
        dispatch: bool = True,
        provider_calls: ProviderCalls | None = None,
        replica: HomeReplica | None = None,
        builds: Builds | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._home = Home(config.home)
        if replica is None and self._home.has_replica:
            raise UsageError(
                f"{self._home.root} has a replica, and another machine may have gone on with it",
                hint="only `orch up --replica URL` works in it",
            )
        self._news: list[str] = []
        self._stack = ExitStack()
        self._fleets = HomeFleets(self._home, store, self._news.append)
        self._opener = BackendOpener(store, config, self._stack, self._fleets, replica, dispatch=dispatch)
        self._backends = OpenBackends(config, self._opener.make, self._opener.serves)
        self._reloader = Reloader(config, check)
        self._look_at = 0.0
        self._faults = Faults()
        self.notices = Notices(now)
        self.listeners: list[Callable[[Config], None]] = []
        """Who else is notified of settings that hold from now on."""
        self.rounds: list[Callable[[], None]] = []
        """Who is notified that a round is over."""
        self._health = ServerHealth(self._home)
        self._health_at = 0.0
        self._problems: dict[str, Obstacle] = {}
        self.problem: str | None = None
        self._budgets = budgets = SharedBudgets(store, config, now)
        memory = ObservationMemory()
        handles = BackendHandles(
            open=self.open,
            planning=lambda job: Planning(
                store, self._config, job, now(), budgets.left, down=self._health.down(), memory=memory
            ),
            models=lambda job: models_of(self._config, job),
            asked=lambda job: asked_of(self._config, job),
            shortage=lambda: disk.shortage(self._home, self._config.retention),
            down=self._given_up,
            leaves=self._backends.leaves,
            reading=lambda: self._config.documents,
            health=lambda name: self._health.told.get(name),
        )
        self._provider_calls = provider_calls or Threads()
        self._replica = replica
        self.pipeline = Pipeline(
            store, self._home, handles, budgets, now, self._provider_calls, lambda: self.may_act, builds
        )
        self._monitor = Monitor(store, config)
        self._telemetry = TelemetrySwitch(store, self._home, config, self._news.append)
        if replica is not None:
            replica.follow(self._backends.durable_bytes)
            replica.on_held = self._backends.resume

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._provider_calls.close()
        self._monitor.close()
        self._telemetry.close()
        self._stack.close()

    def run(
        self,
        until: Callable[[], bool],
        tick: Callable[[Engine], None] = lambda engine: None,
        *,
        only: Job | None = None,
        mine: Job | None = None,
    ) -> None:
        """Advance the home's jobs (or `only` one) until `until()`; `tick` is called after each round.

        What keeps one job from going on keeps no other: it is noted, and raised only where that job is `mine`, the
        one that the caller waits for; BackendError once no upstream of it answers for longer than the `patience`
        of its backend. What the home itself suffers from is raised always: StorageError.
        """
        wait = SHORTEST_WAIT
        self._reloader.begin(now())
        keep(self._home, self._reloader.in_force)
        while not until():
            began = time.monotonic()
            moved = self._act(only, mine)
            tick(self)
            for heard in self.rounds:
                heard()
            wait = SHORTEST_WAIT if moved else min(LONGEST_WAIT, wait * 1.3)
            # Counting a million rows takes a while; looking must not take the time that the rows need.
            if not moved:
                wait = min(REACTION_SECONDS, max(wait, BUSY_SHARE * (time.monotonic() - began)))
            if not until():
                self._provider_calls.wait(wait)  # a batch is asked how it is by the clock; it cannot call
        if self.may_act:
            with suppress(NotReplicated):
                self.tidy_up()

    def _act(self, only: Job | None, mine: Job | None) -> bool:
        """Do what there is to do now, as far as this engine may; whether a job moved."""
        if self._replica is not None and not self.may_act:
            self.problem = self._replica.problem
            return False
        try:
            self._reload()
            moved = self._round(only, mine)
            self.pipeline.remote_cleanup.tick()
            self._look(mine)
            if only is None and mine is None:
                with self.notices.apart("deliveries"):
                    self.pipeline.finisher.deliver_again()
                # Whoever waits for a job sees it; others are notified.
                self._monitor.tick(self._standstill, now())
        except NotReplicated as error:
            self.problem = str(error)
            return False
        return moved

    @property
    def may_act(self) -> bool:
        """Whether no other engine can have taken over; without a replica none can."""
        return self._replica is None or self._replica.is_held

    def tidy_up(self) -> None:
        """Do what is left to do at backends, as far as a moment reaches; the next start does the rest."""
        over = time.monotonic() + TIDY_SECONDS
        while (
            self.pipeline.remote_cleanup.tick() and self.pipeline.remote_cleanup.is_busy and time.monotonic() < over
        ):
            self._provider_calls.wait(SHORTEST_WAIT)

    def _round(self, only: Job | None, mine: Job | None) -> bool:
        moved = False
        for job in self._store.jobs.unfinished(self._home.identity()):
            if only is not None and job.id != only.id:
                continue
            if only is None and (why := other_settings(self._store, job, self._config.path, now())) is not None:
                self._say(job, "other_settings", why)
                continue
            moved |= self._advance(job, mine is not None and mine.id == job.id)
        return moved

    def _advance(self, job: Job, is_mine: bool) -> bool:
        if not self._faults.is_due(job.id, now(), hurry=job.cancel_requested_at is not None):
            return False
        try:
            moved = self.pipeline.advance(job)
        except StateConflict as conflict:
            log.info("%s", conflict)  # somebody else moved it; the next round reads what is
            return True
        except JobFilesError as error:
            if is_mine:
                raise
            if isinstance(error, NoRoom):
                return self._caught(job, error, JobFault.NO_ROOM)
            if fault_of(error) is OutputFault.NO_ROOM or isinstance(error, OutputError):
                self._say(job, problem_code(error), str(error))  # it goes on by itself, or ends by itself
                return False
            return self._caught(job, error, JobFault.FILES)
        except (BackendError, UsageError, RefusedError) as error:
            self._say(job, problem_code(error), str(error))
            passes = isinstance(error, BackendError) and not isinstance(error, (AccountError, RequestRefused))
            if is_mine and not passes:
                raise
            return False
        except InputError as error:
            if self._at_backend(job):
                return self._caught(job, error, JobFault.INPUT)
            self._fail(job, JobFault.INPUT, str(error))
            return True
        except NotReplicated as error:
            self._say(job, problem_code(error), str(error))
            return False
        except StorageError:
            raise  # the home's
        except Exception as error:  # noqa: BLE001  (a defect harms its own job alone; it is logged, told and counted)
            return self._caught(job, error)
        if moved:
            self._faults.cleared(job.id)  # a step in which nothing was due says nothing of what failed
        if job.id not in self._faults:
            self._problems.pop(job.id, None)
        return moved

    def _caught(self, job: Job, error: Exception, code: JobFault = JobFault.INTERNAL) -> bool:
        """Something that is this job's alone: told, tried again, and after a while its end, where nothing is lost."""
        log.exception("job %s: %s", job.id, code)
        fault = self._faults.caught(job.id, error, now(), code)
        cancelled = job.cancel_requested_at is not None
        at_backend = self._at_backend(job)
        if fault.times >= TRIES and (cancelled or not at_backend):
            self._faults.cleared(job.id)
            left = "; its batches may still run at their backends: `orch reconcile` shows them" if at_backend else ""
            self._fail(job, code, f"{fault.reason}; engine.log has the details{left}")
            return True
        said = self._problems.get(job.id)
        if said is None or said.text != fault.told:
            self._store.jobs.note(job.id, EventKind.FAULT, fault.told, now(), code=fault.kind)
        self._say(job, fault.kind, fault.told)
        return False

    def _at_backend(self, job: Job) -> bool:
        """Whether batches of a job are under way, whose answers are paid for."""
        return any(not one.state.is_final for one in self._store.shards.of_job(job.id))

    def _fail(self, job: Job, code: str, error: str) -> None:
        try:
            self._store.jobs.fail(job.id, error, code)
        except StateConflict as conflict:
            log.info("%s", conflict)  # somebody else ended or removed it
            return
        self._problems.pop(job.id, None)
        self._store.jobs.note(job.id, EventKind.FAILED, error, now())

    def _standstill(self) -> Standstill:
        return Standstill(dict(self._problems), dict(self._health.told), self.notices.taken())

    # --- settings

    def _reload(self) -> None:
        """Apply an edited orch.toml, which is checked about once a second."""
        if time.monotonic() - self._look_at < HEALTH_SECONDS:
            return
        self._look_at = time.monotonic()
        with self.notices.apart("settings"):
            if (news := self._reloader.look(now())) is None:
                return
            keep(self._home, self._reloader.in_force)
            if (elsewhere := self._reloader.moves_to) is not None:
                keep(Home(elsewhere), self._reloader.in_force)
            if self._reloader.config is not self._config:
                self.use(self._reloader.config)
            self._news.append(news)
            log.warning("%s", news)
            for told in self._reloader.in_force.told:
                what = digest_of(f"{now()}{told}".encode())
                self.notices.add(Notice(AlertKind.SETTINGS, what, told, "the old settings stay in force until then"))

    def news(self) -> list[str]:
        """What was told of orch.toml and of engines since this was asked last."""
        found, self._news[:] = [*self._news], []
        return found

    def use(self, config: Config) -> None:
        """These settings hold from now on."""
        self._config = config
        for part in (self._budgets, self._monitor, self._opener, self._backends, self._telemetry):
            part.use(config)
        self.pipeline.settings_changed()
        for listener in self.listeners:
            listener(config)

    def _say(self, job: Job, code: str, text: str) -> None:
        """Tell what keeps a job from going on, once; its time counts for as long as it is the same problem."""
        before = self._problems.get(job.id)
        if before is not None and before.text == text:
            return
        since = before.since if before is not None and before.code == code else now()
        self._problems[job.id] = Obstacle(code, text, since)
        self._store.jobs.note(job.id, EventKind.WAITING, text, now(), code=code)

    def _look(self, mine: Job | None) -> None:
        """Ask the servers how they are, about once a second."""
        if time.monotonic() - self._health_at < HEALTH_SECONDS:
            return
        self._health_at = time.monotonic()
        with self.notices.apart("engines"):
            for name in self._fleets.wished(self._config):
                self.open(name)
            self._fleets.note_holds()
        self.problem = next((problem.text for problem in self._problems.values()), None)
        if self._replica is not None and (failing := self._replica.failing) is not None:
            self.problem = failing
        found: dict[str, Mapping[str, Any]] = {}
        with self.notices.apart("health"):
            found = self._health.look([name for name, _ in self._backends.servers()])
        for name, settings in self._backends.servers():
            if name in found:
                self._upstreams_down(name, settings, found[name], mine)

    def _upstreams_down(self, name: str, settings: OwnBackend, first: Mapping[str, Any], mine: Job | None) -> None:
        seconds = float(first["problem_seconds"])
        what = f"{first['problem']}, for {seconds:.0f} s"
        self.problem = f"waiting for {first['url']} ({what}): {remedy(first)}"
        if seconds > settings.patience and mine is not None and self._is_stuck(mine, name):
            raise BackendError(
                f"backend {name}: no upstream took a row for {seconds:.0f} s: {first['url']}: {first['problem']}",
                hint=f"{remedy(first)}; then run the same command again: the job resumes where it stopped",
            )

    def _is_stuck(self, job: Job, backend: str) -> bool:
        """Whether a job has rows at a backend, and no other may take them."""
        shards = self._store.shards.of_job(job.id)
        is_there = any(shard.backend == backend and not shard.state.is_final for shard in shards)
        return is_there and not Planning(self._store, self._config, job, now()).has_other_than(*self._given_up())

    def _given_up(self) -> frozenset[str]:
        return self._health.given_up(self._config.backends)

    def open(self, name: str) -> BackendHandle:
        """A backend, its server started at the first use. Raises BackendError, UsageError."""
        return self._backends.handle(name)
