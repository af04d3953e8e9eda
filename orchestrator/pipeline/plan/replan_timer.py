"""Times at which jobs are planned again. They are kept in memory: after a restart, every job is planned again."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from orchestrator.core.model import Job, JobId

Terms = tuple[datetime | None, Decimal | None, frozenset[str]]


class ReplanTimer:
    def __init__(self) -> None:
        self._next: dict[JobId, tuple[datetime, Terms]] = {}

    def is_due(
        self, job: Job, now: datetime, *, waiting: bool, moved: bool, trouble: frozenset[str] = frozenset()
    ) -> bool:
        """True if a job should be planned now: new rows wait, its terms changed, or its planning time has come.

        `trouble` names the backends that take no rows or do not answer; a change in it also triggers planning. A job
        without a deadline is planned only after these changes and while its rows wait.
        """
        known = self._next.get(job.id)
        if waiting and (moved or known is None):
            return True
        if not waiting and job.deadline_at is None:
            return known is not None and known[1] != _terms(job, trouble)
        return known is None or now >= known[0] or known[1] != _terms(job, trouble)

    def looked(self, job: Job, next_look: datetime, trouble: frozenset[str] = frozenset()) -> None:
        """Store the time of a job's next planning."""
        self._next[job.id] = (next_look, _terms(job, trouble))

    def forget(self, job: Job) -> None:
        self._next.pop(job.id, None)


def _terms(job: Job, trouble: frozenset[str]) -> Terms:
    return job.deadline_at, job.budget, trouble
