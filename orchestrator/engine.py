"""The engine: one process per home that runs the batch servers and takes the home's jobs through the pipeline.

`orch up` is it for as long as it runs; `orch run` and `orch submit --wait` are it themselves while they wait, unless
another process is. A lock on the home, which the kernel drops with the process, says who.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

from orchestrator.backends.open import key_of, limits_of, open_backend, profile_for
from orchestrator.backends.openai import OpenAIBackend, over_unix_socket
from orchestrator.backends.profiles import PROFILES
from orchestrator.clock import now
from orchestrator.config import AnthropicBackend, Config, HostedBackend, LocalBackend, OwnBackend, SyncBackend
from orchestrator.enginelock import Holder as Holder
from orchestrator.enginelock import engine_lock as engine_lock
from orchestrator.enginelock import running_engine as running_engine
from orchestrator.errors import (
    AccountError,
    BackendError,
    InputError,
    JobFilesError,
    RefusedError,
    StateConflict,
    StorageError,
    UsageError,
)
from orchestrator.home import Home
from orchestrator.model import Job
from orchestrator.pipeline import Pipeline, disk
from orchestrator.pipeline.budget import REACTION_SECONDS, SharedBudgets
from orchestrator.pipeline.crew import Crew, Threads
from orchestrator.pipeline.lanes import Lane, Lanes
from orchestrator.pipeline.planning import Planning
from orchestrator.pipeline.prices import prices_of
from orchestrator.pipeline.reuse import asked_of
from orchestrator.pipeline.routes import models_of
from orchestrator.server.host import ServerThread, socket_path
from orchestrator.server.settings import Settings
from orchestrator.store import Store
from orchestrator.watching import Standstill, Watch

log = logging.getLogger(__name__)

SHORTEST_WAIT, LONGEST_WAIT = 0.05, 1.0
HEALTH_SECONDS = 1.0
BUSY_SHARE = 4.0
TIDY_SECONDS = 3.0


class Engine:
    """Runs jobs of a home; make it only while holding the home's lock.

    `dispatch=False` serves what is there and cancels batches, but sends no row. The `crew` asks the providers;
    without one, threads of its own do. `problem` is what keeps rows from being run now, for people.
    """

    def __init__(self, config: Config, store: Store, *, dispatch: bool = True, crew: Crew | None = None) -> None:
        self._config = config
        self._store = store
        self._home = Home(config.home)
        self._dispatch = dispatch
        self._opened: dict[str, Lane] = {}
        self._stack = ExitStack()
        self._health: dict[str, Any] = {}
        self._health_at = 0.0
        self._problems: dict[str, str] = {}
        self.problem: str | None = None
        budgets = SharedBudgets(store, config, now)
        lanes = Lanes(
            open=self.open,
            planning=lambda job: Planning(store, config, job, now(), budgets.left),
            models=lambda job: models_of(config, job),
            asked=lambda job: asked_of(config, job),
            shortage=lambda: disk.shortage(self._home, config.retention),
        )
        self._crew = crew or Threads()
        self._opening = threading.RLock()
        self.pipeline = Pipeline(store, self._home, lanes, budgets, now, self._crew)
        self._watch = Watch(store, config)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._crew.close()
        self._watch.close()
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
        while not until():
            began = time.monotonic()
            moved = self._round(only, mine)
            self.pipeline.chores.tick()
            self._look(mine)
            if only is None and mine is None:
                # Who waits for a job sees it; who does not is told.
                self._watch.tick(lambda: Standstill(dict(self._problems), dict(self._health)), now())
            tick(self)
            wait = SHORTEST_WAIT if moved else min(LONGEST_WAIT, wait * 1.3)
            # Counting a million rows takes a while; looking must not take the time that the rows need.
            if not moved:
                wait = min(REACTION_SECONDS, max(wait, BUSY_SHARE * (time.monotonic() - began)))
            if not until():
                self._crew.wait(wait)  # a batch is asked how it is by the clock; it cannot call
        self.tidy_up()

    def tidy_up(self) -> None:
        """Do what is left to do at backends, as far as a moment reaches; the next start does the rest."""
        over = time.monotonic() + TIDY_SECONDS
        while self.pipeline.chores.tick() and self.pipeline.chores.is_busy and time.monotonic() < over:
            self._crew.wait(SHORTEST_WAIT)

    def _round(self, only: Job | None, mine: Job | None) -> bool:
        moved = False
        for job in self._store.jobs.unfinished(self._home.identity()):
            if only is not None and job.id != only.id:
                continue
            made_under = job.options.get("config", str(self._config.path))
            if only is None and made_under != str(self._config.path):
                # Names of backends and models mean what that file says; another's would send rows elsewhere.
                self._say(job, f"waits for an engine under the settings it was made with: {made_under}")
                continue
            moved |= self._advance(job, mine is not None and mine.id == job.id)
        return moved

    def _advance(self, job: Job, is_mine: bool) -> bool:
        try:
            moved = self.pipeline.advance(job)
        except StateConflict as conflict:
            log.info("%s", conflict)  # somebody else moved it; the next round reads what is
            return True
        except (BackendError, UsageError, RefusedError, JobFilesError) as error:
            self._say(job, str(error))
            passes = isinstance(error, BackendError) and not isinstance(error, AccountError)
            if is_mine and not passes:
                raise
            return False
        except InputError as error:
            self._store.jobs.fail(job.id, str(error))
            self._store.jobs.note(job.id, "failed", str(error), now())
            return True
        self._problems.pop(job.id, None)
        return moved

    def _say(self, job: Job, problem: str) -> None:
        if self._problems.get(job.id) != problem:
            self._problems[job.id] = problem
            self._store.jobs.note(job.id, "waiting", problem, now())

    def _look(self, mine: Job | None) -> None:
        """Ask the servers how they are, about once a second."""
        if time.monotonic() - self._health_at < HEALTH_SECONDS:
            return
        self._health_at = time.monotonic()
        self.problem = next(iter(self._problems.values()), None)
        for name in self._opened:
            settings = self._config.backends[name]
            health = fetch_health(self._home, name)
            if health is None or not isinstance(settings, LocalBackend | SyncBackend):
                continue
            self._health[name] = health
            if health["status"] == "storage":
                raise StorageError(
                    health["problem"], hint="make room, then run the same command again; nothing is lost"
                )
            down = [upstream for upstream in health["upstreams"] if upstream["problem"]]
            if health["running_batches"] and len(down) == len(health["upstreams"]):
                self._upstreams_down(name, settings, down, mine)

    def _upstreams_down(self, name: str, settings: OwnBackend, down: list[dict[str, Any]], mine: Job | None) -> None:
        first = min(down, key=lambda upstream: float(upstream["problem_seconds"]))
        seconds = float(first["problem_seconds"])
        self.problem = f"waiting for {first['url']} ({first['problem']}, for {seconds:.0f} s)"
        if seconds > settings.patience and mine is not None and self._is_there(mine, name):
            raise BackendError(
                f"backend {name}: no upstream took a row for {seconds:.0f} s: {first['url']}: {first['problem']}",
                hint="start it, then run the same command again: the job goes on where it stopped",
            )

    def _is_there(self, job: Job, backend: str) -> bool:
        shards = self._store.shards.of_job(job.id)
        return any(shard.backend == backend and not shard.state.is_final for shard in shards)

    @property
    def health(self) -> dict[str, Any]:
        """The last answer of each server that was opened."""
        return self._health

    def open(self, name: str) -> Lane:
        """A backend, its server started at the first use. Raises BackendError, UsageError."""
        with self._opening:
            return self._opened.get(name) or self._open(name)

    def _open(self, name: str) -> Lane:
        settings = self._config.backends.get(name)
        if settings is None:
            raise BackendError(f"backend {name} is no longer in {self._config.path}", hint="put it back")
        if isinstance(settings, LocalBackend | SyncBackend):
            lane = self._open_own(name, settings)
        else:
            lane = self._open_hosted(name, settings)
        self._opened[name] = lane
        return lane

    def _open_own(self, name: str, settings: OwnBackend) -> Lane:
        server = self._stack.enter_context(
            ServerThread(self._home.server(name), server_settings(name, settings, dispatch=self._dispatch))
        )
        return self._closing(own_lane(name, settings, self._config, server.socket))

    def _open_hosted(self, name: str, settings: HostedBackend | AnthropicBackend) -> Lane:
        return self._closing(hosted_lane(name, settings, self._config))

    def _closing(self, lane: Lane) -> Lane:
        self._stack.callback(lane.api.close)
        return lane


def own_lane(name: str, settings: OwnBackend, config: Config, socket: Path) -> Lane:
    """A backend whose server, one of ours, listens on a socket."""
    profile = PROFILES["orch"]
    return Lane(
        name=name,
        api=OpenAIBackend(name, over_unix_socket(socket), profile, {"include_provenance": True}),
        profile=profile,
        limits=limits_of(settings, profile),
        poll_seconds=0.0,
        price=prices_of(settings, config, now),
        is_own=True,
        upstreams=len(settings.upstreams) if isinstance(settings, LocalBackend) else 0,
    )


def hosted_lane(name: str, settings: HostedBackend | AnthropicBackend, config: Config) -> Lane:
    """A provider's Batch API. Raises UsageError where its key is not set."""
    profile = profile_for(settings)
    return Lane(
        name=name,
        api=open_backend(name, settings, os.environ),
        profile=profile,
        limits=limits_of(settings, profile),
        poll_seconds=settings.poll_seconds or profile.poll_seconds,
        price=prices_of(settings, config, now),
        is_own=False,
    )


