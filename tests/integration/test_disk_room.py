"""Results of a hosted batch wait at its provider where the disk has no room for them."""

from __future__ import annotations

import pytest

from orchestrator.core.errors import StorageError
from tests.support.hostedjob import HOUR, Desk, all_are, plain

FULL = '[retention]\nmin_free = "900TB"\n'


def test_results_wait_at_the_provider_until_there_is_room(desk: Desk) -> None:
    job = desk.submit(plain(3))
    desk.backends({"openai": {}}, FULL)
    desk.settle(job)
    desk.later(HOUR, job)
    desk.later(HOUR, job)
    [held] = desk.held(job)
    assert held.startswith("waits for room for its results: the disk of ")
    with pytest.raises(StorageError, match="900"):
        desk.submit(plain(2))
    desk.backends({"openai": {}})
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
