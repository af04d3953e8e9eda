"""What the report of a night says of jobs at a glance, kept for a while: it takes ten queries to say it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import datetime

from orchestrator.reports.night import JobReport
from orchestrator.reports.night_reader import job_report
from orchestrator.reports.status import JobLine
from orchestrator.web.reader import HomeReader

MOVING_SECONDS, STILL_SECONDS = 5.0, 30.0
"""How long a report is kept of a job whose figures change, and of one whose figures are as they were."""
MOST = 500


@dataclass(frozen=True, slots=True)
class _Kept:
    made_at: float
    line: JobLine
    report: JobReport


class Glances:
    """Reports by job."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Kept] = {}

    def of(self, reader: HomeReader, line: JobLine, at: datetime) -> JobReport:
        """The report of a job that stands as its line says."""
        with self._lock:
            kept = self._known.get(line.job.id)
        if kept is not None:
            age = time.monotonic() - kept.made_at
            if age < (STILL_SECONDS if _is_same(kept.line, line) else MOVING_SECONDS):
                return kept.report
        report = job_report(reader.store, reader.home, line.job, at, glance=True)
        with self._lock:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[line.job.id] = _Kept(time.monotonic(), line, report)
        return report


def _is_same(one: JobLine, other: JobLine) -> bool:
    """Whether a job stands as it stood; how quick it is and when it may end change all the time."""
    return (one.job, one.state, one.counts, one.failing, one.cost) == (
        other.job, other.state, other.counts, other.failing, other.cost,
    )  # fmt: skip
