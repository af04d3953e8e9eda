"""SIGKILL in the middle of `orch.map`, over and over, then to the end: the same frame, and nothing paid twice."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from orchestrator.core.model import Job
from orchestrator.store import Store
from tests.conftest import MakeUpstream
from tests.emulator.client import Emulator
from tests.support import hosted_kills, killing
from tests.support.answers import echo
from tests.support.billing import booked_twice
from tests.support.cli import write_config
from tests.support.hosted_kills import SPEED, hosted_schedule, sync_schedule, toml_of
from tests.support.library import start_script
from tests.support.process import wait_until
from tests.support.schedules import MODEL

KILLS = int(os.environ.get("ORCH_LIBRARY_KILLS", "4"))
LONGEST_RUN = 120.0
SCRIPT = """
import sys
from pathlib import Path

import pandas

import orchestrator as orch

frame = pandas.DataFrame({{"text": [f"row {{n}}" for n in range({rows})]}}, index=[n % 7 for n in range({rows})])
out = orch.map(frame, "Say {{{{ text }}}}", model="small", job={{"models": {{"small": "{model}"}}}}, progress=False)
out.to_pickle("out.new")
Path("out.new").replace("out.pickle")
"""


class KilledKernel:
    """A caller's process that maps a frame, killed each time that `asked()` has grown."""

    def __init__(self, home: Path, rows: int, model: str, env: dict[str, str], asked: Callable[[], int]) -> None:
        self.home, self.rows, self.kills = home, rows, 0
        self._script = home.parent / "notebook.py"
        self._script.write_text(SCRIPT.format(rows=rows, model=model), encoding="utf-8")
        self._env, self._asked = env, asked
        self._said = home.parent / "said.log"

    def until_done(self, kills: int, most_calls: int, blow: signal.Signals = signal.SIGKILL) -> pandas.DataFrame:
        """Kill behind up to `most_calls` calls of each start, `kills` times, then let it finish; the frame."""
        dice = random.Random(41)
        for _ in range(kills):
            before, more = self._asked(), dice.randint(1, most_calls)
            # An interpreter's own end is part of what an interrupt leaves behind.
            is_fresh = blow is signal.SIGINT
            process = start_script(self._script, self.home, self._env, self._said, is_fresh=is_fresh)
            wait_until(lambda: process.poll() is not None or self._asked() >= before + more, LONGEST_RUN)  # noqa: B023
            if process.poll() is not None:
                break
            os.killpg(process.pid, blow)
            process.wait(LONGEST_RUN)
            self.kills += 1
        last = start_script(self._script, self.home, self._env, self._said)
        assert last.wait(LONGEST_RUN) == 0, self.said()[-3000:]
        return pandas.read_pickle(self.home.parent / "out.pickle")  # written a moment ago by ourselves

    def said(self) -> str:
        return self._said.read_text(encoding="utf-8")

    def store(self) -> Store:
        return Store.open(f"sqlite:///{self.home / 'orch.db'}")


def check(kernel: KilledKernel, out: pandas.DataFrame) -> Job:
    """Each row is there once, answered, at its place; one job was made. The job."""
    assert out["text"].tolist() == [f"row {number}" for number in range(kernel.rows)]
    assert out.index.tolist() == [number % 7 for number in range(kernel.rows)]
    assert out["error"].isna().all()
    assert out["answer"].notna().all()
    assert kernel.kills >= 2, "no kill struck the work"
    with kernel.store() as store:
        (job,) = store.jobs.newest()
        assert store.jobs.counts([job.id])[job.id].succeeded == kernel.rows
    return job


@pytest.mark.soak  # `make test` has a Batch API
def test_a_kernel_killed_before_an_engine_of_one_s_own(make_upstream: MakeUpstream, orch_home: Path) -> None:
    upstream = make_upstream(slots=killing.MAX_CONCURRENCY, latency_ms=killing.LATENCY_MS)
    write_config(orch_home, [upstream.base_url], max_concurrency=killing.MAX_CONCURRENCY)
    kernel = KilledKernel(orch_home, 120 * KILLS, "m", {}, lambda: len(upstream.requests()))

    out = kernel.until_done(KILLS, 100)

    check(kernel, out)
    assert out["answer"].tolist() == [echo(f"Say row {number}") for number in range(kernel.rows)]
    again = len(upstream.requests()) - kernel.rows
    assert 0 <= again <= killing.PER_KILL * kernel.kills
    sys.stderr.write(f"{kernel.kills} kills, {again} of {kernel.rows} rows asked again\n")


@pytest.mark.long
def test_an_interrupted_kernel_goes_on_where_it_stopped(make_upstream: MakeUpstream, orch_home: Path) -> None:
    upstream = make_upstream(slots=killing.MAX_CONCURRENCY, latency_ms=killing.LATENCY_MS)
    write_config(orch_home, [upstream.base_url], max_concurrency=killing.MAX_CONCURRENCY)
    kernel = KilledKernel(orch_home, 300, "m", {}, lambda: len(upstream.requests()))

    out = kernel.until_done(2, 50, signal.SIGINT)

    check(kernel, out)
    assert "KeyboardInterrupt" in kernel.said()
    assert "Exception ignored" not in kernel.said()


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "provider", speed=SPEED) as running:
        running.settings(turnaround_s=[200, 900], latency_ms=hosted_kills.LATENCY_MS)
        yield running


def calls_of(provider: Emulator) -> int:
    return sum(entry["count"] for entry in provider.state()["requests"])


@pytest.mark.slow
def test_a_kernel_killed_while_a_batch_api_has_the_rows(provider: Emulator, orch_home: Path) -> None:
    rows = 20 * KILLS
    schedule = replace(hosted_schedule(1, 60), order=("cloud",))  # batches of 15 rows
    (orch_home / "orch.toml").write_text(toml_of(provider, schedule), encoding="utf-8")
    env = {**provider.environment, "KEY": "sk-test-0123456789"}
    kernel = KilledKernel(orch_home, rows, MODEL, env, lambda: calls_of(provider))

    out = kernel.until_done(KILLS, 12)

    check(kernel, out)
    billed = sum(line["rows"] for line in provider.bill()["lines"])
    assert billed == rows, "nothing is paid twice"
    sys.stderr.write(f"{kernel.kills} kills, {billed} rows billed of {rows}\n")


@pytest.mark.soak  # `make test` has a Batch API
@pytest.mark.slow
def test_a_kernel_killed_while_a_synchronous_api_has_the_rows(provider: Emulator, orch_home: Path) -> None:
    rows = 100 * KILLS
    provider.settings(latency_ms=250)  # so that a kill strikes before all of them are answered
    (orch_home / "orch.toml").write_text(toml_of(provider, sync_schedule(1, rows)), encoding="utf-8")
    env = {**provider.environment, "KEY": "sk-test-0123456789"}
    kernel = KilledKernel(orch_home, rows, MODEL, env, lambda: calls_of(provider))

    out = kernel.until_done(KILLS, 80)

    job = check(kernel, out)
    billed = sum(line["rows"] for line in provider.bill()["lines"])
    with kernel.store() as store:
        costs = {row.seq: row.cost for row in store.rows.finished(job.id)}
        uncertain = sum(round(doubt / costs[seq]) for seq, doubt in booked_twice(store, job).items())
    assert 0 < billed - rows <= uncertain <= hosted_kills.PER_KILL * kernel.kills
    sys.stderr.write(
        f"{kernel.kills} kills, {billed - rows} of {rows} rows billed again, {uncertain} booked as uncertain\n"
    )
