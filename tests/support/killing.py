"""Kills a running `orch` at random moments and checks, each time, what may be left and what must never happen."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cli import Orch, kill_group
from tests.support.faulty_disk import FaultyDisk
from tests.support.process import Upstream

MAX_CONCURRENCY = 32
LATENCY_MS = 30
# What a kill may cost again: the rows in flight, and the answers of the 100 ms before, which may not be durable yet.
PER_KILL = MAX_CONCURRENCY + MAX_CONCURRENCY * 100 // LATENCY_MS

STORAGE = 4
"""What `orch run` ends with where the disk fails."""


def write_batch_file(path: Path, rows: int) -> list[str]:
    """A ready batch file whose rows the upstream's log can tell apart; their custom_ids in order."""
    ids = [f"row-{number:05d}" for number in range(rows)]
    with path.open("w", encoding="utf-8") as file:
        for custom_id in ids:
            body = {"model": "m", "user": custom_id, "messages": [{"role": "user", "content": f"say {custom_id}"}]}
            line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return ids


def durable_ids(home: Path) -> set[str]:
    """The custom_ids of every whole result line under a home: rows whose answers must never be asked for again."""
    found: set[str] = set()
    for pattern in ("servers/*/batches/*/*.jsonl", "jobs/*/shards/*.output.jsonl", "jobs/*/shards/*.error.jsonl"):
        for path in home.glob(pattern):
            found.update(json.loads(line)["custom_id"] for line in _whole_lines(path))
    return found


def _whole_lines(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield from data[: data.rfind(b"\n") + 1].splitlines()


@dataclass(slots=True)
class KillReport:
    """What a series of kills did, and every broken promise, in words."""

    kills: int = 0
    finished_before_kill: int = 0
    sent_again: int = 0
    broken: list[str] = field(default_factory=list)
    stages: Counter[str] = field(default_factory=Counter)


class KillRun:
    """One job, run by the command line and killed again and again until it is let finish."""

    def __init__(self, orch: Orch, upstream: Upstream, folder: Path, rows: int, env: Mapping[str, str]) -> None:
        self._orch = orch
        self._upstream = upstream
        self._env = env
        self._input = folder / "requests.jsonl"
        self._output = folder / "out.jsonl"
        self._ids = write_batch_file(self._input, rows)
        self.report = KillReport()

    def kill_after(self, seconds: float) -> bool:
        """Run for that long, then SIGKILL. False where the run ended by itself first."""
        process = self._orch.start(*self._command(), env=self._env, fresh=True)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            self.report.finished_before_kill += 1
            if process.returncode != 0:
                self.report.broken.append(f"exit {process.returncode}: {self._orch.output(process)[-2000:]}")
            return False
        kill_group(process)
        process.wait()
        self.report.kills += 1
        return True

    def until_done(self, kills: int, longest: float, dice: random.Random) -> KillReport:
        """Kill at `kills` random moments up to `longest` seconds after each start, then finish and check all."""
        snapshots: list[tuple[set[str], Counter[str]]] = []
        for _ in range(kills):
            if not self.kill_after(dice.uniform(0.2, longest)):
                break
            snapshots.append((durable_ids(self._orch.home), self._upstream.counts()))
            self.report.stages[self._stage()] += 1
        self._finish()
        self._check(snapshots)
        return self.report

    def until_done_on(self, disk: FaultyDisk) -> KillReport:
        """Run before a disk that fails, a few times; then finish on one that does not and check."""
        disk.beset(self._orch, self._command(), self._env, allowed=(0, STORAGE))
        self.report.kills = disk.codes.total()
        snapshot = durable_ids(self._orch.home), self._upstream.counts()
        self._finish()
        self._check([snapshot])
        return self.report

    def _command(self) -> tuple[str, ...]:
        return "run", str(self._input), "-o", str(self._output), "-q"

    def _stage(self) -> str:
        """Where the kill struck, told by what is on the disk."""
        home = self._orch.home
        if any(home.glob("jobs/*/results*.jsonl")):
            return "merged"
        if any(home.glob("jobs/*/shards/*.output.jsonl")):
            return "collecting"
        batches = [path.stat().st_size for path in home.glob("servers/*/batches/*/output.jsonl")]
        if batches:
            return "running" if any(batches) else "started"
        return "building" if any(home.glob("jobs/*")) else "starting"

    def _finish(self) -> None:
        done = self._orch(*self._command(), env=self._env, timeout=120)
        if done.returncode != 0:
            self.report.broken.append(f"the last run ended with {done.returncode}: {done.stderr[-2000:]}")

    def _check(self, snapshots: list[tuple[set[str], Counter[str]]]) -> None:
        broken = self.report.broken
        got = [json.loads(line)["custom_id"] for line in self._output.read_bytes().splitlines()]
        if got != self._ids:
            broken.append(f"{len(got)} rows in the output, {len(set(got))} of them different, not the input in order")
        final = self._upstream.counts()
        for number, (durable, counts) in enumerate(snapshots, 1):
            again = [custom_id for custom_id in durable if final[custom_id] != counts[custom_id]]
            if again:
                broken.append(f"after kill {number}, {len(again)} rows were sent again though durable: {again[:3]}")
        self.report.sent_again = sum(final.values()) - len(self._ids)
        if self.report.sent_again > PER_KILL * self.report.kills:
            broken.append(f"{self.report.sent_again} rows were sent again in {self.report.kills} kills")
        self._check_counts()

    def _check_counts(self) -> None:
        (job,) = json.loads(self._orch("status", "--json", env=self._env).stdout)
        lines = sum(1 for _ in _whole_lines(self._output))
        counts = job["requests"]
        if not (counts["total"] == counts["succeeded"] == lines == len(self._ids)):
            self.report.broken.append(f"counts {counts} do not equal the {lines} lines of the file")
        home = self._orch.home
        patterns = ("**/*.partial", "**/.*.partial", "jobs/*/shards/*.input.jsonl", "servers/*/files/*")
        left = [str(path.relative_to(home)) for pattern in patterns for path in home.glob(pattern)]
        if left:
            self.report.broken.append(f"files are left that nobody needs: {left}")
