"""A night that goes wrong, on real processes: the hosted batch stalls, its rows come home, the sums are right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.client import Emulator
from tests.support.cli import CONFIG, Orch, Process, kill_group
from tests.support.hostedjob import HOUR, KEY, USUAL, cost_of, settings_of, write_toml
from tests.support.process import upstreams, wait_until
from tests.support.realnights import rescue_at, rows_file

SPEED = 600.0
"""Ten minutes a second: a kept deadline leaves the machine a few seconds of its own."""
ROWS = 40
WAIT = 150.0


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "provider", speed=SPEED) as emulator:
        yield emulator


@pytest.fixture
def night(provider: Emulator, run_orch: Orch, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A cheap Batch API and a local engine that costs more; the environment of every command."""
    provider.settings(**USUAL, latency_ms=1)
    with upstreams(tmp_path) as start:
        gpu = start(latency=0.01)
        local = {"kind": "local", "upstreams": [gpu.base_url], "location": "local", "cost_per_hour": 20.0}
        told = {"openai": settings_of(provider, "openai", poll_seconds=1), "gpu": local}
        write_toml(run_orch.home / CONFIG, told)
        yield {**provider.environment, "OPENAI_KEY": KEY}


@dataclass
class Night:
    """A job of ROWS rows whose hosted batch has stalled, a few minutes before it is brought home."""

    orch: Callable[..., Any]
    start: Callable[[], Process]
    provider: Emulator
    job: str
    deadline: datetime

    def check(self) -> dict[str, Any]:
        """Every row is there once, and paid for as it is billed; the job in full."""
        found: dict[str, Any] = self.orch("status", self.job)
        assert (found["state"], found["requests"]["succeeded"]) == ("completed", ROWS)
        assert {shard["backend"] for shard in found["shards"]} == {"openai", "gpu"}
        lines = self.orch("report", "cost", "--by", "backend", "--job", self.job)["lines"]
        cost = {line["group"]: Decimal(line["cost_usd"]) for line in lines}
        assert cost["openai"] == cost_of(self.provider.bill())
        assert sum(cost.values()) == Decimal(found["cost_usd"])
        return found


@pytest.fixture
def stalled(provider: Emulator, run_orch: Orch, night: dict[str, str], tmp_path: Path) -> Night:
    def orch(*arguments: str) -> Any:
        return json.loads(run_orch(*arguments, "--json", env=night, timeout=WAIT).stdout)

    # What the engine does in an hour of this clock is learned first.
    orch("run", rows_file(tmp_path, "before", ROWS), "--backend", "gpu", "--quiet")
    provider.settings(turnaround_s=[25 * HOUR, 25 * HOUR])
    job_file = rows_file(tmp_path, "tonight", ROWS)
    plan = orch("plan", job_file, "--deadline", "8h")
    assert [route["backend"] for route in plan["routes"]] == ["openai"]
    assert plan["reroute"]["to"] == ["gpu"]

    def start() -> Process:
        return run_orch.start("run", job_file, "--quiet", env=night)

    job = orch("submit", job_file, "--deadline", "8h")["job"]
    running = start()
    shards = wait_until(lambda: [shard for shard in orch("status", job)["shards"] if shard["batch_id"]], WAIT)
    assert [shard["backend"] for shard in shards] == ["openai"]
    found = orch("status", job)
    assert found["outlook"]["chance"] > 0.98
    assert found["outlook"]["reroute"]["to"] == ["gpu"]
    kill_group(running)
    running.wait(WAIT)
    # Nothing happens for hours. What the machine itself takes counts a sixth of what it did when it was measured.
    provider.clock.set(speed=SPEED / 6)
    while (at := rescue_at(found)) is not None and at - timedelta(minutes=6) > provider.clock.now():
        provider.clock.set(at - timedelta(minutes=5))
        found = orch("status", job)
    return Night(orch, start, provider, job, datetime.fromisoformat(found["deadline_at"]))


def reroutes(found: Any) -> list[Any]:
    return [event for event in found["events"] if event["kind"] == "rerouted"]


@pytest.mark.long
def test_a_batch_that_stalls_is_brought_home_in_time(stalled: Night) -> None:
    assert stalled.start().wait(WAIT) == 0
    found = stalled.check()
    [rerouted] = reroutes(found)
    assert "rows rerouted" in rerouted["reason"]
    assert datetime.fromisoformat(found["finished_at"]) <= stalled.deadline


@pytest.mark.soak
def test_a_rescue_that_is_killed_again_and_again_loses_no_row(stalled: Night) -> None:
    def has(kind: str, backend: str) -> bool:
        found = stalled.orch("status", stalled.job)
        of = {shard["shard"]: shard["backend"] for shard in found["shards"]}
        told = [(event["kind"], of[event["shard"]]) for event in found["events"] if event["shard"]]
        return (kind, backend) in told

    for kind, backend in (("rerouted", "openai"), ("collected", "openai"), ("submitted", "gpu")):
        running = stalled.start()
        wait_until(lambda kind=kind, backend=backend: has(kind, backend), WAIT)
        kill_group(running)
        running.wait(WAIT)
    assert stalled.start().wait(WAIT) == 0
    stalled.check()


