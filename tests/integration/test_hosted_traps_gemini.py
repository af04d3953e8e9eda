"""What is otherwise at Gemini, through the whole pipeline."""

from __future__ import annotations

import pytest

from tests.support.hostedjob import Desk, all_are, cost_of, finds_a_lost_create, plain, row, script


@pytest.fixture(autouse=True)
def gemini(desk: Desk) -> None:
    desk.backend("gemini")


def test_trap_i_rows_come_back_under_their_keys_and_files_go(desk: Desk) -> None:
    ids = ["with spaces", "ünïcode 行", "x" * 100, "a/b?c=d"]
    job = desk.run([row(name) for name in ids])
    assert desk.ends(job) == dict.fromkeys(ids, "succeeded")
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert not [file for file in desk.provider.state()["files"] if file["is_there"]]


def test_trap_i_a_batch_whose_create_was_not_answered_is_found_by_its_name(desk: Desk) -> None:
    finds_a_lost_create(desk)


@pytest.mark.long
def test_trap_i_a_batch_that_the_list_shows_is_ours_although_nobody_can_read_it_by_its_name(desk: Desk) -> None:
    script(desk, "cut_after", verb="create")
    desk.provider.script({"do": "odd_metadata", "match": {"verb": "retrieve"}, "times": None})
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1


@pytest.mark.long
def test_trap_i_a_batch_that_expires_has_no_results_and_its_rows_are_sent_again(desk: Desk) -> None:
    script(desk, "expires", share=0.5)
    job = desk.run(plain(4))
    assert desk.ends(job) == all_are("succeeded", 4)
    assert [batch["rows"] for batch in desk.batches()] == [4, 4]
    assert desk.states(job) == ["collected (expired)", "collected (completed)"]
    assert set(desk.attempts(job).values()) == {1}


def test_trap_i_errors_stand_among_the_results_by_the_numbers_of_rpc(desk: Desk) -> None:
    job = desk.run([*plain(2), row("bad", "status:400"), row("late", "status:503:1")])
    assert desk.ends(job) == {**all_are("succeeded", 2), "bad": "failed: http_400", "late": "succeeded"}
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_i_a_field_without_counterpart_is_named_and_its_row_costs_nothing(desk: Desk) -> None:
    far = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]
    job = desk.run([*plain(2), row("odd", logit_bias={"5": 1}), row("far", messages=far)])
    ends = desk.ends(job)
    assert ends == {
        **all_are("succeeded", 2),
        "odd": "failed: unsupported_parameter",
        "far": "failed: unsupported_parameter",
    }
    assert "logit_bias" in desk.rows(job)["odd"]["error"]["message"]
    assert [batch["rows"] for batch in desk.batches()] == [2]


@pytest.mark.soak
def test_trap_i_a_job_of_refused_rows_alone_makes_no_batch(desk: Desk) -> None:
    job = desk.run([row("r0", logit_bias={"5": 1}), row("r1", logit_bias={"5": 1})], deadline="6h")
    assert desk.ends(job) == all_are("failed: unsupported_parameter", 2)
    assert desk.batches() == []
    assert desk.cost(job) == 0


def test_trap_i_thoughts_are_paid_as_part_of_the_answer(desk: Desk) -> None:
    job = desk.run([row("r0", "reasoning"), row("r1", "cached")])
    assert desk.ends(job) == {"r0": "succeeded", "r1": "succeeded"}
    assert desk.rows(job)["r0"]["provenance"]["tokens"]["reasoning"] > 0
    assert desk.cost(job) == cost_of(desk.provider.bill())
