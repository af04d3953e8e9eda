"""Thousands of kills (`make soak`): ORCH_SOAK_KILLS on each database.

The figures go to docs/explanation/reliability.md.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.support.cli import Orch, write_config
from tests.support.killing import LATENCY_MS, MAX_CONCURRENCY, KillRun
from tests.support.postgres import PostgresServer

KILLS = int(os.environ.get("ORCH_SOAK_KILLS", "400"))
ROWS = 6000


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_thousands_of_kills_lose_and_double_nothing(
    kind: str, postgres: PostgresServer, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    dice = random.Random(20261121)
    kills = again = jobs = rows = 0
    stages: Counter[str] = Counter()
    while kills < KILLS:
        jobs += 1
        folder = tmp_path / f"job-{jobs}"
        home = folder / "home"
        home.mkdir(parents=True)
        upstream = make_upstream(slots=MAX_CONCURRENCY, latency_ms=LATENCY_MS)
        write_config(home, [upstream.base_url], max_concurrency=MAX_CONCURRENCY)
        with postgres.database() as url:
            env = {} if kind == "sqlite" else {"ORCH_DATABASE_URL": url}
            orch = Orch(home)
            report = KillRun(orch, upstream, folder, ROWS, env).until_done(40, 2.5, dice)
            orch.close()
        upstream.stop()
        if report.broken:
            sys.stderr.write(f"{kind}: job {jobs}: {report.broken}\n")
        assert report.broken == []
        kills += report.kills
        again += report.sent_again
        rows += ROWS
        stages += report.stages
        sys.stderr.write(f"{kind}: {jobs} jobs, {kills} kills {dict(stages)}, {again} of {rows:,} rows sent again\n")