def server_settings(name: str, backend: OwnBackend, *, dispatch: bool) -> Settings:
    """What the server of a backend of ours is told. Raises UsageError where its key's variable is not set."""
    # A key that is not set is no fault of the job's: it stays as it is, for the next start that has the key.
    api_key = None if backend.api_key_env is None else key_of(name, backend.api_key_env, os.environ)
    limits = limits_of(backend, PROFILES["orch"])
    common = Settings(
        upstreams=backend.upstreams if isinstance(backend, LocalBackend) else (backend.base_url,),
        api_key=api_key,
        request_timeout=backend.request_timeout,
        retry_delay=backend.retry_delay,
        max_concurrency=backend.max_concurrency,
        max_file_bytes=max(limits.max_bytes, 512 * 1024 * 1024),
        max_rows=limits.max_rows,
        dispatch=dispatch,
    )
    if isinstance(backend, LocalBackend):
        return common
    return replace(
        common,
        paid=True,
        service_tier=backend.service_tier,
        requests_per_minute=backend.requests_per_minute,
        tokens_per_minute=backend.tokens_per_minute,
    )


def fetch_health(home: Home, backend: str) -> dict[str, Any] | None:
    """How a backend's server is, or None where none runs."""
    socket: Path = socket_path(home.server(backend))
    if not socket.exists():
        return None
    try:
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(socket)), timeout=5.0) as client:
            found: dict[str, Any] = client.get("http://orch/health").json()
            return found
    except (httpx2.HTTPError, ValueError):
        return None
