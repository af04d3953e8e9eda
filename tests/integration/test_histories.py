"""Random histories of a home with real kills, on both databases: nothing is paid twice, the ledger is the bill.

ORCH_SOAK_SEED and ORCH_SOAK_HISTORIES set the first seed and the number of the long ones, ORCH_SOAK_ACTS their acts.
"""

from __future__ import annotations

import os
import random
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.emulator.client import Emulator
from tests.support.databases import database
from tests.support.faulty_disk import compiled
from tests.support.histories import SPEED, History
from tests.support.pooler import is_there, pooled
from tests.support.postgres import PostgresServer

FIRST_SEED = int(os.environ.get("ORCH_SOAK_SEED", "1000"))
HISTORIES = int(os.environ.get("ORCH_SOAK_HISTORIES", "200"))
ACTS_EACH = int(os.environ.get("ORCH_SOAK_ACTS", "20"))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    return compiled(tmp_path_factory.mktemp("disk")) if shutil.which("cc") else None


def lived(seed: int, acts: int, postgres: PostgresServer, disk: Path | None, folder: Path) -> None:
    kind = ("sqlite", "postgres")[seed % 2]
    with ExitStack() as stack:
        url = stack.enter_context(database(kind, folder, postgres))
        provider = stack.enter_context(Emulator(folder / "provider", seed=seed, speed=SPEED))
        pooler = None
        if kind == "postgres" and is_there():
            pooler = stack.enter_context(pooled(url, ("session", "transaction")[seed // 2 % 2]))
        history = History(folder, provider, url, random.Random(f"history {seed}"), disk, pooler)
        history.live(acts)
        history.end()


@pytest.mark.thinned(7)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_history_pays_nothing_twice(seed: int, postgres: PostgresServer, disk: Path | None, tmp_path: Path) -> None:
    lived(seed, 8, postgres, disk, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + HISTORIES))
def test_long_histories_pay_nothing_twice(
    seed: int, postgres: PostgresServer, disk: Path | None, tmp_path: Path
) -> None:
    lived(seed, ACTS_EACH, postgres, disk, tmp_path)
