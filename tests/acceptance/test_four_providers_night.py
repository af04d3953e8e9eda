"""One job at four providers in one night, one of which dies half-way: each row once, paid as each of them bills."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.client import Emulator
from tests.support.aws import aws_environment
from tests.support.cli import CONFIG, Orch, Process
from tests.support.hostedjob import HOUR, KEY, RATES, USUAL, cost_of, settings_of, table
from tests.support.process import wait_until

SPEED = 900.0
"""A quarter of an hour a second."""
EACH = 100
"""As few rows as a job of Bedrock may have."""
WAIT = 150.0
NAMES = ("openai", "claude", "gemini", "bedrock")
ROWS = EACH * len(NAMES)
SCHEMA = {
    "type": "object",
    "properties": {"topic": {"type": "string"}},
    "required": ["topic"],
    "additionalProperties": False,
}


@dataclass
class Night:
    """A home with four providers, each a process of its own, and one job that asks a model of each."""

    orch: Orch
    providers: dict[str, Emulator]
    env: dict[str, str]
    file: str

    def __call__(self, *arguments: str) -> Any:
        ran = self.orch(*arguments, "--json", env=self.env, timeout=WAIT)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return json.loads(ran.stdout)

    def started(self, *more: str) -> tuple[str, Process]:
        """The job while it runs, once it has a batch at each of the providers."""
        job = self("submit", self.file, *more)["job"]
        running = self.orch.start("run", self.file, "--quiet", env=self.env)
        wait_until(lambda: sum(bool(one["batch_id"]) for one in self("status", job)["shards"]) == len(NAMES), WAIT)
        assert {shard["backend"] for shard in self("status", job)["shards"]} == set(NAMES)
        return job, running

    def check(self, job: str) -> tuple[dict[str, Decimal], list[dict[str, Any]]]:
        """Every row is there once; what each backend cost, and the rows."""
        found = self("status", job)
        assert (found["state"], found["requests"]["succeeded"]) == ("completed", ROWS)
        assert found["finished_at"] <= found["deadline_at"]
        ran = self.orch("fetch", job, "--format", "jsonl", env=self.env, timeout=WAIT)
        rows = [json.loads(line) for line in ran.stdout.splitlines()]
        assert len({row["custom_id"] for row in rows}) == len(rows) == ROWS
        lines = self("report", "cost", "--by", "backend", "--job", job)["lines"]
        costs = {line["group"]: Decimal(line["cost_usd"]) for line in lines}
        assert sum(costs.values()) == Decimal(found["cost_usd"])
        return costs, rows

    def billed(self) -> dict[str, int]:
        """The rows that each provider has billed."""
        return {name: sum(line["rows"] for line in one.bill()["lines"]) for name, one in self.providers.items()}

    def bill(self, name: str, tier: str = "batch") -> Decimal:
        """What a provider bills: a batch at half the price of a call."""
        lines = [
            line for line in self.providers[name].bill()["lines"] if (line["tier"] == "batch") == (tier == "batch")
        ]
        return cost_of({"lines": lines}) * (1 if tier == "batch" else 2)


@pytest.fixture
def night(run_orch: Orch, tmp_path: Path) -> Iterator[Night]:
    with ExitStack() as ended:
        providers: dict[str, Emulator] = {}
        for name in NAMES:
            provider = Emulator(tmp_path / name)
            if providers:
                provider.clock = providers["openai"].clock
            providers[name] = ended.enter_context(provider)
            provider.settings(**{**USUAL, "turnaround_s": [HOUR, HOUR]}, models=[f"m-{name}"], latency_ms=1)
        write(run_orch.home / CONFIG, providers)
        env = {**providers["openai"].environment, **aws_environment(KEY, tmp_path)}
        env |= {f"{name.upper()}_KEY": KEY for name in (*NAMES, "flex")}
        (tmp_path / "documents").mkdir()
        for number in range(EACH):
            (tmp_path / "documents" / f"{number:03}.txt").write_text(f"Letter {number}.", encoding="utf-8")
        tasks = [
            {"id": name, "model": f"of-{name}", "prompt": f"Topic, {name}?", "max_tokens": 60, "schema": SCHEMA}
            for name in NAMES
        ]
        models = {f"of-{name}": {name: f"m-{name}"} for name in NAMES}
        models["of-gemini"]["flex"] = "m-openai"
        file = tmp_path / "job.yaml"
        spec = {"name": "letters", "documents": "documents", "tasks": tasks, "models": models}
        file.write_text(json.dumps(spec), encoding="utf-8")
        providers["openai"].clock.set(speed=SPEED)
        yield Night(run_orch, providers, env, str(file))


def write(path: Path, providers: dict[str, Emulator]) -> None:
    """An orch.toml with the four Batch APIs, and a synchronous tier of OpenAI that costs twice as much."""
    realtime = {kind: 2 * rate for kind, rate in RATES.items()}
    rates = f"{{ {', '.join(f'{kind} = {rate}' for kind, rate in RATES.items())} }}"
    told = ["[routing]\nprobe = false\n"]
    told += [f"[backends.flex]\n{table(settings_of(providers['openai'], 'flex', service_tier='default'))}\n"]
    for name, provider in providers.items():
        told.append(f"[backends.{name}]\n{table(settings_of(provider, name, poll_seconds=0.5))}\n")
        told.append(f"[prices.m-{name}]\n{table(realtime)}batch = {rates}\n")
    path.write_text("".join(told), encoding="utf-8")


@pytest.mark.soak  # `make test` has one that dies, in test_four_providers
def test_a_provider_that_is_away_half_the_night_keeps_its_rows_and_is_paid_once(night: Night) -> None:
    night.providers["gemini"].settings(turnaround_s=[2 * HOUR, 2 * HOUR])
    job, running = night.started("--deadline", "40h")
    night.providers["gemini"].script({"do": "status", "status": 503, "times": None, "lasts": 12 * HOUR})
    assert running.wait(WAIT) == 0
    costs, _ = night.check(job)
    assert costs == {name: night.bill(name) for name in NAMES}
    assert night.billed() == dict.fromkeys(NAMES, EACH)


@pytest.mark.soak  # `make test` has it within one process, in test_four_providers
def test_a_provider_that_dies_half_way_loses_its_rows_to_another_and_the_night_ends(night: Night) -> None:
    night.providers["gemini"].settings(turnaround_s=[5 * HOUR, 5 * HOUR])
    job, running = night.started("--deadline", "10h")
    night.providers.pop("gemini").stop()
    wait_until(lambda: night("status", job)["requests"]["succeeded"] == ROWS - EACH, WAIT)
    # The rows leave shortly before the deadline: then, a second of this machine must not be a quarter of an hour.
    deadline = datetime.fromisoformat(night("status", job)["deadline_at"])
    night.providers["openai"].clock.set(deadline - timedelta(minutes=25), speed=20.0)
    assert running.wait(WAIT) == 0
    costs, rows = night.check(job)
    assert {row["provenance"]["backend"] for row in rows if row["task"] == "gemini"} == {"flex"}
    assert costs["flex"] == night.bill("openai", "default")
    assert {name: costs[name] for name in night.providers} == {name: night.bill(name) for name in night.providers}
    assert night.billed() == {"openai": 2 * EACH, "claude": EACH, "bedrock": EACH}
