"""Storms over the batch server for a long time (`make soak`): ORCH_SOAK_BLOWS kills and full disks in all."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter

import pytest

from tests.conftest import MakeUpstream
from tests.support.batchserver import BatchServer
from tests.support.crashing import KILLS, Storm

BLOWS = int(os.environ.get("ORCH_SOAK_BLOWS", "600"))
BLOWS_A_STORM = 40
BATCHES = 6
ROWS = 1500
SEED = 20261121


@pytest.mark.soak
@pytest.mark.parametrize("disk", [False, True], ids=["kills", "kills-and-a-full-disk"])
def test_storms_lose_and_double_nothing(
    disk: bool, tmp_path_factory: pytest.TempPathFactory, make_upstream: MakeUpstream
) -> None:
    blows: Counter[str] = Counter()
    rows = again = storms = 0
    while blows.total() < BLOWS:
        seed = SEED + storms
        dice = random.Random(seed)
        upstream = make_upstream(slots=16, latency_ms=dice.choice([2, 10, 30]))
        with BatchServer(tmp_path_factory.mktemp("storm"), upstream.base_url) as server:
            storm = Storm(server, upstream, dice)
            for _ in range(BATCHES):
                storm.begin(ROWS)
            while storm.report.blows.total() < BLOWS_A_STORM:
                if not storm.blow((*KILLS, "disk", "disk") if disk else KILLS):
                    storm.begin(ROWS)
                if dice.random() < 0.05:
                    storm.cancel_one()
            report = storm.finish()
        upstream.stop()
        assert report.broken == [], f"seed {seed}: {report}"
        blows += report.blows
        rows, again, storms = rows + report.rows, again + report.sent_again, storms + 1
        sys.stderr.write(f"seed {seed}: {dict(blows)} in {storms} storms, {again:,} of {rows:,} rows sent again\n")
