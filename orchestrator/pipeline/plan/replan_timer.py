"""The deadline guard: which jobs are due for another look of the planner. In memory: a start looks at all of them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from orchestrator.core.model import Job, JobId

Terms = tuple[datetime | None, Decimal | None, frozenset[str]]


class ReplanTimer:
    """When each job is planned again."""

    def __init__(self) -> None:
        self._next: dict[JobId, tuple[datetime, Terms]] = {}

    def is_due(
        self, job: Job, now: datetime, *, waiting: bool, moved: bool, trouble: frozenset[str] = frozenset()
    ) -> bool:
        """Whether to plan a job now: rows wait that did not before, its terms changed, or it is due.

        Backends in `trouble` take no rows, or do not answer: that they are, and that they are no longer, is news. A
        job without a deadline is planned only then, and while rows of it wait.
        """
        known = self._next.get(job.id)
        if waiting and (moved or known is None):
            return True
        if not waiting and job.deadline_at is None:
            return known is not None and known[1] != _terms(job, trouble)
        return known is None or now >= known[0] or known[1] != _terms(job, trouble)

    def looked(self, job: Job, next_look: datetime, trouble: frozenset[str] = frozenset()) -> None:
        """A job was planned."""
        self._next[job.id] = (next_look, _terms(job, trouble))

    def forget(self, job: Job) -> None:
        """A job is over."""
        self._next.pop(job.id, None)


def _terms(job: Job, trouble: frozenset[str]) -> Terms:
    """What may change of a job and of its backends while it runs."""
    return job.deadline_at, job.budget, trouble
