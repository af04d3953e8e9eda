"""Jobs on a disk that fails at random calls (`make soak`), local and hosted, on both databases.

ORCH_SOAK_DISKS says how many jobs there are of each of the four; the figures go to docs/explanation/reliability.md.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.emulator.client import Emulator
from tests.support import hosted_kills, killing
from tests.support.cli import Orch, write_config
from tests.support.databases import database
from tests.support.faulty_disk import FaultyDisk, compiled
from tests.support.postgres import PostgresServer

JOBS = int(os.environ.get("ORCH_SOAK_DISKS", "125"))
FIRST_SEED = int(os.environ.get("ORCH_SOAK_SEED", "20261126"))
LOCAL_ROWS, HOSTED_ROWS = 300, 40


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("disk"))


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("route", ["local", "hosted"])
def test_a_disk_that_fails_loses_and_doubles_nothing(
    route: str, kind: str, library: Path, postgres: PostgresServer, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    faults, codes, broken, left = Counter[str](), Counter[str](), dict[int, list[str]](), 0
    for seed in range(FIRST_SEED, FIRST_SEED + JOBS):
        folder = tmp_path / f"job-{seed}"
        home = folder / "home"
        home.mkdir(parents=True)
        orch, disk = Orch(home), FaultyDisk(library, home, random.Random(seed))
        with database(kind, home, postgres) as url:
            if route == "local":
                found = local(disk, orch, make_upstream, folder, url)
            else:
                found = hosted(disk, orch, folder, url, seed)
        orch.close()
        faults, codes = faults + disk.faults, codes + disk.codes
        # Files that could not be removed, or whose names could not be recorded, are no rows.
        left += sum("are left" in one for one in found)
        if said := [one for one in found if "are left" not in one] + disk.broken:
            broken[seed] = said
            sys.stderr.write(f"{route} on {kind}, seed {seed}: {broken[seed]}\n")
    told = f"{JOBS} jobs, {codes.total()} runs, exit codes {dict(codes)}, files left {left} times"
    sys.stderr.write(f"{route} on {kind}: {told}; {faults.total()} faults: {dict(faults)}\n")
    assert broken == {}
    assert faults.total() > JOBS


def local(disk: FaultyDisk, orch: Orch, make_upstream: MakeUpstream, folder: Path, url: str) -> list[str]:
    """Rows in flight as a run ends may be asked again; none whose answer was on the disk as it ended."""
    upstream = make_upstream(slots=killing.MAX_CONCURRENCY, latency_ms=5)
    write_config(disk.home, [upstream.base_url], max_concurrency=killing.MAX_CONCURRENCY)
    run = killing.KillRun(orch, upstream, folder, LOCAL_ROWS, {"ORCH_DATABASE_URL": url})
    report = run.until_done_on(disk)
    upstream.stop()
    return report.broken


def hosted(disk: FaultyDisk, orch: Orch, folder: Path, url: str, seed: int) -> list[str]:
    """No row may be billed twice, and the ledger is the bill."""
    schedule = hosted_kills.hosted_schedule(seed, HOSTED_ROWS)
    with Emulator(folder / "provider", seed=seed, speed=hosted_kills.SPEED) as provider:
        return hosted_kills.KillRun(orch, provider, schedule, folder, url).until_done_on(disk).broken
