"""What the pipeline makes of the planner's decisions: real stores and backends, the provider's clock."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.clock import now
from orchestrator.errors import RefusedError
from orchestrator.model import Job
from orchestrator.pipeline.planning import Planning
from tests.support.hostedjob import HOUR, Desk, plain

JOB = """\
name: letters
documents: {path: documents}
models: {small: m}
tasks: [{id: facts, model: small, max_tokens: 20, prompt: Facts}]
"""


def view(desk: Desk, job: Job) -> Planning:
    return Planning(desk.store, desk.config, desk.store.jobs.get(job.id), now())


def job_file(folder: Path, more: str = "") -> Path:
    (folder / "documents").mkdir(exist_ok=True)
    for number in range(3):
        (folder / "documents" / f"{number}.txt").write_text(f"Letter {number}.", encoding="utf-8")
    path = folder / "job.yaml"
    path.write_text(JOB + more, encoding="utf-8")
    return path


def test_without_history_a_deadline_refuses_nobody(desk: Desk) -> None:
    job = desk.submit(plain(3), deadline="30m")
    plan = view(desk, job).plan()
    assert not plan.verdict.holds
    assert plan.routes[0].reason == "the cheapest; turnaround assumed"


def test_a_budget_that_prices_do_not_keep_is_refused_with_the_least_that_would_do(desk: Desk) -> None:
    with pytest.raises(RefusedError) as refused:
        desk.submit(plain(100, max_tokens=1000), budget=Decimal("0.1"))
    assert "the budget of $0.1000" in refused.value.message
    least = Decimal(str(refused.value.hint).partition("--budget ")[2].split()[0])
    assert view(desk, desk.submit(plain(100, max_tokens=1000), budget=least)).plan().verdict.holds
    with pytest.raises(RefusedError):
        desk.submit(plain(100, max_tokens=1000), budget=least * Decimal("0.98"))


def test_a_backend_that_left_orch_toml_keeps_its_rows_and_nothing_else_stops(desk: Desk) -> None:
    desk.backends({"openai": {}, "azure": {}})
    job = desk.submit(plain(4), deadline="20h")
    desk.settle(job)
    [shard] = desk.store.shards.of_job(job.id)
    left = "azure" if shard.backend == "openai" else "openai"
    desk.backend(left)
    planning = view(desk, job)
    assert planning.lying.running == ()
    outlook = planning.outlook()
    assert outlook is not None
    assert planning.orders().sends == ()


def test_rows_stay_local_though_the_deadline_is_lost(desk: Desk, tmp_path: Path) -> None:
    desk.backends({"openai": {}, "claude": {"location": "local"}})
    job = desk.submit(job_file(tmp_path, "allow: {location: local}\ndeadline: 1h\n"))
    desk.settle(job)
    desk.provider.clock.advance(5 * HOUR)
    desk.step(job)
    assert {shard.backend for shard in desk.store.shards.of_job(job.id)} == {"claude"}
    against = {one.backend: one.objection for one in view(desk, job).options}
    assert against["openai"] is not None


def test_a_job_with_one_backend_waits_for_its_quota_instead_of_being_refused(desk: Desk) -> None:
    desk.backend(limits={"enqueued_tokens": 1})
    job = desk.submit(plain(4), deadline="20h")
    [order] = view(desk, job).orders().sends
    assert (order.rows, order.backend, order.avoid) == (4, "openai", None)


def test_two_backends_of_which_one_is_full(desk: Desk) -> None:
    desk.backends({"openai": {"limits": {"enqueued_tokens": 100}}, "azure": {}})
    first = desk.submit(plain(40))
    sends = view(desk, first).orders().sends
    assert sum(order.rows for order in sends) == 40
    assert {order.backend for order in sends} == {"azure"}


def test_every_look_is_due_when_the_planner_says_so(desk: Desk) -> None:
    desk.backends({"openai": {}, "azure": {}})
    job = desk.submit(plain(4), deadline="20h")
    orders = view(desk, job).orders()
    assert now() < orders.next_look <= now() + timedelta(minutes=30)
