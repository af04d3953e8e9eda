"""The active server of a replica killed with its folder, and paused, at random moments (`make soak`).

ORCH_SOAK_STANDBY says how often each; the figures go to docs/explanation/reliability.md.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.support.batchapi import create, ended, row, sdk_at
from tests.support.cli import Orch
from tests.support.process import wait_until
from tests.support.s3 import replica_place
from tests.support.several import Several
from tests.support.standby import Pair

REPETITIONS = int(os.environ.get("ORCH_SOAK_STANDBY", "20"))
STORMS = max(1, REPETITIONS // 10)
STORM_ROWS, STORM_SECONDS, PATIENCE = 4000, 75.0, 60.0
ROWS, SLOTS, LATENCY_MS = 3000, 16, 40
PER_SECOND = SLOTS * 1000 // LATENCY_MS
AGAIN = SLOTS * 4 + 4 * PER_SECOND
"""Rows in flight, and the answers since the replica was written last: two seconds, and what writing takes."""


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_the_standby_ends_every_batch(
    harm: str, make_upstream: MakeUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(20261124)
    seconds, again = [], []
    for repetition in range(REPETITIONS):
        folder = tmp_path / str(repetition)
        (folder / "home").mkdir(parents=True)
        (folder / "home" / "orch.toml").touch()
        orch, upstream = Orch(folder / "home"), make_upstream(slots=SLOTS, latency_ms=LATENCY_MS)
        with replica_place("bucket" if repetition % 4 == 3 else "folder", folder, monkeypatch) as replica:
            pair = Pair(orch, upstream, folder, replica, ROWS)
            pair.begin(dice.randrange(1, ROWS - 50))
            if harm == "kill":
                pair.kill_active()
            else:
                pair.pause_active()
            seconds.append(pair.take_over())
            wakes_early = dice.random() < 0.5
            if harm == "pause" and wakes_early:
                pair.wake_paused()
            pair.finish()
            before = pair.state()
            if harm == "pause" and not wakes_early:
                pair.wake_paused()
            assert pair.state() == before
            pair.finish()
            again.append(pair.sent_again())
            orch.close()
        upstream.stop()
        sys.stderr.write(f"{harm} {repetition}: {seconds[-1]:.1f} s, {again[-1]} rows again\n")
        assert seconds[-1] < 30
        assert again[-1] <= AGAIN
    sys.stderr.write(f"{harm}: {min(seconds):.1f} to {max(seconds):.1f} s; {min(again)} to {max(again)} rows again\n")


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_batch_outlives_any_order_of_harm(
    kind: str, make_upstream: MakeUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three servers, of which one or another is killed, paused, stopped or loses its folder, all the time."""
    for seed in range(STORMS):
        dice, folder = random.Random(seed), tmp_path / str(seed)
        (folder / "home").mkdir(parents=True)
        (folder / "home" / "orch.toml").touch()
        orch, upstream = Orch(folder / "home"), make_upstream(slots=8, latency_ms=150)
        ids = [f"r{number}" for number in range(STORM_ROWS)]
        with replica_place(kind, folder, monkeypatch) as replica:
            several = Several(orch, upstream, folder, replica, dice)
            with sdk_at(wait_until(several.active, PATIENCE)) as sdk:
                batch = create(sdk, [row(custom_id, custom_id) for custom_id in ids]).id
            until = time.monotonic() + STORM_SECONDS
            while time.monotonic() < until:
                time.sleep(dice.uniform(1, 7))
                several.harm()
            several.heal()
            with sdk_at(wait_until(several.active, PATIENCE)) as sdk:
                ended(sdk, batch, 300).check(ids)
            orch.close()
        again = sum(upstream.counts().values()) - len(ids)
        upstream.stop()
        sys.stderr.write(f"{kind} {seed}: {dict(several.harms)}, {again} rows again\n")
