"""Rows that an upstream refused or could not answer, and that will be retried. They explain a slow batch."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from msgspec import Struct

from orchestrator.server.dispatch.in_flight import Work
from orchestrator.server.dispatch.retry import AttemptFault
from orchestrator.server.dispatch.upstreams import Upstream


class FailedAttempt(Struct, frozen=True):
    """The latest failed attempt to get an answer for a row that will be retried.

    `tries` counts the attempts that failed by this fault; `most_tries` is their maximum (None: no limit). `status` is
    the HTTP status, or 0 without an answer. The next attempt is at `due`, in seconds of the upstream's clock.
    """

    upstream: Upstream
    fault: AttemptFault
    status: int
    reason: str
    tries: int
    most_tries: int | None
    due: float


class RefusedRows:
    """Unanswered rows whose latest attempt failed."""

    def __init__(self) -> None:
        self._attempts: dict[Work, FailedAttempt] = {}

    def note(self, work: Work, attempt: FailedAttempt) -> None:
        """Record a failed attempt of a row that will be retried."""
        self._attempts[work] = attempt

    def forget(self, work: Work) -> None:
        """Remove a row that ended, or that is no longer retried for this reason."""
        self._attempts.pop(work, None)

    def prune(self) -> None:
        """Remove the rows of batches that are stopping."""
        for work in [work for work in self._attempts if work.source.is_stopping]:
            del self._attempts[work]

    def describe(self, upstream: Upstream, now: float) -> list[dict[str, Any]]:
        """Return the rows of one upstream, grouped by batch, fault and status, most rows first."""
        groups: dict[tuple[str, AttemptFault, int], list[tuple[Work, FailedAttempt]]] = defaultdict(list)
        for work, attempt in self._attempts.items():
            if attempt.upstream is upstream and not work.source.is_stopping:
                groups[work.source.batch_id, attempt.fault, attempt.status].append((work, attempt))
        described = [_describe(batch, group, now) for (batch, _, _), group in groups.items()]
        return sorted(described, key=lambda group: (-group["rows"], group["batch"], group["fault"], group["status"]))


def _describe(batch: str, group: list[tuple[Work, FailedAttempt]], now: float) -> dict[str, Any]:
    attempts = [attempt for _, attempt in group]
    furthest = max(attempts, key=lambda attempt: attempt.tries)
    return {
        "batch": batch,
        "rows": sum(len(work.packed) or 1 for work, _ in group),
        "fault": furthest.fault.value,
        "status": furthest.status,
        "reason": furthest.reason,
        "tries": furthest.tries,
        "most_tries": furthest.most_tries,
        "next_try_seconds": round(max(0.0, min(attempt.due for attempt in attempts) - now), 1),
    }
