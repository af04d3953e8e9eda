"""Settings, home, store and log of a command or of a call from Python."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from orchestrator.core.clock import now
from orchestrator.core.errors import InputError, OrchError, UsageError
from orchestrator.core.few_collections import few_collections
from orchestrator.core.model import Job, JobId, JobState
from orchestrator.core.sanitize import escape_controls
from orchestrator.core.shards import AT_BACKEND, Shard, ShardState
from orchestrator.library.messages import say
from orchestrator.policy.delay_causes import standstill
from orchestrator.reports import status
from orchestrator.reports.status import JobDetail, JobLine
from orchestrator.settings.discovery import Place, locate
from orchestrator.settings.home import Home
from orchestrator.settings.own_servers import hourly_costs

if TYPE_CHECKING:
    from orchestrator.policy.planner import Outlook
    from orchestrator.settings.config import Config
    from orchestrator.store import Store
    from orchestrator.store.daemon_fence import DaemonFence
    from orchestrator.store.status_reader import StatusReader


class CommandSettings:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.home = Home(place.home)

    @property
    def path(self) -> Path | None:
        """Path of the orch.toml that is read, or None."""
        return self.place.path

    @property
    def readable(self) -> Config | None:
        """The settings, or None while orch.toml is broken; for commands that only show something."""
        try:
            return self.config
        except InputError:
            return None

    @cached_property
    def config(self) -> Config:
        """All settings, read on first use. Raises InputError."""
        from orchestrator.settings.config import load

        return load(self.place)

    def use(self, config: Config) -> None:
        self.__dict__["config"] = config

    @cached_property
    def _hourly_costs(self) -> dict[str, Decimal | None] | None:
        return hourly_costs(self.path)

    def running_cost(self, shard: Shard) -> Decimal:
        """Return the cost of a running batch so far, in dollars."""
        if not (cost := (self._hourly_costs or {}).get(shard.backend)):
            return Decimal(0)
        from orchestrator.policy.pricing import local_price

        return local_price(shard.provider_seconds, cost, idle=False).cost

    def lines(self, store: Store | StatusReader, limit: int | None = 20) -> list[JobLine]:
        """Return a line for each of the newest `limit` jobs, or for all jobs if `limit` is None."""
        return self.lines_of(store, store.jobs.newest(limit))

    def lines_of(self, store: Store | StatusReader, jobs: Sequence[Job]) -> list[JobLine]:
        found = status.lines(store, jobs, now(), self.running_cost)
        stopped = self._stopped(found, store.shards.of_job)
        return [_stopped_line(line) if line.job.id in stopped else line for line in found]

    def removed(self, lines: Sequence[JobLine], shards_of: Callable[[JobId], Sequence[Shard]]) -> list[str]:
        """Return messages about batches of these jobs at backends that are no longer in orch.toml.

        Jobs of other homes are skipped.
        """
        jobs = [line.job for line in lines if not line.state.is_final]
        own = [job.id for job in jobs if job.home == self.home.identity()]
        sent = [shard for job_id in own for shard in shards_of(job_id) if shard.state in AT_BACKEND]
        if not sent or (backends := self._hourly_costs) is None:
            return []
        from orchestrator.reports.removed_backends import at_removed, removed_words

        return removed_words(at_removed(sent, backends))

    def _stopped(self, lines: Sequence[JobLine], shards_of: Callable[[JobId], Sequence[Shard]]) -> set[JobId]:
        """Return this home's jobs that have started but that no process works on."""
        from orchestrator.daemon.lock import running_daemon

        jobs = [line.job for line in lines if line.state in (JobState.RUNNING, JobState.MERGING)]
        if not jobs or running_daemon(self.home):
            return set()
        sent = (ShardState.SUBMITTING, ShardState.SUBMITTED)
        own = {name for name, cost in (self._hourly_costs or {}).items() if cost is not None}
        return {
            job.id
            for job in jobs
            if job.home == self.home.identity()
            and all(one.backend in own for one in shards_of(job.id) if one.state in sent)
        }


