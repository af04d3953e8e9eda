"""Probes as the pipeline sends them: a few rows to a backend long unused, told in the plan and by an event."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.clock import now
from orchestrator.core.events import PROBE, EventKind
from orchestrator.core.model import Job
from orchestrator.core.shards import ShardState
from orchestrator.pipeline.backend_admission import BatchRoom
from orchestrator.pipeline.plan.orders import Sending
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.pipeline.submit import rows_to_shards
from orchestrator.reports.plans import plan_json, plan_lines
from tests.support.hostedjob import Desk, Json, plain

ROWS = 440
TIER: Json = {"service_tier": "default", "requests_per_minute": 600}
JOB = """\
name: letters
documents: {path: letters.csv, text_column: text, id_column: id}
models: {small: m}
tasks: [{id: facts, model: small, max_tokens: 20, prompt: Facts}]
"""
ON = "[routing]\nprobe = true\nprobe_share = 0.1\n"


def job_file(folder: Path, edition: int) -> Path:
    lines = ["id,text", *(f"{number},Letter {number} of {edition}." for number in range(ROWS))]
    (folder / "letters.csv").write_text("\n".join(lines), encoding="utf-8")
    path = folder / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return path


def probes(desk: Desk, job: Job) -> list[str]:
    """The reasons of the events that say so."""
    events = desk.store.jobs.events(job.id)
    return [one.reason for one in events if one.kind == EventKind.ROUTED and one.code == PROBE]


def sent(desk: Desk, job: Job) -> dict[str, int]:
    """Rows by backend."""
    found: dict[str, int] = {}
    for shard in desk.store.shards.of_job(job.id):
        found[shard.backend] = found.get(shard.backend, 0) + shard.rows
    return found


def was_used(desk: Desk, backend: str) -> None:
    """An earlier job had rows at a backend, until a moment ago."""
    assert desk.daemon is not None
    job = desk.submit(plain(2), backend=backend)
    handle, order = desk.daemon.open(backend), Sending(2, backend, None, "a test")
    [shard] = rows_to_shards.plan_shards(desk.store, job, handle, order, lambda model: BatchRoom(2, None), now())
    for state in (ShardState.SUBMITTING, ShardState.SUBMITTED):
        desk.store.shards.move(desk.store.shards.get(shard.id), state, submitted_at=now(), batch_id="b")
    desk.store.shards.move(desk.store.shards.get(shard.id), ShardState.ENDED, ended_at=now())


def planned(desk: Desk, job: Job) -> Json:
    """`orch plan --json` of a job of which nothing was sent yet."""
    return plan_json(Planning(desk.store, desk.config, desk.store.jobs.get(job.id), now()).plan())


@pytest.mark.long
def test_a_backend_long_unused_gets_a_few_rows(desk: Desk, tmp_path: Path) -> None:
    """Realtime could take over what the probe does not do, and was needed a moment ago; azure never had a row."""
    desk.backends({"openai": {}, "azure": {}, "flex": TIER}, ON)
    was_used(desk, "flex")
    job = desk.submit(job_file(tmp_path, 1), deadline="20h")
    plan = Planning(desk.store, desk.config, job, now()).plan()
    probe = plan_json(plan)["probe"]
    assert (probe["backend"], probe["reason"].split(",")[0]) == ("azure", "a probe: never used")
    assert 20 <= probe["rows"] <= ROWS // 20
    shown = ["".join(str(part.text) for part in line) for line in plan_lines(plan, job.deadline_at, 200)]
    assert any("to azure; a probe: never used" in one for one in shown)
    desk.finish(job)
    assert sent(desk, job) == {"azure": probe["rows"], "openai": ROWS - probe["rows"]}
    assert probes(desk, job) == [f"{probe['rows']} rows to azure: {probe['reason']}"]
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert sum(desk.billed().values()) == ROWS, "each row is asked once"

    again = desk.submit(job_file(tmp_path, 2), deadline="20h")
    assert planned(desk, again)["probe"] is None, "it was measured a moment ago"
    desk.settle(again)
    assert (probes(desk, again), sum(sent(desk, again).values())) == ([], ROWS)


def test_no_probe_unless_it_is_asked_for_or_where_nothing_says_by_when(desk: Desk, tmp_path: Path) -> None:
    desk.backends({"openai": {}, "azure": {}})
    job = desk.submit(job_file(tmp_path, 1), deadline="20h")
    assert planned(desk, job)["probe"] is None
    desk.settle(job)
    assert (probes(desk, job), len(sent(desk, job))) == ([], 1)
    desk.backends({"openai": {}, "azure": {}}, ON)
    job = desk.submit(job_file(tmp_path, 2))
    assert planned(desk, job)["probe"] is None
    desk.settle(job)
    assert (probes(desk, job), len(sent(desk, job))) == ([], 1)
