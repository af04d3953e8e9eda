"""Hosted jobs under thousands of schedules (`make soak`); the figures go to docs/explanation/reliability.md.

ORCH_SOAK_SCHEDULES sets how many schedules are drawn, ORCH_SOAK_HOSTED_KILLS how many SIGKILLs each route gets on
each database, ORCH_SOAK_SEED where the seeds begin.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.support.cli import Orch
from tests.support.databases import database
from tests.support.hosted_crashes import Providers, Report, providers, run
from tests.support.hosted_kills import (
    SPEED,
    KillRun,
    hosted_schedule,
    mistral_schedule,
    odd_hosted_schedule,
    sync_schedule,
    xai_schedule,
)
from tests.support.postgres import PostgresServer
from tests.support.schedules import (
    FIREWORKS,
    MISTRALS,
    TOGETHERS,
    VOCABULARY,
    XAIS,
    Kills,
    Orders,
    Schedule,
    drawn,
    odd,
    plain,
)

SCHEDULES = int(os.environ.get("ORCH_SOAK_SCHEDULES", "800"))
KILLS = int(os.environ.get("ORCH_SOAK_HOSTED_KILLS", "100"))
FIRST_SEED = int(os.environ.get("ORCH_SOAK_SEED", "1000000"))
KILLS_A_JOB = 12
DRAWN = {
    "batch": hosted_schedule,
    "odd batch": odd_hosted_schedule,
    "mistral": mistral_schedule,
    "xai": xai_schedule,
    "flex": sync_schedule,
}
ON_POSTGRES = 10
"""One schedule in so many."""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Providers]:
    with providers(tmp_path_factory.mktemp("providers")) as running:
        yield running


class Sums:
    """What all runs came to, told now and then."""

    def __init__(self) -> None:
        self._done: Counter[str] = Counter()
        self._struck: Counter[str] = Counter()

    def add(self, report: Report) -> None:
        assert not report.broken, report.broken
        facts = ("rows", "kills", "points", "batches", "billed", "unexplained")
        self._done += Counter({name: getattr(report, name) for name in facts} | {"schedules": 1})
        self._struck += report.struck
        if self._done["schedules"] % 100 == 0:
            self.tell()

    def tell(self) -> None:
        sys.stderr.write(f"{dict(self._done)}; struck {dict(self._struck.most_common())}\n")


@pytest.mark.soak
def test_schedules(there: Providers, postgres: PostgresServer) -> None:
    storm(there, postgres, drawn)


@pytest.mark.soak
def test_schedules_of_odd_answers(there: Providers, postgres: PostgresServer) -> None:
    """Beside what `test_schedules` draws, what contradicts itself, comes late or has another shape."""
    assert len(VOCABULARY) >= 70
    storm(there, postgres, odd)


@pytest.mark.soak
@pytest.mark.parametrize("draw", [drawn, odd])
@pytest.mark.parametrize(
    "orders", [MISTRALS, XAIS, TOGETHERS, FIREWORKS], ids=["mistral", "xai", "together", "fireworks"]
)
def test_schedules_at_others(
    orders: Orders, draw: Callable[..., Schedule], there: Providers, postgres: PostgresServer
) -> None:
    storm(there, postgres, lambda seed: draw(seed, orders))


def storm(there: Providers, postgres: PostgresServer, draw: Callable[[int], Schedule]) -> None:
    """Schedules one after the other, most of them on SQLite."""
    sums = Sums()
    with postgres.database() as migrated:
        Store.open(migrated).close()
        template = str(make_url(migrated).database)
        for seed in range(FIRST_SEED, FIRST_SEED + SCHEDULES):
            if seed % ON_POSTGRES:
                sums.add(run(there, draw(seed)))
            else:
                with postgres.database(template) as url:
                    sums.add(run(there, draw(seed), url))
    sums.tell()


@pytest.mark.soak
@pytest.mark.parametrize(
    "order",
    [("cloud", "azure"), ("azure", "cloud"), ("claude", "cloud"), ("mistral", "cloud"), ("xai", "cloud")],
    ids="-".join,
)
def test_killed_once_at_every_point(there: Providers, order: tuple[str, ...]) -> None:
    sums = Sums()
    whole = run(there, plain(1, order, Kills()))
    for nth in range(1, whole.points + 1):
        sums.add(run(there, plain(1, order, Kills(most=1, nth=nth))))
    sums.tell()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize(
    ("route", "rows", "most_calls"),
    [("batch", 200, 25), ("odd batch", 200, 25), ("mistral", 200, 25), ("xai", 200, 25), ("flex", 2000, 500)],
)
def test_hundreds_of_kills(
    route: str, rows: int, most_calls: int, kind: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    sums: Counter[str] = Counter()
    stages: Counter[str] = Counter()
    while sums["kills"] < KILLS:
        seed = FIRST_SEED + sums["jobs"]
        folder = tmp_path / f"job-{seed}"
        home = folder / "home"
        home.mkdir(parents=True)
        schedule = DRAWN[route](seed, rows)
        orch = Orch(home)
        with (
            Emulator(folder / "provider", seed=seed, speed=SPEED) as provider,
            database(kind, folder, postgres) as url,
        ):
            killed = KillRun(orch, provider, schedule, folder, url)
            report = killed.until_done(KILLS_A_JOB, most_calls, random.Random(seed))
        orch.close()
        assert report.broken == [], f"seed {seed}: {report}"
        facts = ("kills", "rows", "batches", "billed", "unexplained", "doubled")
        sums += Counter({name: getattr(report, name) for name in facts} | {"jobs": 1})
        stages += report.stages
        sys.stderr.write(f"{route} on {kind}: {dict(sums)}, struck while {dict(stages)}\n")
