"""A night that goes wrong, on real processes: the hosted batch stalls, its rows come home in time, the sums are right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.cli import CONFIG, Orch
from tests.support.hostedjob import HOUR, KEY, USUAL, cost_of, plain, settings_of, write_toml
from tests.support.process import upstreams, wait_until

SPEED = 600.0
"""Ten minutes a second: a kept deadline leaves the machine a few seconds of its own."""
ROWS = 40
WAIT = 60.0


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


def rows_file(folder: Path, name: str) -> str:
    path = folder / f"{name}.jsonl"
    lines = plain(ROWS)
    for line in lines:
        line["body"]["messages"][-1]["content"] += f" ({name})"
    path.write_bytes(jsonl(lines))
    return str(path)


def test_a_batch_that_stalls_is_brought_home_in_time(
    provider: Emulator, run_orch: Orch, night: dict[str, str], tmp_path: Path
) -> None:
    def orch(*arguments: str) -> Any:
        return json.loads(run_orch(*arguments, "--json", env=night, timeout=WAIT).stdout)

    # What the engine does in an hour of this clock is learned first.
    orch("run", rows_file(tmp_path, "before"), "--backend", "gpu", "--quiet")
    provider.settings(turnaround_s=[25 * HOUR, 25 * HOUR])
    job_file = rows_file(tmp_path, "tonight")
    plan = orch("plan", job_file, "--deadline", "8h")
    assert [route["backend"] for route in plan["routes"]] == ["openai"]
    assert plan["rescue"]["to"] == ["gpu"]

    running = run_orch.start("run", job_file, "--deadline", "8h", "--quiet", env=night)
    [job] = wait_until(lambda: [one for one in orch("status") if one["name"] == "tonight"], WAIT)
    shards = wait_until(lambda: [s for s in orch("status", job["job"])["shards"] if s["batch_id"]], WAIT)
    assert [shard["backend"] for shard in shards] == ["openai"]
    outlook = orch("status", job["job"])["outlook"]
    assert outlook["chance"] > 0.98
    assert outlook["rescue"]["to"] == ["gpu"]
    # Nothing happens for hours. What the machine itself takes counts a sixth of what it did when it was measured.
    deadline = datetime.fromisoformat(job["deadline_at"])
    provider.clock.set(datetime.fromisoformat(outlook["rescue"]["at"]) - timedelta(minutes=5), speed=SPEED / 6)
    assert running.wait(WAIT) == 0

    found = orch("status", job["job"])
    assert found["state"] == "completed"
    assert found["requests"]["succeeded"] == ROWS
    assert {shard["backend"] for shard in found["shards"]} == {"openai", "gpu"}
    [rescued] = [event for event in found["events"] if event["kind"] == "rescued"]
    assert "rows pulled back" in rescued["reason"]
    assert datetime.fromisoformat(found["finished_at"]) <= deadline

    by_backend = {
        line["group"]: line for line in orch("report", "cost", "--by", "backend", "--job", job["job"])["lines"]
    }
    assert Decimal(by_backend["openai"]["cost_usd"]) == cost_of(provider.bill())
    assert sum(Decimal(line["cost_usd"]) for line in by_backend.values()) == Decimal(found["cost_usd"])
    fetched = run_orch("fetch", job["job"], "--format", "jsonl", env=night).stdout.splitlines()
    assert sum(Decimal(json.loads(line)["provenance"]["cost_usd"]) for line in fetched) == Decimal(found["cost_usd"])
    assert sorted(json.loads(line)["custom_id"] for line in fetched) == sorted(f"r{n}" for n in range(ROWS))
