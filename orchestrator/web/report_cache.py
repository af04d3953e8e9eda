"""Cache of job reports for the overview of a night: each report takes ten queries."""

from __future__ import annotations

import threading
import time
from datetime import datetime

from msgspec import Struct

from orchestrator.reports.night import JobReport
from orchestrator.reports.night_reader import job_report
from orchestrator.reports.status import JobLine
from orchestrator.web.reader import HomeReader

MOVING_SECONDS, STILL_SECONDS = 5.0, 30.0
"""Seconds to keep the report of a job whose figures change, and of an unchanged job."""
MOST = 500


class _Kept(Struct, frozen=True):
    made_at: float
    line: JobLine
    report: JobReport


class Glances:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Kept] = {}

    def of(self, reader: HomeReader, line: JobLine, at: datetime) -> JobReport:
        """Return a job's report. It is cached for longer if the job's line is unchanged."""
        with self._lock:
            kept = self._known.get(line.job.id)
        if kept is not None:
            age = time.monotonic() - kept.made_at
            if age < (STILL_SECONDS if _is_same(kept.line, line) else MOVING_SECONDS):
                return kept.report
        report = job_report(reader.store, reader.home, line, at, glance=True)
        with self._lock:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[line.job.id] = _Kept(time.monotonic(), line, report)
        return report


def _is_same(one: JobLine, other: JobLine) -> bool:
    """True if the job's figures are unchanged, apart from rate and ETA, which always change."""
    return (one.job, one.state, one.counts, one.failing, one.cost) == (
        other.job, other.state, other.counts, other.failing, other.cost,
    )  # fmt: skip
