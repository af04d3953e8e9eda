"""Interface through which the pages read a home. The command line passes in its `Context`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

from orchestrator.core.model import Job, JobId
from orchestrator.core.shards import Shard
from orchestrator.reports.status import JobDetail, JobLine
from orchestrator.settings.home import Home

if TYPE_CHECKING:
    from orchestrator.policy.planner import Outlook
    from orchestrator.settings.config import Config
    from orchestrator.store import Store


class HomeReader(Protocol):
    """A home with its store and the settings in force."""

    store: Store
    home: Home

    @property
    def readable(self) -> Config | None:
        """The settings; None while orch.toml is broken."""

    def running_cost(self, shard: Shard) -> Decimal:
        """Return the cost of a running batch so far, in dollars."""

    def lines_of(self, store: Store, jobs: Sequence[Job]) -> list[JobLine]:
        """Return a line for each job, in the given order."""

    def job(self, name: str, *, tell: bool = True) -> Job:
        """Return the job with this id or name. With `tell`, print its id if a name was given. Raises UsageError."""

    def detail(self, job_id: JobId, problem: str | None = None) -> JobDetail:
        """Return a job's current details. Raises UsageError if the job does not exist."""

    def outlook(self, job: Job) -> Outlook | None:
        pass


Readers = Callable[[], HomeReader]
"""Returns a reader of the home: a new reader after orch.toml has changed."""