def _stopped_line(line: JobLine) -> JobLine:
    return replace(line, state=JobState.STOPPED, eta_seconds=None)


STOPPED = "no daemon is running, so nothing continues: `orch up`, or `orch run` again"


class Context(CommandSettings):
    def __init__(self, place: Place, store: Store) -> None:
        super().__init__(place)
        self.store = store

    def job(self, name: str, *, tell: bool = True) -> Job:
        """Return the job that a user means. With `tell`, print its id if the user gave a name. Raises UsageError."""
        from orchestrator.store.job_names import job_named

        found = job_named(self.store, self.home.identity(), name)
        if tell and found.id != name and (found.name == name or not found.id.startswith(name)):
            say(f"orch: {name} is {found.id}, of {found.created_at.astimezone():%a %Y-%m-%d %H:%M}")
        return found

    def detail(self, job_id: JobId, problem: str | None = None) -> JobDetail:
        """Return a job's current details. Raises UsageError if the job does not exist."""
        found = status.detail(self.store, self.store.jobs.get(job_id), now(), self.running_cost, problem)
        is_stopped = bool(self._stopped([found.line], lambda _: found.shards))
        line = _stopped_line(found.line) if is_stopped else found.line
        found = replace(found, model_names=self._model_names(found), line=line)
        if found.line.state.is_final:
            return found
        if found.problem is None and (removed := self.removed([line], lambda _: found.shards)):
            return replace(found, problem="; ".join(removed))
        running = [shard for shard in found.shards if shard.state is ShardState.SUBMITTED]
        if found.problem is None and (is_stopped or not running):
            return replace(found, problem=self._obstacle(found) or (STOPPED if is_stopped else None))
        if problem or not running:
            return found
        health = self._health_of(running)
        if self._waits_for_retries(found.line, running, health):
            found = replace(found, line=replace(found.line, eta_seconds=None))
        return replace(found, problem=self._problem(running, health))

    def _model_names(self, detail: JobDetail) -> dict[str, str]:
        if not detail.shards:
            return {}
        from orchestrator.pipeline.plan.routes import models_of
        from orchestrator.policy.model_names import resolve_model

        try:
            models = models_of(self.config, detail.line.job)
        except OrchError:
            return {}  # commands that need orch.toml report its mistake
        names = {shard.id: resolve_model(shard.model, shard.backend, models) for shard in detail.shards}
        return {shard: name for shard, name in names.items() if name is not None}

    def outlook(self, job: Job) -> Outlook | None:
        """Return a job's outlook.

        None if the job is over, cancelled or not built yet, if orch.toml is broken, or if no backend may take its
        rows.
        """
        if job.built_at is None or job.finished_at is not None or job.cancel_requested_at is not None:
            return None
        if (settings := self.readable) is None:
            return None
        from orchestrator.pipeline.budget import SharedBudgets
        from orchestrator.pipeline.plan.mixed_planning import planning_of

        at, left = now(), SharedBudgets(self.store, settings, now).left
        return planning_of(self.store, settings, job, at, left, down=self._seconds_down(job, settings)).outlook()

    def _seconds_down(self, job: Job, settings: Config) -> dict[str, float]:
        from orchestrator.daemon.health import down_for, fetch_health
        from orchestrator.settings.backends import OwnServer

        at = {shard.backend for shard in self.store.shards.of_job(job.id) if shard.state is ShardState.SUBMITTED}
        own = [name for name in at if isinstance(settings.backends.get(name), OwnServer)]
        told = {name: fetch_health(self.home, name) for name in own}
        return down_for({name: health for name, health in told.items() if health is not None})

    def missing_keys(self, job: Job) -> dict[str, str]:
        """Return messages about keys that a daemon started here would lack, by backend; empty while a daemon runs."""
        from orchestrator.daemon.lock import running_daemon

        if (settings := self.readable) is None or running_daemon(self.home) is not None:
            return {}  # a running daemon reports its missing keys itself
        from orchestrator.pipeline.plan.problems_now import missing_keys

        try:
            return missing_keys(settings, job, os.environ)
        except OrchError:
            return {}  # commands that need orch.toml report its mistake

    def _obstacle(self, detail: JobDetail) -> str | None:
        """Return the reason why an open job is not sent, or None if all is well.

        The reason is the daemon's note, a missing key, or no daemon.
        """
        from orchestrator.daemon.lock import running_daemon
        from orchestrator.daemon.running_settings import differences

        job, state = detail.line.job, detail.line.state
        if job.built_at is None:
            return None
        if (holder := running_daemon(self.home)) is None:
            waits = STOPPED if state is JobState.QUEUED and job.home == self.home.identity() else None
            return next(iter(self.missing_keys(job).values()), waits)
        noted = standstill(state, detail.events) or next(iter(differences(self.home, holder, self.path)), None)
        return None if noted is None else "; ".join(line.strip() for line in noted.splitlines())

    def _health_of(self, running: Sequence[Shard]) -> dict[str, dict[str, Any] | None]:
        """Return the health of orch's own servers that run these batches; None for a server that does not answer."""
        from orchestrator.daemon.health import fetch_health
        from orchestrator.settings.backends import OwnServer

        if (settings := self.readable) is None:
            return {}
        names = sorted({shard.backend for shard in running})
        own = [name for name in names if isinstance(settings.backends.get(name), OwnServer)]
        return {name: fetch_health(self.home, name) for name in own}

    def _waits_for_retries(
        self, line: JobLine, running: Sequence[Shard], told: Mapping[str, dict[str, Any] | None]
    ) -> bool:
        """Return True if every open row waits for its next attempt.

        A forecast from the speed so far would then be wrong.
        """
        from orchestrator.pipeline.refused_rows import rows_in_back_off

        left = waiting = line.left
        for shard in running:
            if (health := told.get(shard.backend)) is not None:
                waiting -= rows_in_back_off(health, shard.batch_id, left)
        return left > 0 >= waiting

    def _problem(self, running: Sequence[Shard], told: Mapping[str, dict[str, Any] | None]) -> str | None:
        from orchestrator.daemon.health import last_to_fail, remedy, without_engine
        from orchestrator.daemon.lock import running_daemon
        from orchestrator.pipeline.refused_rows import describe_refused

        if running_daemon(self.home) is None:
            return "no daemon is running: batches continue at their backends, but nobody polls them"
        for name, health in told.items():
            if health is None:
                return f"the server of {name} does not answer"
            if health["problem"]:
                return str(health["problem"])
            if (engines := without_engine(health)) is not None:
                return f"waiting for the engines of {name}: {engines}"
            if (last := last_to_fail(health)) is not None:
                settings = None if self.readable is None else self.readable.backends.get(name)
                return f"waiting for {last['url']} ({last['problem']}): {remedy(last, name, settings)}"
            batches = {shard.batch_id for shard in running if shard.backend == name and shard.batch_id is not None}
            if (refused := describe_refused(health, batches)) is not None:
                return refused
        return None


