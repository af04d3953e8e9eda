"""SIGKILL at random moments, over and over, then to the end: nothing lost, nothing doubled, nothing to clean up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.support.cli import Orch, write_config
from tests.support.killing import LATENCY_MS, MAX_CONCURRENCY, KillRun

KILLS = 5
ROWS = 3000


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.soak)], indirect=True)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_killed_anywhere_every_row_has_one_outcome(
    seed: int, database_url: str, run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    upstream = make_upstream(slots=MAX_CONCURRENCY, latency_ms=LATENCY_MS)
    write_config(orch_home, [upstream.base_url], max_concurrency=MAX_CONCURRENCY)
    run = KillRun(run_orch, upstream, tmp_path, ROWS, {"ORCH_DATABASE_URL": database_url})

    report = run.until_done(KILLS, 2.5, random.Random(seed))

    assert report.broken == []
    assert report.kills >= 3
