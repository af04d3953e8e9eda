"""Several batches under random kills of server and upstream, the disk full in between: each row ends once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.support.batchserver import BatchServer
from tests.support.crashing import KILLS, Storm

BATCHES = 5
ROWS = 240
BLOWS = 7


@pytest.mark.thinned(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "kinds"),
    [(1, KILLS), (2, (*KILLS, "disk", "disk", "disk"))],
    ids=["kills", "kills-and-a-full-disk"],
)
def test_a_storm(tmp_path: Path, make_upstream: MakeUpstream, seed: int, kinds: tuple[str, ...]) -> None:
    upstream = make_upstream(slots=8, latency_ms=40)
    with BatchServer(tmp_path / "s", upstream.base_url) as server:
        storm = Storm(server, upstream, random.Random(seed))
        for _ in range(BATCHES - 1):
            storm.begin(ROWS)
        while (blows := storm.report.blows.total()) < BLOWS:
            if blows == 4 and not storm.has_cancelled:
                storm.cancel_one()  # once: what is begun for want of any other would be cancelled again and again
            # Some come while others run, and where all have come to their end there is nothing to strike.
            if not storm.blow(kinds) or blows == 1:
                storm.begin(ROWS)
        report = storm.finish()
    told = f"seed {seed}: {report}"
    assert report.broken == [], told
    assert report.rows >= BATCHES * ROWS, told
    assert report.durable_at_blows > 100, f"every blow came before the first results; {told}"
    assert report.sent_again > 0, f"no blow struck a row in flight; {told}"
