"""Nights that go wrong elsewhere, on real processes: one provider, batch or job costs no other its deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.client import Emulator
from tests.support.cli import Orch
from tests.support.hostedjob import HOUR, USUAL, settings_of
from tests.support.process import upstreams, wait_until
from tests.support.realnights import WAIT, RealNight, in_time, moment, rescue_at

ROWS = 20
SLOW = 60.0
"""A minute a second: what the machine itself takes is minutes where the margin is half an hour."""
HANGS = 600.0
"""Seconds for which a call may hang: longer than any test lasts."""
Make = Callable[..., RealNight]


@pytest.fixture
def night(run_orch: Orch, tmp_path: Path) -> Iterator[Make]:
    """A provider whose batches do not end tonight, and an engine that costs more and does so many rows a second."""
    with Emulator(tmp_path / "provider", speed=SLOW) as provider, upstreams(tmp_path) as start:

        def make(*hosted: str, rate: float = 0.1, latency_ms: int = 10, **more: Any) -> RealNight:
            provider.settings(**{**USUAL, "turnaround_s": [25 * HOUR, 25 * HOUR]})
            gpu = start(latency_ms=latency_ms, slots=1)
            local = {"kind": "local", "upstreams": [gpu.base_url], "location": "local", "cost_per_hour": 20.0}
            found = RealNight(run_orch, provider, tmp_path, ROWS)
            told = {name: settings_of(provider, name, poll_seconds=1, **more) for name in hosted}
            found.backends({**told, "gpu": {**local, "rows_per_second": rate}})
            return found

        yield make


@pytest.mark.soak  # `make test` has it within one process, in test_silent_provider
def test_a_silent_provider_costs_a_job_at_another_one_no_deadline(night: Make) -> None:
    here = night("azure", "openai", request_timeout=HANGS)
    stuck = here.submit("stuck", "--backend", "openai")
    job = here.submit("tonight", "--deadline", "8h")
    here.until_sent(stuck, job)
    assert {shard["backend"] for shard in here.detail(job)["shards"]} == {"azure"}
    here.provider.script({"do": "hang_before", "match": {"flavour": "openai"}, "times": None})
    here.skip_to_rescue(job)
    running = here.up()
    wait_until(lambda: here.provider.state()["script"][0]["seen"], WAIT)
    found = here.until_over(job)
    assert in_time(found)
    assert found["requests"]["succeeded"] == ROWS
    assert {shard["backend"] for shard in found["shards"]} == {"azure", "gpu"}
    assert here.detail(stuck)["requests"]["pending"] == ROWS
    gave_up = [one for one in here.provider.state()["requests"] if one["status"] == 0]
    assert gave_up == [], "the call still hangs: nobody waited for it"
    running.terminate()
    assert running.wait(WAIT) == 0


@pytest.mark.soak  # `make test` has it within one process, in test_hosted_traps_evidence
def test_a_cancelled_batch_that_never_began_is_not_waited_for(night: Make) -> None:
    here = night("openai")
    here.provider.script({"do": "stuck_validating", "times": None})
    job = here.submit("tonight", "--deadline", "8h")
    here.until_sent(job)
    here.skip_to_rescue(job)
    here.up()
    found = here.until_over(job)
    assert in_time(found)
    assert found["requests"]["succeeded"] == ROWS
    # A cancel takes a minute there; the files of what has no row done are named by nobody.
    assert moment(found, "collected", "openai") - moment(found, "rerouted", "openai") < timedelta(minutes=12)
    assert here.provider.bill()["lines"] == []


def test_two_jobs_that_come_to_need_one_engine_are_both_in_time(night: Make) -> None:
    """The engine takes three minutes for the rows of one of them."""
    here = night("openai", rate=ROWS / 180, latency_ms=150)
    one = here.submit("one", "--deadline", "8h")
    two = here.submit("two", "--deadline", "8h")
    here.until_sent(one, two)
    first, second = (rescue_at(here.detail(job)) for job in (one, two))
    assert first is not None
    assert second is not None
    # The engine does the rows of the job that is due first before those of the other.
    assert first - second > timedelta(minutes=3)
    here.skip_to_rescue(one, two)
    here.up()
    for job in (one, two):
        found = here.until_over(job)
        assert in_time(found)
        assert found["requests"]["succeeded"] == ROWS
        assert {shard["backend"] for shard in found["shards"]} == {"openai", "gpu"}
