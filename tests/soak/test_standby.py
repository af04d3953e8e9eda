"""The active server of a replica killed with its folder, and paused, at random moments (`make soak`).

ORCH_SOAK_STANDBY says how often each; the figures go to docs/explanation/reliability.md.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.support.cli import Orch
from tests.support.s3 import empty_bucket, s3_environment, s3_server
from tests.support.standby import Pair

REPETITIONS = int(os.environ.get("ORCH_SOAK_STANDBY", "20"))
ROWS, SLOTS, LATENCY_MS = 3000, 16, 40
PER_SECOND = SLOTS * 1000 // LATENCY_MS
AGAIN = SLOTS * 4 + 4 * PER_SECOND
"""Rows in flight, and the answers since the replica was written last: two seconds, and what writing takes."""


@contextmanager
def place(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if kind == "folder":
        yield f"file://{folder / 'replica'}"
        return
    with s3_server() as server:
        for name, value in s3_environment(server).items():
            monkeypatch.setenv(name, value)
        with empty_bucket():
            yield "s3://bucket/replica"


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
        with place("bucket" if repetition % 4 == 3 else "folder", folder, monkeypatch) as replica:
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
