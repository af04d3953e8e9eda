"""Builds that another process does: each under a key, begun once, and what came of it picked up at a later look.

What is to be done is an order, which a process can be sent; it does it with its own store and settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from orchestrator.core.events import EventKind
from orchestrator.core.model import Job, JobId
from orchestrator.pipeline import succession
from orchestrator.pipeline.backend_handles import Models
from orchestrator.pipeline.build import builder, intake, reuse
from orchestrator.pipeline.gc import disk
from orchestrator.pipeline.plan.routes import models_of
from orchestrator.pipeline.predecessors import AFTER
from orchestrator.pipeline.provider_calls import Done
from orchestrator.pipeline.submit import canary
from orchestrator.settings.config import Config, ReadingSettings
from orchestrator.settings.home import Home
from orchestrator.store import Store

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class BuildDied(Exception):
    """The process of a build ended without a word, or could not use the database: the build may be tried again."""


@dataclass(frozen=True, slots=True)
class BuildSite:
    """What an order is carried out with."""

    store: Store
    home: Home
    config: Config
    now: Callable[[], datetime]


class BuildOrder(Protocol, Generic[T_co]):
    """What a process is asked to do."""

    def carry_out(self, site: BuildSite) -> T_co:
        """Do it. Raises OrchError."""


class Builds(Protocol):
    """Where orders are carried out."""

    def begin(self, key: str, order: BuildOrder[object], deadline: datetime | None) -> None:
        """Have an order carried out, unless one is under this key. Without a free place, it is to be asked again;
        of those that are, the one with the soonest deadline gets the next place.
        """

    def is_busy(self, key: str) -> bool:
        """True from when an order was begun until what came of it was picked up."""

    def look(self, key: str) -> Done[object] | None:
        """What came of an order, None until it is over. Raises what it raised, or BuildDied."""

    def end(self, key: str) -> None:
        """Break off what is under way, and forget it."""


def carried_out(
    builds: Builds, key: str, make: Callable[[], tuple[BuildOrder[T], datetime | None]]
) -> Done[T] | None:
    """One look at an order, which `make` gives with its deadline if it is not under way. Raises as `look`."""
    if not builds.is_busy(key):
        builds.begin(key, *make())
    return builds.look(key)  # type: ignore[return-value]  # of the order that is under this key


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A job that is recorded and not built yet."""

    job_id: JobId

    def carry_out(self, site: BuildSite) -> bool:
        """See `build_recorded`."""
        config = site.config
        return build_recorded(
            site.store, site.home, self.job_id, site.now, partial(reuse.asked_of, config), partial(models_of, config),
            config.documents, partial(disk.shortage, site.home, config.retention),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TakeIn:
    """A file that becomes a job, as `intake.submit` makes it."""

    path: Path
    options: intake.Options

    def carry_out(self, site: BuildSite) -> intake.Intake:
        """The job, without its plan. Raises OrchError; then nothing is left of it."""
        taken = intake.submit(
            site.store, site.home, site.config, self.path, self.options, site.now, lambda *progress: None
        )
        return replace(taken, report=None, plan=None)


def build_recorded(
    store: Store,
    home: Home,
    job_id: JobId,
    now: Callable[[], datetime],
    asked: Callable[[Job], reuse.Asked],
    models: Callable[[Job], Models],
    reading: ReadingSettings,
    shortage: Callable[[], str | None],
) -> bool:
    """Build a job unless another process is at it; False where one is. Raises OrchError."""
    job = store.jobs.find(job_id)
    if job is None:
        return True
    with builder.claim(home, job) as mine:
        if not mine:
            return False
        current = store.jobs.find(job_id)
        if current is None or current.built_at is not None:
            return True  # whoever had it has just ended
        terms = asked(job)
        succession.supersede(store, job, now())
        report = builder.build(
            store, home, job, now(), asked=terms, models=models, reading=reading, shortage=shortage
        )
        # One that others may wait for ends as itself, though nothing is to be asked.
        if AFTER not in job.options and builder.same_as(store, job, report) is not None:
            builder.discard(store, home, job)
            return True
        canary.mark(store, job, now())
        store.jobs.mark_built(job_id, now())
    store.jobs.note(job_id, EventKind.BUILT, str(report), now())
    return True
