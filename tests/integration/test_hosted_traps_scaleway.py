"""What is otherwise at Scaleway, through the whole pipeline."""

from __future__ import annotations

import pytest

from tests.support.hostedjob import (
    Desk,
    all_are,
    cost_of,
    finds_a_lost_create,
    plain,
    rescued_and_paid_twice,
    row,
    script,
)


@pytest.fixture(autouse=True)
def scaleway(desk: Desk) -> None:
    desk.backend("scaleway")


def test_trap_s_files_are_objects_of_a_bucket_and_go_once_their_rows_are_collected(desk: Desk) -> None:
    ids = ["with spaces", "ünïcode 行", "x" * 100, "a/b?c=d"]
    job = desk.run([*(row(name) for name in ids), row("bad", "context_length_exceeded")])
    assert desk.ends(job) == {**dict.fromkeys(ids, "succeeded"), "bad": "failed: context_length_exceeded"}
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert not [file for file in desk.provider.state()["files"] if file["is_there"]]


def test_trap_s_an_upload_that_was_not_answered_is_the_same_object(desk: Desk) -> None:
    script(desk, "cut_after", verb="upload")
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1


def test_trap_s_a_batch_whose_create_was_not_answered_is_found_by_the_address_of_its_input(desk: Desk) -> None:
    finds_a_lost_create(desk)


def test_trap_s_a_batch_cannot_be_ended_and_its_answers_are_kept(desk: Desk) -> None:
    job = desk.submit(plain(3))
    desk.until(job, desk.batches)
    desk.cancel(job)
    desk.settle(job)
    assert any("no call to end" in said for said in desk.held(job))
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_s_rows_that_a_terminated_batch_left_are_sent_again(desk: Desk) -> None:
    script(desk, "expires", share=0.5)
    job = desk.run(plain(10))
    assert desk.ends(job) == all_are("succeeded", 10)
    assert [batch["rows"] for batch in desk.batches()] == [10, 5]
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("late", [60.0, 600.0])
def test_trap_s_results_that_are_late_in_the_bucket_are_waited_for(desk: Desk, late: float) -> None:
    script(desk, "late_content", seconds=late)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_s_a_bucket_that_refuses_its_key_costs_no_row(desk: Desk) -> None:
    script(desk, "status", verb="upload", status=403, times=3)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert set(desk.attempts(job).values()) == {1}


@pytest.mark.long
def test_trap_s_late_rows_that_are_needed_in_time_are_paid_for_twice_and_that_is_told(desk: Desk) -> None:
    rescued_and_paid_twice(desk, "scaleway")
