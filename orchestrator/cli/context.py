"""What every command needs: settings, home, store, and how it prints."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator import overview
from orchestrator.clock import now
from orchestrator.home import Home
from orchestrator.model import Job, Shard, ShardState
from orchestrator.overview import JobDetail, JobLine
from orchestrator.place import Place, locate
from orchestrator.store import Store

if TYPE_CHECKING:
    from orchestrator.config import Config
    from orchestrator.planner import Outlook

Command = TypeVar("Command", bound=Callable[..., Any])


class Context:
    """Settings and store of one command."""

    def __init__(self, place: Place, store: Store) -> None:
        self._place = place
        self.home = Home(place.home)
        self.store = store

    @cached_property
    def config(self) -> Config:
        """All settings, read at the first use. Raises InputError."""
        from orchestrator.config import load

        return load(self._place)

    def running_cost(self, shard: Shard) -> Decimal:
        """What a running batch has cost so far, in dollars."""
        from orchestrator.pipeline.prices import prices_of

        backend = self.config.backends.get(shard.backend)
        if backend is None:
            return Decimal(0)
        return prices_of(backend, self.config, now).of_time(shard.provider_seconds).cost

    def detail(self, job_id: str, problem: str | None = None) -> JobDetail:
        """Everything about a job now. Raises UsageError where there is none."""
        found = overview.detail(self.store, self.store.jobs.get(job_id), now(), self.running_cost, problem)
        running = {shard.backend for shard in found.shards if shard.state is ShardState.SUBMITTED}
        return found if problem or not running else replace(found, problem=self._problem(running))

    def outlook(self, job: Job) -> Outlook | None:
        """What is foreseen of a job, None where it is over, not built yet, or no backend may take its rows."""
        if job.built_at is None or job.finished_at is not None or job.cancel_requested_at is not None:
            return None
        from orchestrator.pipeline.budget import SharedBudgets
        from orchestrator.pipeline.planning import Planning

        at, left = now(), SharedBudgets(self.store, self.config, now).left
        return Planning(self.store, self.config, job, at, left, down=self._down(job)).outlook()

    def _down(self, job: Job) -> dict[str, float]:
        """For how long the backends at work on a job have had no upstream that takes rows, where that is so."""
        from orchestrator.config import LocalBackend, SyncBackend
        from orchestrator.engine import fetch_health
        from orchestrator.pipeline.lanes import down_for

        at = {shard.backend for shard in self.store.shards.of_job(job.id) if shard.state is ShardState.SUBMITTED}
        own = [name for name in at if isinstance(self.config.backends.get(name), LocalBackend | SyncBackend)]
        told = {name: fetch_health(self.home, name) for name in own}
        return down_for({name: health for name, health in told.items() if health is not None})

    def _problem(self, backends: Iterable[str]) -> str | None:
        """What the engine that runs, or the servers of it, say keeps rows from running, None where all is well."""
        from orchestrator.config import LocalBackend, SyncBackend
        from orchestrator.engine import fetch_health, running_engine

        if running_engine(self.home) is None:
            return "no engine is running: batches go on at their backends, and nobody looks at them"
        for name in backends:
            if not isinstance(self.config.backends.get(name), LocalBackend | SyncBackend):
                continue
            health = fetch_health(self.home, name)
            if health is None:
                return f"the server of {name} does not answer"
            down = [upstream for upstream in health["upstreams"] if upstream["problem"]]
            if health["problem"] or (down and len(down) == len(health["upstreams"])):
                return str(health["problem"] or f"waiting for {down[0]['url']} ({down[0]['problem']})")
        return None

    def lines(self, limit: int | None = 20) -> list[JobLine]:
        """The newest jobs."""
        return overview.lines(self.store, self.store.jobs.newest(limit), now(), self.running_cost)


@contextmanager
def opened() -> Iterator[Context]:
    """The context of a command. Raises InputError or StorageError."""
    place = locate()
    with Store.open(place.database_url, timeout=place.database_timeout) as store:
        yield Context(place, store)


def log_to(home: Home) -> None:
    """Send the log to the home's file: stderr is for the user."""
    handler = logging.FileHandler(home.log, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("httpx2", "httpcore", "openai", "anthropic", "uvicorn.access", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def json_option(function: Command) -> Command:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")(function)


def quiet_option(function: Command) -> Command:
    """`--quiet`."""
    return click.option("-q", "--quiet", is_flag=True, help="No progress.")(function)


def say(text: str) -> None:
    """A message for the user, on stderr."""
    click.echo(text, err=True)


def print_json(value: Any) -> None:
    """A result, on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
