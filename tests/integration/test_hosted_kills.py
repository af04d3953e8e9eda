"""SIGKILL while a provider has the rows, over and over, then to the end: nothing lost, nothing paid twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.client import Emulator
from tests.support.cli import Orch
from tests.support.hosted_kills import (
    SPEED,
    KillRun,
    hosted_schedule,
    schedule_at,
    sync_schedule,
)
from tests.support.schedules import OTHERS

KILLS = 5
FIRST, *LATER = OTHERS


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "provider", speed=SPEED) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgres", pytest.param("sqlite", marks=pytest.mark.soak)], indirect=True)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_killed_while_a_batch_api_has_the_rows(
    seed: int, database_url: str, run_orch: Orch, provider: Emulator, tmp_path: Path
) -> None:
    run = KillRun(run_orch, provider, hosted_schedule(seed, 60), tmp_path, database_url)

    report = run.until_done(KILLS, 12, random.Random(seed))

    assert report.broken == []
    assert report.kills >= 2


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize("other", [FIRST, *(pytest.param(one, marks=pytest.mark.long) for one in LATER)])
def test_killed_while_another_protocol_has_the_rows(
    other: str,
    seed: int,
    database_url: str,
    run_orch: Orch,
    provider: Emulator,
    tmp_path: Path,
) -> None:
    run = KillRun(run_orch, provider, schedule_at(other)(seed, 60), tmp_path, database_url)

    report = run.until_done(KILLS, 12, random.Random(seed))

    assert report.broken == []
    assert report.kills >= 2


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.soak)], indirect=True)
def test_killed_while_a_synchronous_api_has_the_rows(
    database_url: str, run_orch: Orch, provider: Emulator, tmp_path: Path
) -> None:
    run = KillRun(run_orch, provider, sync_schedule(1, 600), tmp_path, database_url)

    report = run.until_done(KILLS, 120, random.Random(1))

    assert report.broken == []
    assert report.kills >= 2
    assert report.doubled > 0, "no kill struck a row in flight"
