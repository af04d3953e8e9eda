"""Random histories of a home with real kills, on both databases: nothing is paid twice, the ledger is the bill.

ORCH_SOAK_SEED and ORCH_SOAK_HISTORIES set the first seed and the number of the long ones.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.emulator.client import Emulator
from tests.support.databases import database
from tests.support.histories import SPEED, History
from tests.support.postgres import PostgresServer

FIRST_SEED = int(os.environ.get("ORCH_SOAK_SEED", "1000"))
HISTORIES = int(os.environ.get("ORCH_SOAK_HISTORIES", "200"))


def lived(seed: int, acts: int, postgres: PostgresServer, folder: Path) -> None:
    kind = ("sqlite", "postgres")[seed % 2]
    with database(kind, folder, postgres) as url, Emulator(folder / "provider", seed=seed, speed=SPEED) as provider:
        history = History(folder, provider, url, random.Random(f"history {seed}"))
        history.live(acts)
        history.end()


@pytest.mark.thinned(7)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_history_pays_nothing_twice(seed: int, postgres: PostgresServer, tmp_path: Path) -> None:
    lived(seed, 8, postgres, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + HISTORIES))
def test_long_histories_pay_nothing_twice(seed: int, postgres: PostgresServer, tmp_path: Path) -> None:
    lived(seed, 20, postgres, tmp_path)
