"""`orch gc` and `orch backup` as a user has them, the page's commands among them, while a daemon runs and writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.support.cli import Orch, kill_group, write_config
from tests.support.killing import durable_ids, write_batch_file
from tests.support.process import ROOT, Upstream, wait_until

PAGE = ROOT / "docs" / "how-to" / "retention-and-backup.md"
ROWS = 1000


def shell(folder: Path, script: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run commands as they stand on a page, `orch` being this one."""
    prelude = f'set -eu\norch() {{ "{sys.executable}" -m orchestrator.cli "$@"; }}\n'
    env = {**os.environ, "ORCH_HOME": str(home), "ORCH_CONFIG": str(home / "orch.toml"), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", prelude + script],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.soak
def test_the_pages_commands_while_a_daemon_works(
    run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    """A backup of a home amid a run, restored: the run is finished there, and no row that was done is asked again."""
    write_config(orch_home, [make_upstream(slots=4, latency_ms=500).base_url], max_concurrency=4)
    ids = write_batch_file(tmp_path / "in.jsonl", ROWS)
    running = run_orch.start("run", str(tmp_path / "in.jsonl"), "-q")
    wait_until(lambda: len(durable_ids(orch_home)) > 10)

    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    script = "\n".join(block for block in blocks if "pg_dump" not in block)
    for command in ("orch gc --dry-run", "orch gc ", "orch backup night.tar", "orch backup --check", "tar -xf"):
        assert command in script
    done = shell(tmp_path, script, orch_home)
    assert done.returncode == 0, done.stderr
    assert "kept: in-" in done.stdout
    assert "it is not finished" in done.stdout
    assert re.search(r"night\.tar: \d+ files, .* of 20\d\d-.* UTC, 0 result lines read", done.stdout)
    assert running.poll() is None, "the run ended before the backup was made"
    kill_group(running)
    running.wait()

    restored, fast = Orch(tmp_path / "restored"), make_upstream()
    write_config(orch_home, [fast.base_url])
    durable = durable_ids(restored.home)
    assert len(durable) > 10
    out = tmp_path / "out.jsonl"
    env = {"ORCH_CONFIG": str(orch_home / "orch.toml")}
    finished = restored("run", str(tmp_path / "in.jsonl"), "-o", str(out), "-q", env=env)
    assert finished.returncode == 0, finished.stderr
    assert [json.loads(line)["custom_id"] for line in out.read_text().splitlines()] == ids
    assert set(fast.counts()) == set(ids) - durable


def test_old_files_go_and_a_full_disk_is_told(
    run_orch: Orch, orch_home: Path, upstream: Upstream, tmp_path: Path
) -> None:
    write_config(orch_home, [upstream.base_url], extra='[retention]\nresults = "30d"\njobs = "60d"\nkeep_last = 1\n')
    write_batch_file(tmp_path / "in.jsonl", 3)
    write_batch_file(tmp_path / "more.jsonl", 4)
    for name in ("in", "more"):
        (tmp_path / "rows.jsonl").write_bytes((tmp_path / f"{name}.jsonl").read_bytes())
        assert run_orch("run", "--new", str(tmp_path / "rows.jsonl")).returncode == 0
    new, old = (job["job"] for job in json.loads(run_orch("status", "--json").stdout))

    later = {"ORCH_NOW": "2099-01-01T00:00:00+00:00"}
    told = run_orch("gc", "--dry-run", env=later)
    assert re.search(rf"would go: all of {old}, .*: ended .* ago, jobs are kept for 60 d\n", told.stdout)
    assert f"kept: {new}: the newest of its job file (keep_last = 1)\n" in told.stdout
    assert re.search(r"would be freed; the home takes .* \(results .*\), its disk has .* free\n$", told.stdout)
    swept = json.loads(run_orch("gc", "--json", env=later).stdout)
    assert [(job["job"], job["fate"]) for job in swept["jobs"]] == [(new, "kept"), (old, "job")]
    assert swept["freed_bytes"] == swept["jobs"][1]["bytes"] > 0
    assert swept["use"]["total_bytes"] > swept["use"]["results_bytes"] > 0
    assert not (orch_home / "jobs" / old).exists()
    assert [job["job"] for job in json.loads(run_orch("status", "--json").stdout)] == [new]

    (orch_home / "jobs" / "lost-1").mkdir()
    (orch_home / "jobs" / "lost-1" / "results.jsonl").write_text("x")
    assert "lost-1 holds results of unknown jobs" in run_orch("gc").stderr
    write_config(orch_home, [upstream.base_url], extra='[retention]\nmin_free = "1000TB"\n')
    write_batch_file(tmp_path / "rows.jsonl", 5)
    refused = run_orch("run", str(tmp_path / "rows.jsonl"))
    assert refused.returncode == 4
    assert "and 1000.0 TB must stay free" in refused.stderr
    assert "hint: `orch gc --dry-run` shows what can go" in refused.stderr
    assert len(list((orch_home / "jobs").iterdir())) == 2

    found = json.loads(run_orch("backup", "--json", str(tmp_path / "a.tar")).stdout)
    assert (found["database"], found["problems"]) == (True, [])
    (orch_home / "jobs" / new / "shards" / "001.output.jsonl").unlink()
    lacking = run_orch("backup", str(tmp_path / "b.tar"))
    assert lacking.returncode == 1
    assert "! jobs/" in lacking.stdout
    assert run_orch("backup", "--check", str(tmp_path / "a.tar")).returncode == 0
