"""What is otherwise at Together, through the whole pipeline."""

from __future__ import annotations

import pytest

from tests.support.hostedjob import HOUR, Desk, all_are, cost_of, finds_a_lost_create, plain, row, script


@pytest.fixture(autouse=True)
def together(desk: Desk) -> None:
    desk.backend("together")


def test_trap_o_rows_come_back_under_their_ids_however_long_and_files_go(desk: Desk) -> None:
    ids = ["with spaces", "ünïcode 行", "x" * 65, "行" * 64, "a/b?c=d" * 30]
    job = desk.run([row(name) for name in ids])
    assert desk.ends(job) == dict.fromkeys(ids, "succeeded")
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert not [file for file in desk.provider.state()["files"] if file["is_there"]]


def test_trap_o_equal_rows_of_two_batches_are_two_files(desk: Desk) -> None:
    script(desk, "fails", message="internal error")
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.provider.calls("upload") == {200: 2}


def test_trap_o_an_upload_that_was_not_answered_is_there_once(desk: Desk) -> None:
    script(desk, "cut_after", verb="upload")
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.provider.calls("upload") == {0: 1, 409: 1}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("is_read", [True, False])
def test_trap_o_a_batch_whose_create_was_not_answered_is_found_by_its_file(desk: Desk, is_read: bool) -> None:
    if not is_read:
        script(desk, "no_id", verb="files", times=3)
    finds_a_lost_create(desk)


@pytest.mark.long
def test_trap_o_errors_of_rows_have_a_code_and_no_status(desk: Desk) -> None:
    marks = ["context_length_exceeded", "status:422", "status:500:1"]
    job = desk.run([*plain(2), *(row(f"bad{number}", mark) for number, mark in enumerate(marks))])
    ends = desk.ends(job)
    assert ends.pop("bad0") == "failed: context_length_exceeded"
    assert ends.pop("bad1").startswith("failed: ")
    assert ends.pop("bad2") == "succeeded"
    assert ends == all_are("succeeded", 2)


def test_trap_o_a_batch_that_fails_as_a_whole_says_why(desk: Desk) -> None:
    script(desk, "fails", message="line 2: body.model is required", times=None)
    job = desk.run(plain(2))
    assert desk.ends(job) == all_are("failed: error", 2)
    assert "body.model is required" in desk.rows(job)["r0"]["error"]["message"]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("late", [0.0, 600.0])
def test_trap_o_a_batch_counts_no_rows_and_what_a_cancel_left_is_collected(desk: Desk, late: float) -> None:
    script(desk, "stuck_in_progress", share=0.5)
    script(desk, "late_output_id", seconds=late)
    job = desk.submit(plain(10))
    desk.settle(job)
    desk.later(4 * HOUR, job)
    desk.cancel(job)
    desk.finish(job)
    assert sorted(desk.ends(job).values()) == ["cancelled: cancelled"] * 5 + ["succeeded"] * 5
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.long
def test_trap_o_rows_that_an_expired_batch_left_are_sent_again(desk: Desk) -> None:
    script(desk, "expires", share=0.5)
    job = desk.run(plain(10))
    assert desk.ends(job) == all_are("succeeded", 10)
    assert [batch["rows"] for batch in desk.batches()] == [10, 5]
    assert set(desk.attempts(job).values()) == {1}
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_o_a_batch_that_ends_between_the_look_and_the_cancel_is_collected(desk: Desk) -> None:
    script(desk, "status", status=400, verb="cancel", message="The batch is COMPLETED already", times=None)
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.cancel(job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
