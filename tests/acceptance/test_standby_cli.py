"""`orch serve --replica`: the active server is killed and its disk is lost, or it is paused and wakes up too late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.support.batchapi import create, ended, retrieve, row, sdk_at
from tests.support.cli import Orch
from tests.support.process import PATIENCE, wait_until
from tests.support.serving import serve
from tests.support.standby import Pair

SLOTS, LATENCY_MS = 8, 60
AGAIN = 208
"""All that were asked before the kill: what comes in two seconds is more than a small batch has by then."""


@pytest.fixture(autouse=True)
def no_settings(orch_home: Path) -> None:
    """`orch serve` needs no orch.toml; an empty one keeps a developer's own out of the tests."""
    (orch_home / "orch.toml").touch()


@pytest.mark.long
def test_a_standby_ends_the_batch_of_a_machine_that_is_gone(
    run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    pair = Pair(
        run_orch, make_upstream(slots=SLOTS, latency_ms=LATENCY_MS), tmp_path, f"file://{tmp_path / 'replica'}"
    )
    pair.begin()
    pair.kill_active()
    seconds = pair.take_over()
    assert seconds < 30
    pair.finish()
    assert pair.sent_again() <= AGAIN


@pytest.mark.long
def test_a_paused_server_that_wakes_up_changes_nothing(
    run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    pair = Pair(
        run_orch, make_upstream(slots=SLOTS, latency_ms=LATENCY_MS), tmp_path, f"file://{tmp_path / 'replica'}"
    )
    pair.begin()
    pair.pause_active()
    pair.take_over()
    pair.finish()
    before = pair.state()
    pair.wake_paused()
    assert pair.state() == before
    pair.finish()


def test_who_ends_well_hands_over_at_once(run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path) -> None:
    pair = Pair(
        run_orch, make_upstream(slots=SLOTS, latency_ms=LATENCY_MS), tmp_path, f"file://{tmp_path / 'replica'}"
    )
    pair.begin()
    assert pair.stop_active() == 0
    pair.take_over()
    pair.finish()
    assert pair.sent_again() == 0
    assert "has not been heard from" not in run_orch.output(pair.standby)


@pytest.mark.long
def test_without_its_replica_a_server_waits_and_then_goes_on(
    run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    upstream, replica = make_upstream(slots=4, latency_ms=100), tmp_path / "replica"
    process, url = serve(run_orch, "--upstream", upstream.base_url, "--replica", str(replica))
    with sdk_at(url) as sdk:
        ids = [f"r{number}" for number in range(600)]
        batch = create(sdk, [row(custom_id, custom_id) for custom_id in ids])
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed)
        replica.rename(tmp_path / "away")
        replica.touch()
        wait_until(lambda: sdk.raw.get("/v1/batches", timeout=30).status_code == 503)
        refused = sdk.raw.post("/v1/batches", json={}).json()["error"]
        assert refused["code"] == "not_active"
        assert "another server may be active" in str(sdk.raw.get("/ready").json()["reasons"])
        told = sdk.raw.get("/health").json()
        assert told["status"] == "storage"
        assert "Not a directory" in told["replica"]["problem"]
        wait_until(lambda: not sdk.raw.get("/health").json()["upstreams"][0]["in_flight"])
        asked = len(upstream.requests())
        assert asked < len(ids)
        assert len(upstream.requests()) == asked
        # In one step: a server that finds neither would begin a replica anew.
        (tmp_path / "link").symlink_to(tmp_path / "away")
        (tmp_path / "link").replace(replica)
        ended(sdk, batch.id, 60).check(ids)
    assert set(upstream.counts().values()) == {1}
    assert process.poll() is None


def test_a_standby_that_is_stopped_ends(run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path) -> None:
    pair = Pair(run_orch, make_upstream(), tmp_path, f"file://{tmp_path / 'replica'}")
    pair.start()
    pair.standby.terminate()
    assert pair.standby.wait(PATIENCE) == 0
    pair.active.terminate()
    assert pair.active.wait(PATIENCE) == 0
