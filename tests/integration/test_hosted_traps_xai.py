"""What is otherwise at xAI, through the whole pipeline."""

from __future__ import annotations

import pytest

from tests.support.hostedjob import DAY, Desk, all_are, cost_of, finds_a_lost_create, plain, row, script


@pytest.fixture(autouse=True)
def xai(desk: Desk) -> None:
    desk.backend("xai")


def test_trap_x_rows_of_a_batch_come_back_by_pages_and_its_file_goes(desk: Desk) -> None:
    ids = ["with spaces", "ünïcode 行", "x" * 100, "a/b?c=d", *(f"r{number}" for number in range(200))]
    job = desk.run([row(name) for name in ids])
    assert desk.ends(job) == dict.fromkeys(ids, "succeeded")
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert not [file for file in desk.provider.state()["files"] if file["is_there"]]


def test_trap_x_counts_of_zero_are_a_batch_whose_file_was_not_read_yet(desk: Desk) -> None:
    desk.provider.settings(validating_s=[3600, 3600])
    job = desk.submit(plain(3))
    desk.until(job, desk.batches)
    desk.later(600, job)
    assert desk.states(job) == ["submitted (validating)"]
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1


@pytest.mark.long
def test_trap_x_rows_of_a_model_without_batches_wait_with_xais_words_and_none_fails(desk: Desk) -> None:
    script(desk, "fails", message="Model grok-4.5 is not supported for batch processing.", times=2)
    job = desk.submit(plain(2))
    for _ in range(6):
        desk.later(600, job)
    assert set(desk.ends(job).values()) == {"pending"}
    assert any("is not supported for batch processing" in said for said in desk.said)
    assert desk.provider.bill()["lines"] == []
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 2)


def test_trap_x_a_failed_row_has_googles_number(desk: Desk) -> None:
    job = desk.run([*plain(2), row("bad", "context_length_exceeded"), row("once", "status:500:1")])
    assert desk.ends(job) == {**all_are("succeeded", 2), "bad": "failed: http_400", "once": "succeeded"}
    assert "maximum context length" in desk.rows(job)["bad"]["error"]["message"]


def test_trap_x_a_batch_whose_create_was_not_answered_is_found_by_its_name(desk: Desk) -> None:
    finds_a_lost_create(desk)


def test_trap_x_a_cancelled_batch_keeps_the_rows_that_ran(desk: Desk) -> None:
    script(desk, "stuck_in_progress", share=0.5)
    job = desk.submit(plain(4))
    desk.until(job, desk.batches)
    desk.later(3600, job)
    desk.cancel(job)
    desk.finish(job)
    assert sorted(desk.ends(job).values()) == ["cancelled: cancelled"] * 2 + ["succeeded"] * 2
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_x_a_batch_that_ends_between_the_look_and_the_cancel_is_collected(desk: Desk) -> None:
    script(desk, "status", status=400, verb="cancel", message="The batch is over", times=None)
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.cancel(job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)


def test_trap_x_a_batch_runs_on_behind_its_24_hours(desk: Desk) -> None:
    script(desk, "turnaround", seconds=1.5 * DAY)
    job = desk.run(plain(2))
    assert desk.ends(job) == all_are("succeeded", 2)
    assert len(desk.batches()) == 1


@pytest.mark.long
def test_trap_x_a_page_that_breaks_off_or_is_refused_is_read_again(desk: Desk) -> None:
    script(desk, "cut_body", verb="results", share=0.5, nth=2)
    script(desk, "status", verb="results", status=429, nth=4)
    job = desk.run(plain(250))
    assert desk.ends(job) == all_are("succeeded", 250)
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_x_thoughts_beside_the_answer_are_paid_once(desk: Desk) -> None:
    job = desk.run([row("r0", "reasoning_outside")])
    assert desk.ends(job) == {"r0": "succeeded"}
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_x_a_key_that_is_not_accepted_comes_with_400_and_costs_no_row(desk: Desk) -> None:
    desk.provider.settings(accounts={"another": "org"})
    job = desk.submit(plain(2))
    desk.settle(job)
    assert desk.provider.bill()["lines"] == []
    desk.provider.settings(accounts={})
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 2)
