"""The process that speaks to Ray, where Ray does not come back: a `ray` of the tests' own that waits for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.ray.process import CHILD

NAMES = {
    "ray": "import threading\ndef init(**terms): threading.Event().wait()\n",
    "ray/exceptions": "GetTimeoutError = RayActorError = RayError = Exception\n",
    "ray/util": "",
    "ray/util/placement_group": "placement_group = remove_placement_group = None\n",
    "ray/util/scheduling_strategies": "PlacementGroupSchedulingStrategy = None\n",
}


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_told_in_time(tmp_path: Path) -> None:
    """Ray waits for a dead cluster for minutes."""
    for name, text in NAMES.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text(text)
    done = subprocess.run(
        [sys.executable, CHILD, "status", "10.0.0.1:6379"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, timeout=40, check=False,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    told = json.loads(done.stdout)
    assert told["event"] == "unreachable"
    assert told["problem"] == "the Ray cluster at 10.0.0.1:6379 has not answered for 8 s"