@pytest.mark.soak
def test_an_engine_that_does_not_keep_up_gives_its_rows_to_a_realtime_api(
    provider: Emulator, run_orch: Orch, tmp_path: Path
) -> None:
    provider.settings(**USUAL, latency_ms=1)
    provider.clock.set(speed=30.0)
    with upstreams(tmp_path) as start:
        stuck = start(slots=1, latency_ms=60_000)
        local = {"kind": "local", "upstreams": [stuck.base_url], "location": "local", "idle": True}
        write_toml(run_orch.home / CONFIG, {"gpu": local, "flex": settings_of(provider, "flex")})
        environment = {**provider.environment, "FLEX_KEY": KEY}

        def orch(*arguments: str) -> Any:
            return json.loads(run_orch(*arguments, "--json", env=environment, timeout=WAIT).stdout)

        job_file = rows_file(tmp_path, "tonight", ROWS)
        job = orch("submit", job_file, "--deadline", "12m")["job"]
        running = run_orch.start("run", job_file, "--quiet", env=environment)
        wait_until(lambda: reroutes(orch("status", job)), WAIT)
        provider.clock.set(speed=1.0)  # what the machine itself takes counts no more than it does
        assert running.wait(WAIT) == 0, run_orch.output(running)
    found = orch("status", job)
    assert found["requests"]["succeeded"] == ROWS
    assert [shard["backend"] for shard in found["shards"]] == ["gpu", "flex"]
    [left] = reroutes(found)
    assert "leave gpu, which would not finish them in time" in left["reason"]
    assert datetime.fromisoformat(found["finished_at"]) <= datetime.fromisoformat(found["deadline_at"])


@dataclass
class Dying:
    """A home with an engine that takes rows and does none, and how a job runs there."""

    run_orch: Orch
    environment: dict[str, str]
    folder: Path
    kill: Callable[[], None]

    def orch(self, *arguments: str) -> Any:
        return json.loads(self.run_orch(*arguments, "--json", env=self.environment, timeout=WAIT).stdout)

    def run(self, *terms: str) -> tuple[int, dict[str, Any]]:
        """Run a job whose engine dies once it has the rows: the exit status, and the job in full."""
        path = rows_file(self.folder, "tonight", ROWS)
        job = self.orch("submit", path, *terms)["job"]
        running = self.run_orch.start("run", path, "--quiet", env=self.environment)
        wait_until(lambda: [one for one in self.orch("status", job)["shards"] if one["batch_id"]], WAIT)
        self.kill()
        return running.wait(WAIT), self.orch("status", job)


@pytest.fixture
def dying(provider: Emulator, run_orch: Orch, tmp_path: Path) -> Iterator[Callable[..., Dying]]:
    provider.settings(**USUAL, latency_ms=1)
    provider.clock.set(speed=30.0)
    with upstreams(tmp_path) as start:

        def make(*others: str, engines: int = 1) -> Dying:
            stuck = [start(slots=1, latency_ms=60_000) for _ in range(engines)]
            told: dict[str, Any] = {
                f"gpu{number}": {
                    "kind": "local", "upstreams": [one.base_url], "location": "local", "idle": True,
                    "patience": 2.0, "request_timeout": 5.0,
                }
                for number, one in enumerate(stuck)
            }  # fmt: skip
            told.update({name: settings_of(provider, name, poll_seconds=1) for name in others})
            write_toml(run_orch.home / CONFIG, told)
            environment = {**provider.environment, "FLEX_KEY": KEY, "OPENAI_KEY": KEY}

            def kill() -> None:
                for one in stuck:
                    one.stop()

            return Dying(run_orch, environment, tmp_path, kill)

        yield make


@pytest.mark.parametrize(
    ("other", "terms"), [("flex", []), pytest.param("openai", ["--deadline", "9h"], marks=pytest.mark.soak)]
)
def test_rows_of_an_engine_that_died_go_to_another_backend(
    dying: Callable[..., Dying], other: str, terms: list[str]
) -> None:
    status, found = dying(other).run(*terms)
    assert status == 0
    assert (found["state"], found["requests"]["succeeded"]) == ("completed", ROWS)
    assert {shard["backend"] for shard in found["shards"]} == {"gpu0", other}


def test_where_every_engine_died_the_command_ends_and_says_so(dying: Callable[..., Dying]) -> None:
    status, found = dying(engines=2).run()
    assert status == 4
    assert (found["state"], found["requests"]["pending"]) == ("stopped", ROWS)
