"""`orch up` with a job whose rows cannot be delivered: it ends by name, and every command gets round it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.conftest import MakeUpstream
from tests.emulator.clock import ClockFile
from tests.support.cli import Orch, write_config
from tests.support.process import wait_until

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: t, model: m, prompt: Tell the gist., max_tokens: 20}
models: {m: m}
output: {path: rows.jsonl}
"""
WAIT = 60.0


def test_a_job_whose_rows_cannot_be_delivered(
    run_orch: Orch, orch_home: Path, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream()
    upstream.kill()  # no answer before the folder is in the way
    write_config(orch_home, [upstream.base_url], extra='[reports]\nfolder = "reports"\n')
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.txt").write_text("A letter.")
    (tmp_path / "job.yaml").write_text(JOB)

    clock = ClockFile(tmp_path / "clock.json", datetime(2026, 11, 21, 20, tzinfo=UTC))
    clock.set(clock.now(), speed=60.0)  # who watches looks once a minute
    env = {"ORCH_CLOCK": str(clock.path)}

    def status(job: str) -> Any:
        return json.loads(run_orch("status", job, "--json").stdout)

    daemon = run_orch.start("up", env=env)
    wait_until(lambda: "is up" in run_orch.output(daemon), WAIT)
    job = run_orch("submit", str(tmp_path / "job.yaml"), env=env).stdout.strip()
    wait_until(lambda: status(job)["shards"], WAIT)
    (tmp_path / "rows.jsonl").mkdir()
    upstream.start()
    wait_until(lambda: status(job)["state"] == "failed", WAIT)

    found = status(job)
    assert (found["error_code"], found["requests"]["succeeded"]) == ("output_not_a_file", 1)
    cancelled = run_orch("cancel", job, timeout=WAIT)
    assert (cancelled.returncode, "has already ended" in cancelled.stderr) == (2, True)
    fetched = run_orch("fetch", job, "-o", "elsewhere.jsonl", cwd=tmp_path)
    assert fetched.returncode == 0, fetched.stderr
    assert json.loads((tmp_path / "elsewhere.jsonl").read_text())["status"] == "succeeded"
    report = json.loads(run_orch("report", "night", "--json").stdout)
    assert report["needs"][0]["need"].startswith("the output was not delivered, output_not_a_file: cannot write ")
    told = wait_until(lambda: [*orch_home.glob("reports/alert-*-output-*.md")], WAIT)
    assert f"deliver them with `orch retry {job}`" in told[0].read_text()

    (tmp_path / "rows.jsonl").rmdir()
    again = run_orch("retry", job, "--output", env=env)
    assert again.returncode == 0, again.stderr
    wait_until(lambda: status(job)["state"] == "completed", WAIT)
    assert json.loads((tmp_path / "rows.jsonl").read_text())["status"] == "succeeded"
    assert len(upstream.requests()) == 1
    assert run_orch("retry", job, "--output", "--wait", env=env).returncode == 0, "as often as is wanted"
