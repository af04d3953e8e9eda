"""Nights on real processes: an emulated provider, upstreams and `orch` as a user runs it, by one clock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.cli import CONFIG, Orch, Process, kill_group
from tests.support.hostedjob import KEY, Json, plain, write_toml
from tests.support.process import wait_until

WAIT = 120.0
BEFORE = timedelta(minutes=5)
"""How long before a reroute is due the time stops being skipped."""


def rows_file(folder: Path, name: str, rows: int) -> str:
    """A batch file whose rows are its own."""
    path = folder / f"{name}.jsonl"
    lines = plain(rows)
    for line in lines:
        line["body"]["messages"][-1]["content"] += f" ({name})"
    path.write_bytes(jsonl(lines))
    return str(path)


def rescue_at(found: Json) -> datetime | None:
    """When a job's batches are cancelled for the deadline, as it is told now; None where that is at once."""
    reroute = found["outlook"]["reroute"]
    return None if reroute is None else datetime.fromisoformat(reroute["at"])


class RealNight:
    """A home with its backends, and what a user does there."""

    def __init__(self, orch: Orch, provider: Emulator, folder: Path, rows: int) -> None:
        self.orch = orch
        self.provider = provider
        self.folder = folder
        self.rows = rows
        self.env: Mapping[str, str] = {**provider.environment, "OPENAI_KEY": KEY, "AZURE_KEY": KEY}

    def backends(self, told: Mapping[str, Json]) -> None:
        """The orch.toml."""
        write_toml(self.orch.home / CONFIG, told)

    def ask(self, *arguments: str) -> Any:
        """What a command tells with --json."""
        return json.loads(self.orch(*arguments, "--json", env=self.env, timeout=WAIT).stdout)

    def submit(self, name: str, *terms: str) -> str:
        """A job of so many rows."""
        job: str = self.ask("submit", rows_file(self.folder, name, self.rows), *terms)["job"]
        return job

    def detail(self, job: str) -> Json:
        """`orch status JOB`."""
        found: Json = self.ask("status", job)
        return found

    def up(self) -> Process:
        """A daemon that goes on until it is ended."""
        return self.orch.start("up", env=self.env)

    def until_sent(self, *jobs: str) -> None:
        """A daemon runs until all batches of these jobs are at their providers, and is killed there."""
        running = self.up()
        for job in jobs:
            wait_until(lambda job=job: all(_is_there(self.detail(job))), WAIT)
        kill_group(running)
        running.wait(WAIT)

    def skip_to_rescue(self, *jobs: str) -> None:
        """Nothing happens until shortly before the first of these jobs is rescued, as it is told on the way."""
        clock = self.provider.clock
        while True:
            due = [at for job in jobs if (at := rescue_at(self.detail(job))) is not None]
            if len(due) < len(jobs) or min(due) - BEFORE - timedelta(minutes=1) <= clock.now():
                return
            clock.set(min(due) - BEFORE)

    def until_over(self, job: str) -> Json:
        """The job in full, once it is over."""
        return wait_until(lambda: found if (found := self.detail(job))["finished_at"] else None, WAIT)


def _is_there(found: Json) -> list[bool]:
    return [shard["batch_id"] is not None for shard in found["shards"]] or [False]


def in_time(found: Json) -> bool:
    """Whether a job ended well and by its deadline."""
    ended, due = (datetime.fromisoformat(found[name]) for name in ("finished_at", "deadline_at"))
    return found["state"] == "completed" and ended <= due


def moment(found: Json, kind: str, backend: str) -> datetime:
    """When something happened to a batch of this backend first."""
    of = {shard["shard"]: shard["backend"] for shard in found["shards"]}
    return next(
        datetime.fromisoformat(event["at"])
        for event in found["events"]
        if event["kind"] == kind and event["shard"] and of[event["shard"]] == backend
    )
