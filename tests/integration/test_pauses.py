"""A process that stands still for longer than a request may take: what was answered meanwhile is read first."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.conftest import MakeUpstream
from tests.support.cli import Orch, write_config
from tests.support.killing import write_batch_file

ROWS = 60
TIMEOUT = 3.0
"""Seconds that a request may take."""


def test_answers_that_came_during_a_pause_are_not_asked_for_again(
    run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    upstream = make_upstream(latency_ms=1500)
    write_config(run_orch.home, [upstream.base_url], request_timeout=TIMEOUT)
    requests = tmp_path / "requests.jsonl"
    ids = write_batch_file(requests, ROWS)
    running = run_orch.start("run", str(requests), "-o", str(tmp_path / "out.jsonl"))
    upstream.wait_for_requests(1)
    os.kill(running.pid, signal.SIGSTOP)
    time.sleep(2 * TIMEOUT)  # the pause itself: all that was sent is answered, and late
    os.kill(running.pid, signal.SIGCONT)
    assert running.wait(timeout=120) == 0
    assert upstream.counts() == dict.fromkeys(ids, 1)
