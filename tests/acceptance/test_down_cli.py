"""`orch down`: ends the daemon of a home, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.daemon.lock import daemon_lock, running_daemon
from orchestrator.settings.home import Home
from tests.support.cli import Orch, write_config
from tests.support.process import wait_until


def test_the_daemon_ends_and_then_there_is_none(run_orch: Orch, orch_home: Path) -> None:
    write_config(orch_home, ["http://127.0.0.1:9/v1"])
    daemon = run_orch.start("up")
    wait_until(lambda: "is up" in run_orch.output(daemon))

    done = run_orch("down")

    assert done.returncode == 0, done.stderr
    assert f"`orch up` (process {daemon.pid}) has stopped; nothing is lost" in done.stderr
    assert running_daemon(Home(orch_home)) is None
    assert daemon.wait(60) == 0
    assert "no daemon runs" in run_orch("down").stderr
    assert json.loads(run_orch("down", "--json").stdout) == {"stopped": None}


def test_a_command_that_works_in_the_home_is_left_alone(run_orch: Orch, orch_home: Path) -> None:
    write_config(orch_home, ["http://127.0.0.1:9/v1"])
    with daemon_lock(Home(orch_home), "orch run job.yaml") as holder:
        assert holder is None
        done = run_orch("down")
    assert done.returncode == 2
    assert "`orch run job.yaml` (process" in done.stderr
    assert "kill -INT" in done.stderr
