"""A hosted job whose Postgres fails over to its standby, with commits that wait for the standby and that do not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.cli import CONFIG, Orch, Process
from tests.support.failover import replicated
from tests.support.hostedjob import KEY, cost_of, plain, settings_of, write_toml
from tests.support.process import wait_until

pytestmark = pytest.mark.soak
ROWS = 12


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_synchronous", [True, False], ids=["synchronous", "asynchronous"])
def test_a_database_that_fails_over_pays_nothing_twice(
    run_orch: Orch, tmp_path: Path, seed: int, *, is_synchronous: bool
) -> None:
    dice = random.Random(seed)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(plain(ROWS)))
    with replicated(is_synchronous=is_synchronous) as pair, Emulator(tmp_path / "provider", speed=900.0) as provider:
        provider.settings(turnaround_s=[3600, 7200], latency_ms=5)
        limits = {"max_rows": 2}
        write_toml(
            run_orch.home / CONFIG, {"openai": settings_of(provider, "openai", poll_seconds=0.2, limits=limits)}
        )
        env = {**provider.environment, "OPENAI_KEY": KEY, "ORCH_DATABASE_URL": pair.url}

        def calls() -> int:
            return sum(one["count"] for one in provider.state()["requests"])

        process = run_orch.start("run", str(path), "-q", env=env)
        reach(calls, dice.randint(1, 40), process)
        if not is_synchronous:
            pair.part()
            reach(calls, calls() + dice.randint(0, 12), process)
        pair.fail_over()
        wait_until(lambda: process.poll() is not None, 120.0)
        assert process.poll() in (0, 4), run_orch.output(process)
        assert "Traceback" not in run_orch.output(process)
        ended = run_orch("run", str(path), "-q", "--json", env=env)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["requests"]["succeeded"] == ROWS
        assert sorted(provider.bill(rows=True)["rows"].values()) == [1] * ROWS
        with Store.open(pair.url) as store:
            assert sum(store.ledger.spent(job.id) for job in store.jobs.newest()) == cost_of(provider.bill())


def reach(calls: Callable[[], int], least: int, process: Process) -> None:
    """Wait for so many calls to the provider, or the end of the process."""
    wait_until(lambda: calls() >= least or process.poll() is not None, 120.0)