@contextmanager
def opened(place: Place | None = None, fence: DaemonFence | None = None) -> Iterator[Context]:
    """Open the context of a command, or of a daemon's helper process with the daemon's `fence`.

    When the block ends, all records are on the home's replica, if it has one. Raises InputError, StorageError, and
    UsageError if another machine's daemon is active.
    """
    from orchestrator.store import Store
    from orchestrator.store.home_identity import recognise

    place = place or locate()
    home = Home(place.home)
    require_current(home)
    store = (Store if fence else Store.open)(place.database_url, timeout=place.database_timeout, fence=fence)
    with store:
        if (identity := recognise(home, store)) is not None:
            say(f"orch: {home.root} had lost its id; by its jobs it is home {identity}")
        if home.has_replica and store.is_shared:
            store.before_naming_files(lambda: _wait_until_sent(home))
        yield Context(place, store)
        if home.has_replica and store.has_written:
            _wait_until_sent(home)


def require_current(home: Home) -> None:
    """Raise UsageError if the home has a replica and its active daemon is on another machine."""
    if home.has_replica:
        from orchestrator.daemon.replica.status_file import require_active

        require_active(home)


def is_current(home: Home) -> bool:
    """Return True if the home has no replica, or its active daemon is on this machine."""
    try:
        require_current(home)
    except UsageError:
        return False
    return True


