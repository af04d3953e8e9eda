"""The daemon: one process per home that runs the batch servers and takes the home's jobs through the pipeline.

`orch up` is the daemon while it runs. `orch run` and `orch submit --wait` are the daemon while they wait, unless
another process already is. A lock on the home decides. The kernel drops the lock when the process that holds it ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from orchestrator.core.clock import now
from orchestrator.core.durations import duration
from orchestrator.core.errors import (
    AccountError,
    BackendError,
    InputError,
    JobFilesError,
    NoRoom,
    NotReplicated,
    NotSent,
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
from orchestrator.core.shards import HoldCode
from orchestrator.daemon.health import fetch_health as fetch_health
from orchestrator.daemon.health import remedy
from orchestrator.daemon.home_backends import HomeBackends
from orchestrator.daemon.lock import Holder as Holder
from orchestrator.daemon.lock import daemon_lock as daemon_lock
from orchestrator.daemon.lock import running_daemon as running_daemon
from orchestrator.daemon.monitor import Monitor, Obstacle, Standstill, problem_code
from orchestrator.daemon.notices import Notices
from orchestrator.daemon.reloading import Reloader
from orchestrator.daemon.running_settings import digest_of, keep, other_settings
from orchestrator.daemon.telemetry.switch import TelemetrySwitch
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.budget import REACTION_SECONDS, SharedBudgets
from orchestrator.pipeline.build.build_orders import Builds
from orchestrator.pipeline.finish.outputs.faults import fault_of
from orchestrator.pipeline.job_steps import Pipeline
from orchestrator.pipeline.plan.mixed_planning import planning_of
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.pipeline.provider_calls import ProviderCalls, Threads
from orchestrator.policy.alerts import AlertKind, Notice
from orchestrator.policy.internal_errors import TRIES, Faults
from orchestrator.settings.backends import FleetBackend, HostedBackend, LocalBackend, OwnBackend
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store

if TYPE_CHECKING:
    from orchestrator.daemon.replica.home_replica import HomeReplica

log = logging.getLogger(__name__)

FIRST_WAIT, SHORTEST_WAIT, LONGEST_WAIT = 0.002, 0.05, 1.0
HEALTH_SECONDS = 1.0
BUSY_SHARE = 4.0
TIDY_SECONDS = 3.0
REFUSED_SECONDS = 5.0
"""Maximum seconds that a caller waits while an upstream refuses the key or account: only a person can correct
that.
"""
LEAVING_SECONDS = 10.0
"""Seconds that a process waits for other jobs' rows in flight after its own job has ended."""
SILENT_SECONDS = 3.0
"""Seconds without an answer after which orch tells the caller how long it will wait."""


