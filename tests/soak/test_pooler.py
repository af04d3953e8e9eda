"""A home whose Postgres is behind a real PgBouncer, which shares its sessions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import pooler
from tests.support.cli import Orch, write_config
from tests.support.killing import write_batch_file
from tests.support.process import Upstream

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_jobs_run_are_killed_and_go_on_behind_a_pooler(
    run_orch: Orch, upstream: Upstream, postgres_url: str, tmp_path: Path, mode: str
) -> None:
    if not pooler.is_there():
        pytest.skip("no pgbouncer: apt-get install pgbouncer")
    write_config(run_orch.home, [upstream.base_url], retry_delay=0.01)
    requests = tmp_path / "requests.jsonl"
    write_batch_file(requests, 600)
    with pooler.pooled(postgres_url, mode) as url:
        env = {"ORCH_DATABASE_URL": url}
        running = run_orch.start("run", str(requests), "-o", str(tmp_path / "out.jsonl"), env=env)
        upstream.wait_for_requests(100)
        running.kill()
        done = run_orch("run", str(requests), "-o", str(tmp_path / "out.jsonl"), env=env, timeout=120)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert len({line["custom_id"] for line in lines}) == len(lines) == 600
        jobs = json.loads(run_orch("status", "--json", env=env).stdout)
        assert [job["state"] for job in jobs] == ["completed"]
