"""Random histories of a home with real kills, on both databases: nothing is paid twice, the ledger is the bill."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.emulator.client import Emulator
from tests.support.databases import database
from tests.support.histories import SPEED, History
from tests.support.postgres import PostgresServer


def lived(seed: int, acts: int, postgres: PostgresServer, folder: Path) -> None:
    kind = ("sqlite", "postgres")[seed % 2]
    with database(kind, folder, postgres) as url, Emulator(folder / "provider", seed=seed, speed=SPEED) as provider:
        history = History(folder, provider, url, random.Random(f"history {seed}"))
        history.live(acts)
        history.end()


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_history_pays_nothing_twice(seed: int, postgres: PostgresServer, tmp_path: Path) -> None:
    lived(seed, 8, postgres, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_long_histories_pay_nothing_twice(seed: int, postgres: PostgresServer, tmp_path: Path) -> None:
    lived(seed, 20, postgres, tmp_path)
