"""The deadline guard: which jobs are due for another look of the planner. In memory: a start looks at all of them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from orchestrator.model import Job, JobId

Terms = tuple[datetime | None, Decimal | None]


class Guard:
    """When each job is planned again."""

    def __init__(self) -> None:
        self._next: dict[JobId, tuple[datetime, Terms]] = {}

    def is_due(self, job: Job, now: datetime, *, waiting: bool, moved: bool) -> bool:
        """Whether to plan a job now: rows wait that did not before, its terms changed, or its time has come.

        One without a deadline is planned only while rows of it wait.
        """
        known = self._next.get(job.id)
        if waiting and (moved or known is None):
            return True
        if not waiting and job.deadline_at is None:
            return False
        return known is None or now >= known[0] or known[1] != _terms(job)

    def looked(self, job: Job, next_look: datetime) -> None:
        """A job was planned."""
        self._next[job.id] = (next_look, _terms(job))

    def forget(self, job: Job) -> None:
        """A job is over."""
        self._next.pop(job.id, None)


def _terms(job: Job) -> Terms:
    """What a user may change of a job while it runs."""
    return job.deadline_at, job.budget