class Daemon:
    """Runs the jobs of a home. Create it only while holding the home's lock.

    With `dispatch=False`, it serves existing batches and cancels them, but sends no row. With `only`, it leaves all
    other jobs of the home alone. `provider_calls` runs the calls to providers, by default in separate threads.
    `builds` builds jobs; without it, this process builds them. With a `replica`, it acts only while it is the active
    daemon. `problem` says why rows do not run now, or is None.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        *,
        dispatch: bool = True,
        only: Job | None = None,
        provider_calls: ProviderCalls | None = None,
        replica: HomeReplica | None = None,
        builds: Builds | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._only = only
        self._home = Home(config.home)
        if replica is None and self._home.has_replica:
            raise UsageError(
                f"{self._home.root} has a replica, and another machine may have taken it over",
                hint="only `orch up --replica URL` works in it",
            )
        self._news: list[str] = []
        self._budgets = SharedBudgets(store, config, now)
        self._backends = HomeBackends(
            store, config, self._budgets, replica, self._news.append,
            dispatch=dispatch, only=None if only is None else only.id,
        )  # fmt: skip
        self._reloader = Reloader(config, check)
        self._look_at = 0.0
        self._faults = Faults()
        self.notices = Notices(now)
        self.say: Callable[[str], None] = log.info
        """Called with messages about rows that delay the end of this daemon."""
        self.may_wait: Callable[[], bool] = lambda: False
        """Returns True if the end of the daemon may wait for rows in flight. Without the wait, the next daemon asks
        them again.
        """
        self.listeners: list[Callable[[Config], None]] = []
        self.rounds: list[Callable[[], None]] = []
        self._health_at = 0.0
        self._problems: dict[str, Obstacle] = {}
        self._silent: set[str] = set()
        self._unreached: set[str] = set()
        """Backends that do not answer and that the caller has been told about."""
        self.problem: str | None = None
        self._provider_calls = provider_calls or Threads()
        self._replica = replica
        self.pipeline = Pipeline(
            store, self._home, self._backends, self._budgets, now, self._provider_calls, lambda: self.may_act, builds
        )
        self._monitor = Monitor(store, config)
        self._telemetry = TelemetrySwitch(store, self._home, config, self._news.append)
        if replica is not None:
            replica.follow(self._backends.durable_bytes)
            replica.on_held = self._backends.resume

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self._backends), closing(self._telemetry), closing(self._monitor), closing(self._provider_calls):
            self._wait_for_paid_rows()
            until = time.monotonic() + LEAVING_SECONDS
            while self.may_wait() and self.may_act and time.monotonic() < until and self._backends.last_in_flight():
                self._provider_calls.wait(SHORTEST_WAIT)

    def _wait_for_paid_rows(self) -> None:
        """Wait for billed answers. Otherwise, the next daemon would ask and pay for these rows again."""
        until, is_said = time.monotonic() + self._backends.longest_paid_row(), False
        while self.may_act and time.monotonic() < until:
            if not (names := {*self._provider_calls.paying(), *self._backends.last_paid()}):
                break
            if not is_said:
                at = ", ".join(sorted(names))
                told = f"waiting for rows in flight at {at}, which are billed; a second Ctrl-C does not wait"
                try:
                    self.say(told)
                except OSError:  # the terminal is closed, or Ctrl-C has also ended the reader of a pipe
                    log.info(told)
                is_said = True
            self._provider_calls.wait(SHORTEST_WAIT)

    def run(
        self,
        until: Callable[[], bool],
        tick: Callable[[Daemon], None] = lambda daemon: None,
        *,
        mine: Job | None = None,
    ) -> None:
        """Advance the home's jobs until `until()` is true. `tick` is called after each round.

        A problem of one job does not stop other jobs. It is recorded, and raised only if the caller waits for that
        job (`mine`). Raises BackendError if no upstream of that job has answered for the backend's `patience`. A
        problem of the home itself is always raised as StorageError.
        """
        wait = FIRST_WAIT
        self._reloader.begin(now())
        keep(self._home, self._reloader.in_force)
        while not until():
            began = time.monotonic()
            moved = self._act(mine)
            tick(self)
            for heard in self.rounds:
                heard()
            # A small job's rounds follow each other immediately. Growing waits keep a long job's rounds rare.
            wait = min(SHORTEST_WAIT, wait * 2) if moved else min(LONGEST_WAIT, max(SHORTEST_WAIT, wait * 1.3))
            # Counting a million rows takes a while, and must not take the processor time that the rows need.
            if not moved:
                wait = min(REACTION_SECONDS, max(wait, BUSY_SHARE * (time.monotonic() - began)))
            if not until():
                self._provider_calls.wait(wait)  # batches are polled by the clock: they cannot notify us
        if self.may_act:
            with suppress(NotReplicated):
                self.tidy_up()

    def _act(self, mine: Job | None) -> bool:
        if self._replica is not None and not self.may_act:
            self.problem = self._replica.problem
            return False
        try:
            self._reload()
            moved = self._round(mine)
            self.pipeline.remote_cleanup.tick()
            self._check_health(mine)
            if self._only is None and mine is None:
                with self.notices.apart("deliveries"):
                    self.pipeline.finisher.deliver_again()
                # The caller sees its own job, so only other jobs are monitored.
                self._monitor.tick(self._standstill, now())
        except NotReplicated as error:
            self.problem = error.told
            return False
        return moved

    @property
    def may_act(self) -> bool:
        """True if no other daemon can have taken over. Always true without a replica."""
        return self._replica is None or self._replica.is_held

    def tidy_up(self) -> None:
        """Clean up at backends for at most TIDY_SECONDS. The next daemon does the rest."""
        over = time.monotonic() + TIDY_SECONDS
        while (
            self.pipeline.remote_cleanup.tick() and self.pipeline.remote_cleanup.is_busy and time.monotonic() < over
        ):
            self._provider_calls.wait(SHORTEST_WAIT)

    def _round(self, mine: Job | None) -> bool:
        moved, only = False, self._only
        for job in self._store.jobs.unfinished(self._home.identity()):
            if only is not None and job.id != only.id:
                continue
            if only is None and (why := other_settings(self._store, job, self._config.path, now())) is not None:
                self._record_obstacle(job, "other_settings", why)
                continue
            moved |= self._advance(job, mine is not None and mine.id == job.id)
        return moved

    def _advance(self, job: Job, is_mine: bool) -> bool:
        if not self._faults.is_due(job.id, now(), hurry=job.cancel_requested_at is not None):
            return False
        try:
            moved = self.pipeline.advance(job)
        except StateConflict as conflict:
            log.info("%s", conflict)  # another process moved the job; the next round reads the new state
            return True
        except JobFilesError as error:
            if is_mine:
                raise
            has_no_room = isinstance(error, NoRoom)
            if has_no_room and job.built_at is None:
                return self._caught(job, error, JobFault.NO_ROOM)
            if has_no_room or fault_of(error) is OutputFault.NO_ROOM or isinstance(error, OutputError):
                self._record_obstacle(job, problem_code(error), error.told)  # the job continues or ends by itself
                return False
            return self._caught(job, error, JobFault.FILES)
        except (BackendError, UsageError, RefusedError) as error:
            self._record_obstacle(job, problem_code(error), error.told)
            if is_mine and isinstance(error, NotSent):
                self._tell_unreached(job, error)
            passes = isinstance(error, BackendError) and not isinstance(error, (AccountError, RequestRefused))
            if is_mine and not passes:
                raise
            return False
        except InputError as error:
            if self._has_open_batches(job):
                return self._caught(job, error, JobFault.INPUT)
            self._fail(job, JobFault.INPUT, error.told)
            return True
        except NotReplicated as error:
            self._record_obstacle(job, problem_code(error), error.told)
            return False
        except StorageError:
            raise  # the error concerns the home
        except Exception as error:  # noqa: BLE001 (a defect affects only its own job; it is logged, reported, counted)
            return self._caught(job, error)
        if moved:
            self._faults.cleared(job.id)  # an idle step says nothing about the earlier failure
        if job.id not in self._faults:
            self._problems.pop(job.id, None)
        return moved

    def _caught(self, job: Job, error: Exception, code: JobFault = JobFault.INTERNAL) -> bool:
        """Report and retry a fault of one job. After TRIES faults, fail the job, unless it may then lose a paid
        answer.
        """
        log.exception("job %s: %s", job.id, code)
        fault = self._faults.caught(job.id, error, now(), code)
        cancelled = job.cancel_requested_at is not None
        at_backend = self._has_open_batches(job)
        if fault.times >= TRIES and (cancelled or not at_backend):
            self._faults.cleared(job.id)
            left = "; its batches may still run at their backends: `orch reconcile` shows them" if at_backend else ""
            self._fail(job, code, f"{fault.reason}; engine.log has the details{left}")
            return True
        said = self._problems.get(job.id)
        if said is None or said.text != fault.told:
            self._store.jobs.note(job.id, EventKind.FAULT, fault.told, now(), code=fault.kind)
        self._record_obstacle(job, fault.kind, fault.told)
        return False

    def _has_open_batches(self, job: Job) -> bool:
        return any(not one.state.is_final for one in self._store.shards.of_job(job.id))

    def _fail(self, job: Job, code: str, error: str) -> None:
        try:
            self._store.jobs.fail(job.id, error, code)
        except StateConflict as conflict:
            log.info("%s", conflict)  # another process ended or removed the job
            return
        self._problems.pop(job.id, None)
        self._store.jobs.note(job.id, EventKind.FAILED, error, now())

    def _standstill(self) -> Standstill:
        return Standstill(dict(self._problems), dict(self._backends.servers_health.told), self.notices.taken())

    # --- settings

    def _reload(self) -> None:
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
                self.notices.add(Notice(AlertKind.SETTINGS, what, told, "until then the old settings stay in force"))

    def news(self) -> list[str]:
        found, self._news[:] = [*self._news], []
        return found

    def use(self, config: Config) -> None:
        self._config = config
        for part in (self._budgets, self._monitor, self._backends, self._telemetry):
            part.use(config)
        self.pipeline.settings_changed()
        for listener in self.listeners:
            listener(config)

    def _record_obstacle(self, job: Job, code: str, text: str) -> None:
        before = self._problems.get(job.id)
        if before is not None and before.text == text:
            return
        since = before.since if before is not None and before.code == code else now()
        self._problems[job.id] = Obstacle(code, text, since)
        self._store.jobs.note(job.id, EventKind.WAITING, text, now(), code=code)

    def _obstacle(self, mine: Job | None) -> str | None:
        told = self._problems.values() if mine is None else filter(None, (self._problems.get(mine.id),))
        return next((problem.text for problem in told), None)

    def _tell_unreached(self, job: Job, error: NotSent) -> None:
        for shard in self._store.shards.of_job(job.id):
            name, settings = shard.backend, self._config.backends.get(shard.backend)
            if shard.held_code is HoldCode.UNREACHABLE and isinstance(settings, HostedBackend):
                if name not in self._unreached and "base_url" in settings.model_fields_set:
                    self._news.append(
                        f"{error.message}. orch waits for {settings.base_url}, and Ctrl-C ends the wait."
                        + self._address_advice(name, settings)
                    )
                self._unreached.add(name)

    def _check_health(self, mine: Job | None) -> None:
        if time.monotonic() - self._health_at < HEALTH_SECONDS:
            return
        self._health_at = time.monotonic()
        with self.notices.apart("engines"):
            for name in self._backends.wished() if self._only is None else ():
                self.open(name)
            self._backends.note_holds()
        self.problem = self._obstacle(mine)
        if self._replica is not None and (failing := self._replica.failing) is not None:
            self.problem = failing
        found: dict[str, Mapping[str, Any]] = {}
        with self.notices.apart("health"):
            found = self._backends.servers_health.look([name for name, _ in self._backends.servers()])
        self._silent &= found.keys()
        refusing = frozenset(name for name, first in found.items() if first.get("refusal"))
        for name, settings in self._backends.servers():
            if name in found:
                self._upstreams_down(name, settings, found[name], mine, refusing)

    def _upstreams_down(
        self, name: str, settings: OwnBackend, first: Mapping[str, Any], mine: Job | None, refusing: frozenset[str]
    ) -> None:
        seconds, cure = float(first["problem_seconds"]), remedy(first, name, settings)
        is_refused, most, after = bool(first.get("refusal")), settings.patience, ""
        is_stuck = mine is not None and (is_refused or seconds > most) and self._is_stuck(mine, name, refusing)
        if is_refused and is_stuck:
            most = min(most, REFUSED_SECONDS)
        elif is_refused:
            after = " before its rows go to another backend"
        what = f"{first['problem']}, for {seconds:.0f} s" + (f" of at most {most:.0f}{after}" if mine else "")
        self.problem = f"waiting for {first['url']} ({what}): {cure}"
        if mine is None:
            return
        if seconds > most and is_stuck:
            raise BackendError(
                f"backend {name}: no upstream took a row for {seconds:.0f} s: {first['url']}: {first['problem']}",
                hint=f"{cure}; then run the same command again: the job resumes where it stopped",
            )
        if seconds > SILENT_SECONDS and first.get("answers") is False and name not in self._silent:
            self._silent.add(name)
            self._news.append(
                f"{first['url']} does not answer ({first['problem']}). A server may still be loading, so orch waits "
                f"up to {duration(settings.patience)} for it (`patience` in orch.toml). Ctrl-C ends the wait."
                + self._address_advice(name, settings)
            )

    def _address_advice(self, name: str, settings: OwnBackend | HostedBackend) -> str:
        if isinstance(settings, FleetBackend):
            return ""
        field = "upstreams" if isinstance(settings, LocalBackend) else "base_url"
        where = self._config.mistake(("backends", name, field), "", None).where
        return f" A wrong address can be corrected now: {where}."

    def _is_stuck(self, job: Job, backend: str, refusing: frozenset[str]) -> bool:
        """True if a job has rows at a backend, and no backend outside `refusing` may take them."""
        shards = self._store.shards.of_job(job.id)
        is_there = any(shard.backend == backend and not shard.state.is_final for shard in shards)
        planning = planning_of(self._store, self._config, job, now())
        return is_there and not planning.has_other_than(*self._backends.given_up(), *refusing)

    def open(self, name: str) -> BackendHandle:
        """Return a backend, and start its server at the first use. Raises BackendError or UsageError."""
        return self._backends.open(name)


def check(config: Config) -> None:
    for backend in config.backends.values():
        prices_of(backend, config, now)
