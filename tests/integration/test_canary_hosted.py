"""A job with a canary at a hosted backend: a few rows go first, and what comes of them decides about the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.model import Job, RequestState
from tests.support.hostedjob import DAY, HOUR, RATES, Desk, script, table

SCHEMA = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}
BAD = " [[fault:length]]"


def job_file(desk: Desk, texts: list[str], **spec: Any) -> Path:
    folder = desk.folder / "documents"
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number:02}.txt").write_text(text, encoding="utf-8")
    path = desk.folder / "job.yaml"
    task = {"id": "t", "prompt": "What of it?", "model": "m", "max_tokens": 60, "schema": SCHEMA}
    # JSON is YAML.
    given = {"name": "night", "documents": "documents", "tasks": [task], "models": {"m": "m"}, **spec}
    path.write_text(json.dumps(given), encoding="utf-8")
    return path


def texts(count: int, fault: str = "") -> list[str]:
    """Documents of rising length."""
    return ["word " * (10 + number) + fault for number in range(count)]


def sent(desk: Desk, job: Job) -> list[int]:
    return [shard["rows"] for shard in desk.detail(job)["shards"]]


@pytest.mark.long
def test_the_others_follow_a_canary_that_came_back_well(desk: Desk) -> None:
    desk.backend()
    job = desk.submit(job_file(desk, texts(12), canary={"rows": 3}))
    desk.settle(job)
    assert sent(desk, job) == [3]
    first = [row.document for row in desk.store.rows.finished(job.id) if row.seq in _in_first_shard(desk, job)]
    assert first == ["documents/02.txt", "documents/06.txt", "documents/10.txt"]

    desk.finish(job)
    assert sent(desk, job) == [3, 9]
    assert set(desk.ends(job).values()) == {"succeeded"}
    marked, judged = desk.events(job, "canary")
    assert marked == "3 rows go first"
    assert judged.startswith("0 of 3 rows that went first failed; they cost $")
    assert judged.endswith("times the forecast: the others follow")
    assert desk.detail(job)["shards"][0]["reason"].startswith("the canary goes first; openai is the fastest")
    [forecast] = [one for one in desk.store.forecasts.since() if one.kind == "canary"]
    assert forecast.actual is not None
    assert forecast.actual < forecast.p95


def _in_first_shard(desk: Desk, job: Job) -> set[int]:
    return {row.seq for row in desk.store.rows.of_shard(desk.store.shards.of_job(job.id)[0].id)}


@pytest.mark.long
def test_one_that_came_back_badly_ends_the_job_before_the_money_is_spent(desk: Desk) -> None:
    desk.backend()
    job = desk.run(job_file(desk, texts(12, BAD), canary={"rows": 4}))
    assert sent(desk, job) == [4]
    assert sum(desk.billed().values()) == 4
    why = "canary: 4 of 4 rows that went first failed (4 truncated), more than 25%"
    assert (desk.detail(job)["state"], desk.events(job, "stopped")) == ("cancelled", [why])
    ends = list(desk.ends(job).values())
    assert (ends.count("failed: truncated"), ends.count("cancelled: cancelled")) == (4, 8)
    assert {row["error"]["message"] for row in desk.rows(job).values() if row["status"] == "cancelled"} == {why}

    # Whoever tries it again wants all of it.
    desk.store.rows.retry(job.id, [RequestState.FAILED, RequestState.CANCELLED])
    desk.finish(job)
    assert sent(desk, job) == [4, 12]


def test_one_that_costs_far_more_than_foreseen_ends_the_job(desk: Desk) -> None:
    desk.backend()
    job = desk.run(job_file(desk, texts(8), canary={"rows": 2, "max_cost": 0.01}))
    [why] = desk.events(job, "stopped")
    assert why.startswith("canary: 0 of 2 rows that went first failed; they cost $")
    assert why.endswith("times the forecast, more than 0.01 times")
    assert sent(desk, job) == [2]


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", ["", BAD], ids=["well", "badly"])
def test_a_start_after_every_step_changes_nothing(desk: Desk, fault: str) -> None:
    desk.backend()
    job = desk.submit(job_file(desk, texts(9, fault), canary={"rows": 3}))
    for _ in range(60):
        if desk.is_over(job):
            break
        desk.step(job)
        desk.start_anew()
        desk.provider.clock.advance(300)
    assert sent(desk, job) == ([3] if fault else [3, 6])
    assert len(desk.events(job, "canary")) + len(desk.events(job, "stopped")) == 2
    assert sum(desk.billed().values()) == sum(sent(desk, job))


def test_it_is_left_out_where_it_could_not_be_back_in_time(desk: Desk) -> None:
    desk.backend()
    job = desk.submit(job_file(desk, texts(6), canary={"rows": 2}), deadline="26h")
    desk.settle(job)
    assert sent(desk, job) == [6]
    [_, why] = desk.events(job, "canary")
    assert why.startswith("skipped: openai may take until ")
    assert why.endswith(" UTC for them, and the others need the time; the other rows follow without it")


@pytest.mark.long
def test_it_is_left_out_where_its_batch_expires_and_another_would_come_too_late(desk: Desk) -> None:
    desk.backend()
    desk.provider.settings(turnaround_s=[3 * DAY, 3 * DAY])
    job = desk.submit(job_file(desk, texts(6), canary={"rows": 2}), deadline="6d")
    desk.settle(job)
    assert sent(desk, job) == [2]
    for _ in range(16):
        desk.later(2 * HOUR, job)
    assert sent(desk, job) == [2, 6]
    assert desk.events(job, "canary")[1].startswith("skipped: openai may take until ")


def test_without_others_that_would_follow_there_is_none(desk: Desk) -> None:
    desk.backend()
    job = desk.run(job_file(desk, texts(3, BAD), canary={"rows": 3}))
    assert sent(desk, job) == [3]
    assert desk.events(job, "canary") == ["skipped: no more than 3 rows"]
    assert desk.detail(job)["state"] == "completed"


def test_it_goes_where_it_is_back_soonest_and_is_compared_with_the_prices_there(desk: Desk) -> None:
    desk.backends({"openai": {}, "flex": {}})
    job = desk.submit(job_file(desk, texts(8), canary={"rows": 2}), deadline="30h")
    desk.settle(job)
    [first, *_] = desk.detail(job)["shards"]
    assert (first["backend"], first["rows"]) == ("flex", 2)
    assert first["reason"].startswith("the canary goes first; flex is the fastest")
    [forecast] = [one for one in desk.store.forecasts.since() if one.kind == "canary"]
    assert (forecast.backend, forecast.p50 > 0) == ("flex", True)


@pytest.mark.long
def test_a_stronger_model_gets_its_rows_before_it_is_judged(desk: Desk) -> None:
    desk.backends({"openai": {}}, f"[prices.big]\n{table(RATES)}batch = {{input = 20, output = 80}}\n")
    script(desk, "rows", verb="create", nth=1, row="length", lines=[1, 2])
    limits = {"rows": 2, "max_failed": 0, "max_cost": 1000}
    job = desk.run(job_file(desk, texts(6), canary=limits, models={"m": ["m", "big"]}))
    assert sent(desk, job) == [2, 2, 4]
    [forecast] = [one for one in desk.store.forecasts.since() if one.kind == "canary"]
    assert forecast.p50 < 0.001  # of the first model alone
    assert [shard["model"] for shard in desk.detail(job)["shards"]] == ["m", "m@2", "m"]
    assert desk.events(job, "canary")[1].startswith("0 of 2 rows that went first failed")


def test_where_no_backend_may_take_it_the_job_says_so_and_waits(desk: Desk) -> None:
    desk.backend()
    job = desk.submit(job_file(desk, texts(6), canary={"rows": 2}, allow={"backends": ["openai"]}))
    desk.backends({"azure": {}})
    desk.settle(job)
    assert desk.said[-1].startswith(f"job {job.id} cannot continue: azure: ")
    desk.backend()
    desk.finish(job)
    assert sent(desk, job) == [2, 4]
