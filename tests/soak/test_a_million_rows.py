"""A million rows from file to file: one outcome each, in order, in bounded memory. ORCH_SOAK_ROWS sets how many."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.support.cli import Orch, write_config

ROWS = int(os.environ.get("ORCH_SOAK_ROWS", "1000000"))
MEGABYTES = 300


@pytest.mark.soak
def test_a_million_rows_in_bounded_memory(
    run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    upstream = make_upstream(slots=256, latency_ms=1)
    write_config(orch_home, [upstream.base_url])
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with source.open("w", encoding="utf-8") as file:
        for number in range(ROWS):
            body = {"model": "m", "user": f"r{number}", "messages": [{"role": "user", "content": f"say {number}"}]}
            line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")

    started = time.monotonic()
    process = run_orch.start("run", str(source), "-o", str(out), "-q", fresh=True)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)

    peak = usage.ru_maxrss / 1024
    cpu = (usage.ru_utime + usage.ru_stime) / ROWS * 1e6
    sys.stderr.write(
        f"{ROWS:,} rows: {time.monotonic() - started:.0f} s, {cpu:.0f} us CPU a row, {peak:.0f} MB peak\n"
    )
    assert process.returncode == 0, run_orch.output(process)
    with out.open("rb") as file:
        for number, line in enumerate(file):
            assert json.loads(line)["custom_id"] == f"r{number}"
    assert number == ROWS - 1
    assert len(upstream.requests()) == ROWS
    assert peak < MEGABYTES
