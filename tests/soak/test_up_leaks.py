"""`orch up` at work for an hour of its clock (`make soak`): neither memory nor files nor threads become more.

ORCH_SOAK_UP_SECONDS says how long that hour takes; the figures go to docs/explanation/reliability.md.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

import pytest

from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.cli import CONFIG, Orch
from tests.support.hostedjob import KEY, plain, settings_of, write_toml
from tests.support.process import upstreams, wait_until

SECONDS = float(os.environ.get("ORCH_SOAK_UP_SECONDS", "300"))
HOUR = 3600.0
ROWS = 20
AT_ONCE = 6
"""So many jobs are under way at a time."""
MEGABYTES = 6.0
"""What noise may come to between the middle and the last third of the hour: about 60 kB a job."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process holds; memory in MB."""

    memory: float
    files: int
    threads: int


def sample_of(pid: int) -> Sample:
    """Read from /proc."""
    proc = Path(f"/proc/{pid}")
    [resident] = [line for line in (proc / "status").read_text().splitlines() if line.startswith("VmRSS:")]
    return Sample(
        int(resident.split()[1]) / 1024, len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))
    )


@dataclass(frozen=True, slots=True)
class Third:
    """A third of the hour: memory as it was mostly, files and threads at their most."""

    memory: float
    files: int
    threads: int

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Third:
        return cls(
            median(one.memory for one in samples),
            max(one.files for one in samples),
            max(one.threads for one in samples),
        )


def thirds(samples: Sequence[Sample]) -> list[Third]:
    size = len(samples) // 3
    return [Third.of(samples[at * size : (at + 1) * size]) for at in range(3)]


@pytest.fixture
def settled(run_orch: Orch, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A hosted Batch API and an engine of our own, reports and alerts; the environment of every command."""
    with Emulator(tmp_path / "provider", speed=HOUR / SECONDS) as provider, upstreams(tmp_path) as start:
        provider.settings(validating_s=[5, 30], turnaround_s=[60, 300])
        gpu = start(latency_ms=5)
        told = {
            "openai": settings_of(provider, "openai", poll_seconds=5),
            "gpu": {"kind": "local", "upstreams": [gpu.base_url], "location": "local", "cost_per_hour": 20.0},
        }
        write_toml(run_orch.home / CONFIG, told, '[reports]\nfolder = "reports"\n')
        yield {**provider.environment, "OPENAI_KEY": KEY}


def work(orch: Orch, env: dict[str, str], folder: Path, going: Callable[[], bool], look: Callable[[], None]) -> int:
    """Jobs one after the other, to the two backends in turn; how many there were."""
    with Store.open(f"sqlite:///{orch.home / 'orch.db'}") as store:
        home = Home(orch.home).identity()
        for number in count():
            wait_until(lambda: len(store.jobs.unfinished(home)) < AT_ONCE or not going(), SECONDS)
            if not going():
                wait_until(lambda: not store.jobs.unfinished(home), SECONDS)
                return number
            rows = plain(ROWS)
            for row in rows:
                row["body"]["messages"][-1]["content"] += f" ({number})"
            path = folder / f"job-{number}.jsonl"
            path.write_bytes(jsonl(rows))
            backend = ("gpu", "openai")[number % 2]
            done = orch("submit", str(path), "--backend", backend, "--deadline", "8h", env=env)
            assert done.returncode == 0, done.stderr
            look()
    raise AssertionError("count() ends never")


@pytest.mark.soak
@pytest.mark.timeout(SECONDS * 3 + 120)
def test_an_hour_of_work_leaves_nothing_behind(run_orch: Orch, settled: dict[str, str], tmp_path: Path) -> None:
    daemon = run_orch.start("up", env=settled, fresh=True)
    wait_until(lambda: "is up" in run_orch.output(daemon), 60)
    samples: list[Sample] = []
    ends = time.monotonic() + SECONDS
    jobs = work(
        run_orch,
        settled,
        tmp_path,
        lambda: time.monotonic() < ends,
        lambda: samples.append(sample_of(daemon.pid)),
    )
    assert daemon.poll() is None, run_orch.output(daemon)
    paid = json.loads(run_orch("report", "cost", "--by", "backend", "--json", env=settled).stdout)
    assert paid["total"]["rows"] == jobs * ROWS
    assert {job["state"] for job in json.loads(run_orch("status", "--json", env=settled).stdout)} == {"completed"}
    daemon.terminate()
    assert daemon.wait(60) == 0, run_orch.output(daemon)

    parts = thirds(samples)
    for name, part in zip(("first", "middle", "last"), parts, strict=True):
        sys.stderr.write(f"{name}: {part.memory:.1f} MB, at most {part.files} files, {part.threads} threads\n")
    sys.stderr.write(f"{jobs} jobs of {ROWS} rows, {len(samples)} samples\n")
    _, middle, last = parts
    assert last.memory - middle.memory < MEGABYTES
    assert last.files <= middle.files + 2
    assert last.threads <= middle.threads + 1
