"""What is otherwise at Fireworks, through the whole pipeline."""

from __future__ import annotations

import pytest

from tests.support.hostedjob import HOUR, MINUTE, Desk, all_are, cost_of, plain, rescued_and_paid_twice, row, script
from tests.support.process import wait_until


@pytest.fixture(autouse=True)
def fireworks(desk: Desk) -> None:
    desk.backend("fireworks")


def test_trap_p_rows_come_back_under_their_ids_and_datasets_go(desk: Desk) -> None:
    ids = ["with spaces", "ünïcode 行", "x" * 100, "a/b?c=d"]
    job = desk.run([row(name) for name in ids])
    assert desk.ends(job) == dict.fromkeys(ids, "succeeded")
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert not [file for file in desk.provider.state()["files"] if file["is_there"]]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("cut", ["cut_after", "hang_after"])
def test_trap_p_a_create_that_was_not_answered_is_found_by_its_id(desk: Desk, cut: str) -> None:
    script(desk, cut, verb="create")
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_p_a_create_is_repeated_and_makes_no_second_job(desk: Desk) -> None:
    script(desk, "cut_after", verb="create")
    script(desk, "unknown_for", verb="create", seconds=2 * HOUR, listed=False)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.provider.calls("create")[409] >= 1
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("verb", ["create_dataset", "upload"])
def test_trap_p_an_upload_that_was_not_answered_goes_on_where_it_stopped(desk: Desk, verb: str) -> None:
    script(desk, "cut_after", verb=verb)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.provider.calls("create_dataset")[409] == 1
    assert not [file for file in desk.provider.state()["files"] if file["is_there"]]


def test_trap_p_errors_are_in_a_file_beside_the_answers(desk: Desk) -> None:
    job = desk.run([*plain(2), row("bad", "context_length_exceeded"), row("once", "status:500:1")])
    bad = {"bad": "failed: context_length_exceeded", "once": "succeeded"}
    assert desk.ends(job) == {**all_are("succeeded", 2), **bad}


def test_trap_p_a_failed_job_says_why_and_has_no_results(desk: Desk) -> None:
    script(desk, "fails", message="Dataset has a syntax error", times=None)
    job = desk.run(plain(2))
    assert desk.ends(job) == all_are("failed: error", 2)
    assert "syntax error" in desk.rows(job)["r0"]["error"]["message"]


def test_trap_p_rows_that_an_expired_job_left_are_sent_again(desk: Desk) -> None:
    script(desk, "expires", share=0.5)
    job = desk.run(plain(10))
    assert desk.ends(job) == all_are("succeeded", 10)
    assert [batch["rows"] for batch in desk.batches()] == [10, 5]
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_p_a_job_that_never_begins_is_deleted_by_a_cancel(desk: Desk) -> None:
    script(desk, "stuck_validating")
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.cancel(job)
    desk.finish(job)
    assert desk.ends(job) == all_are("cancelled: cancelled", 3)
    assert desk.provider.calls("cancel") == {200: 1}


def test_trap_p_a_job_that_has_begun_goes_on_behind_a_cancel_and_is_collected(desk: Desk) -> None:
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.later(HOUR / 60, job)
    desk.cancel(job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.provider.calls("cancel") == {}
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.long
def test_trap_p_late_rows_of_a_running_job_are_paid_for_twice_and_that_is_told(desk: Desk) -> None:
    rescued_and_paid_twice(desk, "fireworks")


@pytest.mark.soak
def test_trap_p_a_job_that_never_begins_is_deleted_where_its_rows_are_needed_and_is_paid_once(desk: Desk) -> None:
    desk.backends({"fireworks": {"poll_seconds": 10}, "flex": {"service_tier": "default"}})
    script(desk, "stuck_validating")
    job = desk.submit(plain(3), deadline="3h")
    desk.settle(job)
    desk.provider.clock.set(speed=5.0)

    def is_over() -> bool:
        desk.later(2 * MINUTE, job)
        return desk.is_over(job)

    wait_until(is_over, 300)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert [shard["backend"] for shard in desk.detail(job)["shards"]] == ["fireworks", "flex"]
    assert desk.provider.calls("cancel") == {200: 1}
    assert desk.uncertain(job) == 0
    assert sum(line["rows"] for line in desk.provider.bill()["lines"]) == 3
