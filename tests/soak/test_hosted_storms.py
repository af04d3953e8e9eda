"""Hosted jobs under thousands of schedules (`make soak`); the figures go to docs/explanation/reliability.md.

ORCH_SOAK_SCHEDULES sets how many schedules are drawn, ORCH_SOAK_HOSTED_KILLS how many SIGKILLs each route gets on
each database, ORCH_SOAK_SEED where the seeds begin. One schedule in ORCH_SOAK_ON_POSTGRES runs on Postgres.
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
    odd_hosted_schedule,
    schedule_at,
    sync_schedule,
)
from tests.support.postgres import PostgresServer
from tests.support.schedules import OTHERS, VOCABULARY, Kills, Schedule, drawn, odd, plain

SCHEDULES = int(os.environ.get("ORCH_SOAK_SCHEDULES", "800"))
KILLS = int(os.environ.get("ORCH_SOAK_HOSTED_KILLS", "100"))
ON_POSTGRES = int(os.environ.get("ORCH_SOAK_ON_POSTGRES", "10"))
FIRST_SEED = int(os.environ.get("ORCH_SOAK_SEED", "1000000"))
KILLS_A_JOB = 12
A_SHARE = 4
"""Each of `OTHERS` gets one kill and one schedule in so many."""
DRAWN = {"batch": hosted_schedule, "odd batch": odd_hosted_schedule, "flex": sync_schedule}


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
@pytest.mark.parametrize("other", OTHERS)
def test_schedules_at_others(
    other: str, draw: Callable[..., Schedule], there: Providers, postgres: PostgresServer
) -> None:
    storm(there, postgres, lambda seed: draw(seed, OTHERS[other]), SCHEDULES // A_SHARE)


def storm(
    there: Providers, postgres: PostgresServer, draw: Callable[[int], Schedule], schedules: int = SCHEDULES
) -> None:
    """Schedules one after the other, most of them on SQLite."""
    sums = Sums()
    with postgres.database() as migrated:
        Store.open(migrated).close()
        template = str(make_url(migrated).database)
        for seed in range(FIRST_SEED, FIRST_SEED + schedules):
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
    killed_once(there, order, 1)


@pytest.mark.soak
@pytest.mark.parametrize("other", sorted(OTHERS.keys() - {"mistral", "xai"}))
def test_killed_once_at_points_of_others(there: Providers, other: str) -> None:
    """At every fourth; ORCH_SOAK_SEED says with which to begin."""
    killed_once(there, (other, "cloud"), A_SHARE)


def killed_once(there: Providers, order: tuple[str, ...], share: int) -> None:
    sums = Sums()
    whole = run(there, plain(1, order, Kills()))
    for nth in range(1 + FIRST_SEED % share, whole.points + 1, share):
        sums.add(run(there, plain(1, order, Kills(most=1, nth=nth))))
    sums.tell()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize(
    ("route", "rows", "most_calls"), [("batch", 200, 25), ("odd batch", 200, 25), ("flex", 2000, 500)]
)
def test_hundreds_of_kills(
    route: str, rows: int, most_calls: int, kind: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    kill(lambda seed: DRAWN[route](seed, rows), most_calls, KILLS, f"{route} on {kind}", (kind, tmp_path, postgres))


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("other", OTHERS)
def test_kills_at_others(other: str, kind: str, postgres: PostgresServer, tmp_path: Path) -> None:
    drawn_there = schedule_at(other)
    kill(lambda seed: drawn_there(seed, 200), 25, KILLS // A_SHARE, f"{other} on {kind}", (kind, tmp_path, postgres))


def kill(
    draw: Callable[[int], Schedule], most_calls: int, kills: int, name: str, where: tuple[str, Path, PostgresServer]
) -> None:
    """Jobs one after the other, until so many kills have struck."""
    kind, tmp_path, postgres = where
    sums: Counter[str] = Counter()
    stages: Counter[str] = Counter()
    while sums["kills"] < kills:
        seed = FIRST_SEED + sums["jobs"]
        folder = tmp_path / f"job-{seed}"
        home = folder / "home"
        home.mkdir(parents=True)
        schedule = draw(seed)
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
        sys.stderr.write(f"{name}: {dict(sums)}, struck while {dict(stages)}\n")
