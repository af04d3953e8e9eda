"""Two weeks of nights (`make soak`; two of them in `make test`): whatever comes, tables and books are right."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from pathlib import Path

import pytest

from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.cli import CONFIG, Orch
from tests.support.fortnight import JOB, SPEED, ZONE, Fate, Fortnight, Letters
from tests.support.hostedjob import KEY, USUAL, plain, settings_of, write_toml
from tests.support.process import upstreams

TWO = (Fate.PLAIN, Fate.STALL)
FOURTEEN = (
    *(Fate.PLAIN, Fate.PLAIN, Fate.OUTAGE, Fate.PLAIN, Fate.STALL, Fate.PLAIN, Fate.MISSED),
    # Here clocks in Berlin are set back.
    *(Fate.PLAIN, Fate.PLAIN, Fate.STALL, Fate.PLAIN, Fate.MISSED, Fate.OUTAGE, Fate.PLAIN),
)
CLOCKS_CHANGE = date(2026, 10, 24)


@pytest.fixture
def fortnight(run_orch: Orch, tmp_path: Path, database_url: str) -> Iterator[Fortnight]:
    dice = random.Random(20261024)
    with Emulator(tmp_path / "provider", speed=SPEED) as provider, upstreams(tmp_path) as start:
        provider.settings(**USUAL)
        gpu = start(log_bodies=True)
        told = {
            "openai": settings_of(provider, "openai", poll_seconds=1),
            "gpu": {"kind": "local", "upstreams": [gpu.base_url], "location": "local", "cost_per_hour": 200.0},
        }
        write_toml(run_orch.home / CONFIG, told)
        env = {**provider.environment, "OPENAI_KEY": KEY, "ORCH_DATABASE_URL": database_url}
        with Store.open(database_url) as store:
            yield Fortnight(run_orch, store, provider, gpu, env, Letters(tmp_path / "documents", dice), dice)


@pytest.mark.parametrize("database_url", ["postgres", pytest.param("sqlite", marks=pytest.mark.soak)], indirect=True)
@pytest.mark.parametrize(
    "fates",
    [
        pytest.param(TWO, id="two", marks=pytest.mark.soak),
        pytest.param(FOURTEEN, id="fourteen", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_nights_of_all_kinds_leave_right_tables_and_right_books(
    fortnight: Fortnight, fates: tuple[Fate, ...], tmp_path: Path
) -> None:
    first = CLOCKS_CHANGE - timedelta(days=len(fates) // 2 if len(fates) > len(TWO) else 0)
    fortnight.provider.clock.set(datetime.combine(first, time(12), ZONE), speed=SPEED)
    # What the engine does in an hour of this clock is learned by day.
    learned = tmp_path / "by-day.jsonl"
    learned.write_bytes(jsonl(plain(20)))
    fortnight.ask("run", str(learned), "--backend", "gpu", "--quiet")
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    when = ("--cron", "0 22 * * *", "--tz", str(ZONE), "--deadline", "06:00")
    fortnight.ask("schedule", "add", str(tmp_path / "job.yaml"), *when)
    fortnight.start()
    for number, fate in enumerate(fates):
        fortnight.live(first + timedelta(days=number), fate)
    fortnight.stop()
