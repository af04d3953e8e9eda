"""A home with schedules on a clock that the test sets; no daemon runs its jobs, the tests end them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrator.core.model import Job, RequestState
from orchestrator.core.schedules import Misfire, NightState, Overlap, Schedule
from orchestrator.daemon.scheduler import Scheduler
from orchestrator.settings.config import load
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import Settled
from tests.support.cli import write_config
from tests.support.databases import new_sqlite
from tests.support.stored import ranges, shard, succeeded

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: sender, model: small, prompt: "Who wrote this?"}
models: {small: some-model}
"""
EVENING = datetime(2026, 11, 20, 18, tzinfo=UTC)
"""Four hours before the first night."""


class Nights:
    """A home with a schedule at 22:00 UTC; no daemon runs its jobs, the tests end them."""

    def __init__(self, folder: Path) -> None:
        self.at = EVENING
        self.file = folder / "job.yaml"
        self.file.write_text(JOB, encoding="utf-8")
        self.documents = folder / "documents"
        self.documents.mkdir()
        (self.documents / "0.txt").write_text("Dear reader.", encoding="utf-8")
        self.home = Home(folder / "home")
        self.home.root.mkdir()
        path = write_config(self.home.root, ["http://127.0.0.1:9/v1"])
        self.config = load(Place(path, self.home.root, f"sqlite:///{folder / 'orch.db'}", 10.0))
        self.store = Store.open(new_sqlite(folder / "orch.db"))
        self.restart()

    def restart(self) -> None:
        """As after a kill: what the process knew is gone."""
        self.scheduler = Scheduler(self.store, self.home, self.config, lambda: self.at)

    def add(self, **facts: Any) -> Schedule:
        terms: dict[str, Any] = {
            "id": "letters-1", "name": "letters", "home": self.home.identity(), "config": str(self.config.path),
            "file": str(self.file), "cron": "0 22 * * *", "tz": "UTC", "deadline": None, "budget": None,
            "misfire": Misfire.RUN, "grace": timedelta(hours=6), "overlap": Overlap.SKIP,
            "created_at": self.at, "since": self.at,
        }  # fmt: skip
        schedule = Schedule(**{**terms, **facts})
        self.store.schedules.add(schedule)
        return schedule

    def tick(self, **later: float) -> list[str]:
        self.at += timedelta(**later)
        return self.scheduler.tick()

    def states(self) -> list[tuple[int, NightState]]:
        return [(night.night.day, night.state) for night in self.store.schedules.nights()]

    def reason(self) -> str:
        return self.store.schedules.nights()[-1].reason

    def jobs(self) -> list[Job]:
        return self.store.jobs.newest()

    def answer(self) -> None:
        """Answer all rows of the open job, and finish it."""
        (job,) = self.store.jobs.unfinished(self.home.identity())
        for number, found in enumerate(ranges(self.store, job), 1):
            new = shard(job, number, model=found.model, rows=found.rows, bytes=found.bytes)
            self.store.shards.add(new, found)
            settled = [Settled(*succeeded(row.seq)) for row in self.store.rows.of_shard(new.id)]
            self.store.rows.settle(new.id, job.id, "gpu", settled, self.at, found.model)
        self.store.jobs.finish(job.id, "results.jsonl", self.at)

    def finish(self) -> None:
        (job,) = self.store.jobs.unfinished(self.home.identity())
        self.store.rows.end_open(job.id, RequestState.EXPIRED, "batch_expired", "too late", self.at)
        self.store.jobs.finish(job.id, "results.jsonl", self.at)
