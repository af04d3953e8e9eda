"""What the hours of a fleet leave undone goes where the plan says."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.core.clock import now
from tests.support.fakevllm import fake_vllm, model_folder, starts
from tests.support.hostedjob import HOUR, MODEL, Desk, all_are, plain, settings_of, write_toml
from tests.support.process import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="engines and their leash run on Linux")


def test_rows_that_are_left_go_elsewhere_where_their_deadline_asks_for_it(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    here = now().astimezone()
    gpu = {
        "kind": "engines",
        "location": "local",
        "cost_per_hour": 0,
        "hours": f"{here - timedelta(hours=1):%H:%M}-{here + timedelta(hours=2):%H:%M}",
        "rows_per_second": 5.0,
        "vllm_python": str(fake_vllm(tmp_path, "--latency-ms", "600000")),
        "models": {MODEL: {"model": str(model_folder(tmp_path / "weights"))}},
    }
    write_toml(tmp_path / "orch.toml", {"openai": settings_of(desk.provider, "openai"), "gpu": gpu})
    desk.start_anew()
    job = desk.submit(plain(6), deadline="8h")
    desk.settle(job)
    assert [shard.backend for shard in desk.store.shards.of_job(job.id)] == ["gpu"]
    wait_until(lambda: len(starts(tmp_path)) == 1)
    # They hang until the hours end; the next ones are too late for them.
    desk.later(2 * HOUR + 60, job)
    wait_until(lambda: not Path(f"/proc/{starts(tmp_path)[0]['pid']}").exists())
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 6)
    assert [shard.backend for shard in desk.store.shards.of_job(job.id)] == ["gpu", "openai"]
    assert sum(desk.billed().values()) == 6
    assert len(starts(tmp_path)) == 1
