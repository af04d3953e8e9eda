"""The deadline guard: which jobs are due for another look of the planner. In memory: a start looks at all of them."""

from __future__ import annotations

from datetime import datetime

from orchestrator.model import Job, JobId


class Guard:
    """When each job is planned again."""

    def __init__(self) -> None:
        self._next: dict[JobId, datetime] = {}

    def is_due(self, job: Job, now: datetime, *, waiting: bool, moved: bool) -> bool:
        """Whether to plan a job now: rows wait that did not before, or its time has come.

        One without a deadline is planned only while rows of it wait.
        """
        known = self._next.get(job.id)
        if waiting and (moved or known is None):
            return True
        return (waiting or job.deadline_at is not None) and (known is None or now >= known)

    def looked(self, job: Job, next_look: datetime) -> None:
        """A job was planned."""
        self._next[job.id] = next_look

    def forget(self, job: Job) -> None:
        """A job is over."""
        self._next.pop(job.id, None)
