"""The active daemon of a home killed with its home, and paused, at random moments (`make soak`).

ORCH_SOAK_STANDBY says how often each; the figures go to docs/explanation/reliability.md.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.emulator.client import Emulator
from tests.support.cli import Orch, write_config
from tests.support.hosted_kills import SPEED
from tests.support.postgres import PostgresServer
from tests.support.s3 import replica_place
from tests.support.standby_home import HomePair, letters
from tests.support.standby_hosted import HostedPair

REPETITIONS = int(os.environ.get("ORCH_SOAK_STANDBY", "20"))
SEED = int(os.environ.get("ORCH_SOAK_SEED", "20261125"))
ROWS, SLOTS, LATENCY_MS = 2000, 16, 60
PER_SECOND = SLOTS * 1000 // LATENCY_MS
AGAIN = SLOTS * 4 + 5 * PER_SECOND
"""Rows in flight, and the answers since the replica was written last: two seconds, and what writing takes."""


def harm(pair: HomePair, what: str) -> float:
    if what == "kill":
        pair.kill_active()
    else:
        pair.pause_active()
    return pair.take_over()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("what", ["kill", "pause"])
def test_local_rows_end_at_the_standby(
    what: str, make_upstream: MakeUpstream, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(SEED)
    seconds, again = [], []
    for repetition in range(REPETITIONS):
        folder = tmp_path / str(repetition)
        (folder / "home").mkdir(parents=True)
        orch, upstream = Orch(folder / "home"), make_upstream(slots=SLOTS, latency_ms=LATENCY_MS)
        write_config(orch.home, [upstream.base_url])
        with (
            replica_place("bucket" if repetition % 4 == 3 else "folder", folder, monkeypatch) as replica,
            postgres.database() as url,
        ):
            pair = HomePair(orch, folder, replica, {"ORCH_DATABASE_URL": url} if repetition % 2 else {})
            pair.start()
            job = pair.submit(letters(folder, ROWS))
            upstream.wait_for_requests(dice.randrange(1, ROWS - 100))
            seconds.append(harm(pair, what))
            wakes_early = what == "pause" and dice.random() < 0.5
            if wakes_early:
                pair.wake_paused()
            pair.check(job, ROWS)
            before = len(upstream.requests()), pair.generation()
            if what == "pause" and not wakes_early:
                pair.wake_paused()
            assert (len(upstream.requests()), pair.generation()) == before
            again.append(sum(upstream.counts().values()) - ROWS)
            orch.close()
        upstream.stop()
        sys.stderr.write(f"{what} {repetition}: {seconds[-1]:.1f} s, {again[-1]} rows again\n")
        assert seconds[-1] < 30
        assert again[-1] <= AGAIN
    sys.stderr.write(f"{what}: {min(seconds):.1f} to {max(seconds):.1f} s; {min(again)} to {max(again)} rows again\n")


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("what", ["kill", "pause"])
def test_hosted_rows_are_paid_once(
    what: str, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(SEED)
    seconds = []
    for repetition in range(REPETITIONS):
        folder, seed, calls = tmp_path / str(repetition), dice.randrange(10_000), dice.randrange(1, 60)
        (folder / "home").mkdir(parents=True)
        orch = Orch(folder / "home")
        with (
            Emulator(folder / "provider", speed=SPEED) as provider,
            replica_place("bucket" if repetition % 4 == 3 else "folder", folder, monkeypatch) as replica,
            postgres.database() as url,
        ):
            environment = {"ORCH_DATABASE_URL": url} if repetition % 2 else {}
            pair = HostedPair(orch, provider, folder, replica, environment, seed)
            pair.begin(calls)
            seconds.append(harm(pair, what))
            wakes_early = what == "pause" and dice.random() < 0.5
            if wakes_early:
                pair.wake_paused()
            broken = pair.mistakes()
            if what == "pause" and not wakes_early:
                pair.wake_paused()
                broken += pair.mistakes()
            orch.close()
        sys.stderr.write(f"{what} {repetition} (seed {seed}, {calls} calls): {seconds[-1]:.1f} s, {broken}\n")
        assert not broken
        assert seconds[-1] < 30
    sys.stderr.write(f"{what}: {min(seconds):.1f} to {max(seconds):.1f} s\n")
