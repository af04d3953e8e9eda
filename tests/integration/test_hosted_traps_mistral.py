"""What is otherwise at Mistral, through the whole pipeline."""

from __future__ import annotations

import pytest

from tests.support.hostedjob import HOUR, Desk, all_are, cost_of, finds_a_lost_create, plain, row, script


@pytest.fixture(autouse=True)
def mistral(desk: Desk) -> None:
    desk.backend("mistral")


def test_trap_h_rows_of_a_job_come_back_under_their_ids_and_its_files_go(desk: Desk) -> None:
    ids = ["with spaces", "ünïcode 行", "x" * 100, "a/b?c=d"]
    job = desk.run([row(name) for name in ids])
    assert desk.ends(job) == dict.fromkeys(ids, "succeeded")
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert not [file for file in desk.provider.state()["files"] if file["is_there"]]


def test_trap_h_a_job_has_the_model_and_the_days_that_its_deadline_leaves(desk: Desk) -> None:
    job = desk.submit(plain(2), deadline="3d")
    desk.until(job, desk.batches)
    [batch] = desk.batches()
    assert batch["model"] == "m"
    shard = desk.store.shards.of_job(job.id)[0]
    assert shard.window_seconds == 72 * HOUR


def test_trap_h_the_words_of_a_failed_row_are_a_json_text(desk: Desk) -> None:
    job = desk.run([*plain(2), row("bad", "context_length_exceeded"), row("worse", "status:422")])
    assert desk.ends(job) == {**all_are("succeeded", 2), "bad": "failed: http_400", "worse": "failed: http_422"}
    assert "maximum context length" in desk.rows(job)["bad"]["error"]["message"]


def test_trap_h_the_summed_up_errors_of_rows_are_not_why_a_job_failed(desk: Desk) -> None:
    job = desk.run([*plain(3), row("once", "status:500:1")])
    assert desk.ends(job) == {**all_are("succeeded", 3), "once": "succeeded"}
    assert desk.states(job)[0] == "collected (completed)"


def test_trap_h_a_job_that_fails_as_a_whole_says_why(desk: Desk) -> None:
    script(desk, "fails", message="Input file could not be parsed", times=None)
    job = desk.run(plain(2))
    assert desk.ends(job) == all_are("failed: error", 2)
    assert "could not be parsed" in desk.rows(job)["r0"]["error"]["message"]


@pytest.mark.long
def test_trap_h_rows_that_a_timeout_left_have_no_line_and_are_sent_again(desk: Desk) -> None:
    script(desk, "expires", share=0.5)
    job = desk.run(plain(10))
    assert desk.ends(job) == all_are("succeeded", 10)
    assert [batch["rows"] for batch in desk.batches()] == [10, 5]
    assert desk.states(job) == ["collected (expired)", "collected (completed)"]
    assert set(desk.attempts(job).values()) == {1}
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_h_a_job_whose_create_was_not_answered_is_found_by_its_metadata(desk: Desk) -> None:
    finds_a_lost_create(desk)


def test_trap_h_a_job_that_ends_between_the_look_and_the_cancel_is_collected(desk: Desk) -> None:
    script(desk, "status", status=400, verb="cancel", message="The job is SUCCESS already", times=None)
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.cancel(job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.states(job) == ["collected (completed)"]


def test_trap_h_fields_go_out_under_the_names_that_mistral_knows(desk: Desk) -> None:
    job = desk.run([row("r0", seed=7, max_completion_tokens=20)])
    assert desk.ends(job) == {"r0": "succeeded"}
    assert desk.provider.refused() == []
