"""Builds in another process. Each build has a key and starts once; its outcome is fetched later.

An order describes the work. The process that gets the order uses its own store and settings.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.events import EventKind
from orchestrator.core.model import JobId
from orchestrator.pipeline import disk, succession
from orchestrator.pipeline.build import builder, reused_answers, submission
from orchestrator.pipeline.plan import canary
from orchestrator.pipeline.plan.routes import models_of
from orchestrator.pipeline.predecessors import AFTER
from orchestrator.pipeline.provider_calls import Done
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class BuildDied(Exception):
    """The process of a build ended without an outcome or could not use the database. The build may be tried again."""


class BuildSite(Struct, frozen=True):
    store: Store
    home: Home
    config: Config
    now: Callable[[], datetime]


class BuildOrder(Protocol, Generic[T_co]):
    """Work for another process."""

    def carry_out(self, site: BuildSite) -> T_co:
        """Do the work. Raises OrchError."""


class Builds(Protocol):
    """Runs orders in other processes."""

    def begin(self, key: str, order: BuildOrder[object], deadline: datetime | None) -> None:
        """Start an order, unless one runs under this key. If all processes are busy, call again.

        Among waiting orders, the one with the earliest deadline starts next.
        """

    def is_busy(self, key: str) -> bool:
        """True from the start of an order until its outcome is picked up."""

    def look(self, key: str) -> Done[object] | None:
        """Return the outcome of an order, or None until it has ended. Raises the order's error, or BuildDied."""

    def end(self, key: str) -> None:
        """Stop the order under this key and forget it."""


def carried_out(
    builds: Builds, key: str, make: Callable[[], tuple[BuildOrder[T], datetime | None]]
) -> Done[T] | None:
    """Poll the order under this key; if no order runs, start the order that `make` returns with its deadline.

    Raises the errors of `Builds.look`.
    """
    if not builds.is_busy(key):
        builds.begin(key, *make())
    return builds.look(key)  # type: ignore[return-value]  # of the order that is under this key


class RecordedJob(Struct, frozen=True):
    job_id: JobId

    def carry_out(self, site: BuildSite) -> bool:
        return build_recorded(site.store, site.home, site.config, self.job_id, site.now)


class TakeIn(Struct, frozen=True):
    """A file that becomes a job through `submission.submit`."""

    path: Path
    options: submission.Options

    def carry_out(self, site: BuildSite) -> submission.Submission:
        """Return the submission without its plan. Raises OrchError after removing the job."""
        taken = submission.submit(
            site.store, site.home, site.config, self.path, self.options, site.now, lambda *progress: None
        )
        return replace(taken, report=None, plan=None)


def build_recorded(
    store: Store,
    home: Home,
    config: Config,
    job_id: JobId,
    now: Callable[[], datetime],
) -> bool:
    """Build a job. Return False if another process is building it. Raises OrchError."""
    job = store.jobs.find(job_id)
    if job is None:
        return True
    with builder.claim(home, job) as mine:
        if not mine:
            return False
        current = store.jobs.find(job_id)
        if current is None or current.built_at is not None:
            return True  # another process has just finished the build
        asked = reused_answers.asked_of(config, job)
        succession.supersede(store, job, now())
        report = builder.build(
            store, home, job, now(), asked=asked, models=partial(models_of, config), hosted=config.hosted,
            reading=config.documents, shortage=partial(disk.shortage, home, config.retention),
        )  # fmt: skip
        # Another job may wait for this one, so it stays even if it has no rows to ask.
        if AFTER not in job.options and builder.same_as(store, job, report) is not None:
            builder.discard(store, home, job)
            return True
        canary.mark(store, job, now())
        store.jobs.mark_built(job_id, now())
    store.jobs.note(job_id, EventKind.BUILT, str(report), now())
    return True
