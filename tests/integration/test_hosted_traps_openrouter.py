"""What is otherwise at OpenRouter, through the whole pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.pipeline.backend_set import unstoppable
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.cli import Orch
from tests.support.hostedjob import (
    DAY,
    KEY,
    Desk,
    all_are,
    cost_of,
    finds_a_lost_create,
    plain,
    rescued_and_paid_twice,
    row,
    script,
    settings_of,
    write_toml,
)
from tests.support.process import wait_until


@pytest.fixture(autouse=True)
def openrouter(desk: Desk) -> None:
    desk.backend("openrouter")


def test_trap_r_rows_go_out_inline_and_come_back_under_their_ids(desk: Desk) -> None:
    ids = ["with spaces", "ünïcode 行", "x" * 100, "a/b?c=d"]
    job = desk.run([row(name) for name in ids])
    assert desk.ends(job) == dict.fromkeys(ids, "succeeded")
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_r_a_batch_whose_create_was_not_answered_is_known_by_its_rows_once_it_has_ended(desk: Desk) -> None:
    finds_a_lost_create(desk)


@pytest.mark.long
def test_trap_r_a_running_batch_of_the_same_size_is_waited_for_and_not_adopted(desk: Desk) -> None:
    script(desk, "turnaround", seconds=0.5 * DAY)
    first = desk.submit(plain(3))
    desk.until(first, desk.batches)
    script(desk, "cut_before", verb="create")
    second = desk.submit([row(f"s{number}") for number in range(3)])
    desk.finish(first, second)
    assert desk.ends(first) == all_are("succeeded", 3)
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert len(desk.batches()) == 2
    assert desk.cost(first) + desk.cost(second) == cost_of(desk.provider.bill())


@pytest.mark.long
def test_trap_r_a_batch_whose_create_was_not_answered_runs_for_three_days_and_is_not_made_again(desk: Desk) -> None:
    script(desk, "turnaround", seconds=3 * DAY)
    script(desk, "cut_after", verb="create")
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_r_a_batch_cannot_be_ended_and_its_answers_are_kept(desk: Desk) -> None:
    job = desk.submit(plain(3))
    desk.until(job, desk.batches)
    desk.cancel(job)
    desk.settle(job)
    assert any("no call to end" in said for said in desk.held(job))
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_r_a_failed_row_has_a_type_and_no_status(desk: Desk) -> None:
    job = desk.run([*plain(2), row("bad", "context_length_exceeded"), row("once", "status:500:1")])
    ends = desk.ends(job)
    assert ends.pop("bad").startswith("failed: ")
    assert ends == {**all_are("succeeded", 2), "once": "succeeded"}
    assert "maximum context length" in desk.rows(job)["bad"]["error"]["message"]


def test_trap_r_a_batch_is_refused_after_it_was_accepted_and_says_why(desk: Desk) -> None:
    script(desk, "fails", message="Base64 images are rejected on every provider", times=None)
    job = desk.run(plain(2))
    assert set(desk.ends(job).values()) == {"failed: error"}
    assert "Base64 images" in desk.rows(job)["r0"]["error"]["message"]
    assert desk.provider.bill()["lines"] == []


@pytest.mark.long
def test_trap_r_rows_that_an_expired_batch_left_are_sent_again(desk: Desk) -> None:
    script(desk, "expires", share=0.5)
    job = desk.run(plain(10))
    assert desk.ends(job) == all_are("succeeded", 10)
    assert [batch["rows"] for batch in desk.batches()] == [10, 5]
    assert set(desk.attempts(job).values()) == {1}
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.soak
def test_trap_r_a_batch_takes_5000_rows(desk: Desk) -> None:
    job = desk.submit(plain(5_001))
    desk.until(job, lambda: len(desk.batches()) == 2)
    assert sorted(batch["rows"] for batch in desk.detail(job)["shards"]) == [1, 5_000]


@pytest.mark.long
def test_trap_r_late_rows_that_are_needed_in_time_are_paid_for_twice_and_that_is_told(desk: Desk) -> None:
    rescued_and_paid_twice(desk, "openrouter")


@pytest.mark.long
def test_trap_r_answers_of_a_cancelled_job_are_waited_for_beyond_a_day(desk: Desk) -> None:
    script(desk, "turnaround", seconds=3 * DAY)
    job = desk.submit(plain(3))
    desk.until(job, desk.batches)
    desk.cancel(job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)


@pytest.mark.long
def test_trap_r_a_superseded_job_says_which_batch_cannot_be_ended(desk: Desk) -> None:
    """And waits for it: what is under way there goes nowhere else."""
    script(desk, "turnaround", seconds=0.5 * DAY)
    file = desk.written(jsonl([*plain(3)]))
    first = desk.submit(file)
    desk.until(first, desk.batches)
    assert unstoppable(desk.store, desk.config, first) == (
        "1 batch of 3 rows at openrouter cannot be ended once running, and will be paid for"
    )
    file.write_bytes(jsonl([row("another")]))
    second = desk.submit(file)
    desk.finish(first, second)
    assert any("cannot be ended once running" in told for told in desk.events(first, "cancel"))
    assert desk.ends(second) == {"another": "succeeded"}
    assert desk.cost(first) + desk.cost(second) == cost_of(desk.provider.bill())


@pytest.mark.long
def test_a_cancel_and_an_edit_name_the_batch_that_runs_on(tmp_path: Path) -> None:
    orch, file = Orch(tmp_path / "another"), tmp_path / "rows.jsonl"
    orch.home.mkdir()
    with Emulator(tmp_path / "its provider") as provider:
        write_toml(orch.home / "orch.toml", {"openrouter": settings_of(provider, "openrouter")})
        env = {**provider.environment, "OPENROUTER_KEY": KEY}
        file.write_bytes(jsonl(plain(3)))
        process = orch.start("run", str(file), env=env)
        wait_until(lambda: provider.state()["batches"], 60)
        [job] = wait_until(lambda: json.loads(orch("status", "--json", env=env).stdout or "[]"), 60)
        process.terminate()
        process.wait(30)
        file.write_bytes(jsonl(plain(4)))
        edited = orch("submit", str(file), "--supersede", env=env)
        provider.clock.set(speed=5000.0)
        cancelled = orch("cancel", job["job"], env=env, timeout=120)
    orch.close()
    runs_on = "1 batch of 3 rows at openrouter cannot be ended once running, and will be paid for"
    assert f"orch: job {job['job']}, which is superseded: {runs_on}\n" in edited.stderr
    assert f"orch: {runs_on}; the job waits for its answers\n" in cancelled.stderr
