"""Cache of job outlooks: each needs a plan, and changes slowly."""

from __future__ import annotations

import threading
import time
from typing import Any

from orchestrator.core.errors import OrchError
from orchestrator.core.model import Job
from orchestrator.reports.status import outlook_json
from orchestrator.web.figures import CommandJson
from orchestrator.web.reader import HomeReader

KEPT_SECONDS = 20.0
MOST = 500


class Outlooks:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, dict[str, Any] | None]] = {}

    def told(self, reader: HomeReader, job: Job) -> CommandJson:
        """Return the `outlook` of `orch status JOB --json`; null if the job has no outlook."""
        return CommandJson(f"status {job.id}", {"outlook": self._of(reader, job)})

    def _of(self, reader: HomeReader, job: Job) -> dict[str, Any] | None:
        if job.finished_at is not None or job.built_at is None:
            return None
        with self._lock:
            made_at, known = self._known.get(job.id, (0.0, None))
        if made_at and time.monotonic() - made_at < KEPT_SECONDS:
            return known
        try:
            found = reader.outlook(job)
        except OrchError:
            found = None  # the job's own page shows the error
        told = None if found is None else outlook_json(found)
        with self._lock:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[job.id] = time.monotonic(), told
        return told