def _wait_until_sent(home: Home) -> None:
    from orchestrator.daemon.replica.status_file import wait_until_sent

    wait_until_sent(home)


@contextmanager
def ready() -> Iterator[Context]:
    """Open the context after reading all settings, so that mistakes are reported before a database is created."""
    settings = CommandSettings(locate())
    config = settings.config
    with few_collections(), _quiet_libraries, opened(settings.place) as context:
        context.use(config)
        yield context


def say_exposure(context: Context) -> None:
    """Report what others may read, and who receives keys, before anything is written or sent."""
    from orchestrator.core.permissions import readable_by_others

    if (rights := readable_by_others(context.home.root)) is not None:
        say(f"orch: other users can read {context.home.root} ({rights}): chmod -R go-rwx {context.home.root}")
    say_keys(context.config)
    say_unknown_backends(context.config)


def say_unknown_backends(config: Config) -> None:
    """Warn about names in [models] for backends that orch.toml does not have."""
    for mistake in config.unknown_backends:
        say(f"orch: warning: {mistake.where}: {mistake.reason}")


def say_schema_hints(job: Job) -> None:
    """Warn about parts of a job file's schemas that have no effect."""
    from orchestrator.settings.job_file import schema_hints
    from orchestrator.settings.stored_spec import spec_of

    for told in schema_hints(spec, Path(job.source)) if (spec := spec_of(job)) is not None else ():
        say(f"orch: warning: {told}")


def say_keys(config: Config | None) -> None:
    """Report who receives keys, before any key is sent. Reports nothing if the user named the orch.toml."""
    if config is not None and config.place.is_found:
        for variable, address in config.keys_sent:
            say(f"orch: {config.path}, found here, sends the key in {variable} to {address}")


class _SafeLines(logging.Formatter):
    """Formats log lines: shows control characters, and indents all but a record's first line."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record)).replace("\n", "\n  ")


class _LogFile(logging.FileHandler):
    """A log file that reports once that it cannot be written, for example on a full disk.

    A successful write makes the next failure report again.
    """

    is_failing = False

    def emit(self, record: logging.LogRecord) -> None:
        was_failing, self.is_failing = self.is_failing, False
        try:
            super().emit(record)
        except OSError:  # the file cannot be opened
            self.handleError(record)
        if self.is_failing and not was_failing:
            say(f"orch: cannot write the log {self.baseFilename}; continuing without it")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        self.is_failing = True


_NOISY = ("httpx2", "httpcore", "openai", "uvicorn.access", "alembic")
"""Loggers of libraries that write a line for each of orch's own calls."""


def log_to(home: Home) -> None:
    """Send the process's log to the home's file. Stderr is for the user."""
    logging.basicConfig(level=logging.INFO, handlers=[_log_file(home)], force=True)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _QuietLibraries:
    """A block in which libraries log only warnings, because orch's own requests would clutter the caller's log.

    Levels set by the caller are kept. Blocks of several threads may overlap.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._changed: list[logging.Logger] = []

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                loggers = map(logging.getLogger, (*_NOISY, "uvicorn.error"))
                self._changed = [one for one in loggers if one.level == logging.NOTSET]
            for one in self._changed:  # in every block, because uvicorn sets its own level
                one.setLevel(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            for one in self._changed if not self._blocks else ():
                one.setLevel(logging.NOTSET)


_quiet_libraries = _QuietLibraries()


@contextmanager
def logging_to(home: Home) -> Iterator[None]:
    """Send orch's log to the home's file during a block, and not to the caller's logs."""
    ours = logging.getLogger("orchestrator")
    handler, level, propagate = _log_file(home), ours.level, ours.propagate
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)
        ours.propagate = propagate
        handler.close()


def _log_file(home: Home) -> logging.Handler:
    handler = _LogFile(home.log, delay=True)
    handler.setFormatter(_SafeLines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler
