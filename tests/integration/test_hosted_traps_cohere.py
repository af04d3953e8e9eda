"""What is otherwise at Cohere, through the whole pipeline."""

from __future__ import annotations

import json

import pytest

from tests.support.hostedjob import (
    DAY,
    HOUR,
    MINUTE,
    Desk,
    all_are,
    cost_of,
    finds_a_lost_create,
    plain,
    row,
    script,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


@pytest.fixture(autouse=True)
def cohere(desk: Desk) -> None:
    desk.backend("cohere")


def test_trap_n_answers_are_avro_files_and_both_datasets_go(desk: Desk) -> None:
    ids = ["with spaces", "ünïcode 行", "x" * 100, "a/b?c=d"]
    job = desk.run([row(name) for name in ids])
    assert desk.ends(job) == dict.fromkeys(ids, "succeeded")
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert not desk.files()


def test_trap_n_a_batch_whose_create_was_not_answered_is_found_by_its_name(desk: Desk) -> None:
    finds_a_lost_create(desk)


@pytest.mark.long
def test_trap_n_a_list_that_begins_with_the_oldest_is_read_to_its_end(desk: Desk) -> None:
    for number in range(3):
        desk.run([row(f"earlier{number}")])
        desk.provider.clock.advance(2 * DAY)
    script(desk, "cut_after", verb="create")
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 4
    assert set(desk.billed().values()) == {1}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seconds", [90.0, 1500.0])
def test_trap_n_a_dataset_is_validated_before_its_batch_is_created(desk: Desk, seconds: float) -> None:
    script(desk, "late_upload", verb="upload", seconds=seconds)
    job = desk.submit(plain(3))
    desk.settle(job)
    assert desk.provider.calls("create") == {}
    assert any("is not validated yet" in said for said in desk.held(job))
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.provider.calls("upload") == desk.provider.calls("create") == {200: 1}
    assert set(desk.attempts(job).values()) == {1}


def test_trap_n_a_dataset_that_cannot_be_looked_at_costs_no_attempt(desk: Desk) -> None:
    script(desk, "cut_before", verb="file", times=2)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.provider.calls("create") == {200: 1}
    assert set(desk.attempts(job).values()) == {1}


def test_trap_n_a_dataset_whose_validation_hangs_is_uploaded_again(desk: Desk) -> None:
    script(desk, "late_upload", verb="upload", seconds=DAY)
    job = desk.submit(plain(3))
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.provider.calls("upload") == {200: 2}
    assert sorted(desk.billed().values()) == [1] * 3


def test_trap_n_a_failed_row_has_words_and_no_status(desk: Desk) -> None:
    job = desk.run([*plain(2), row("bad", "context_length_exceeded"), row("once", "status:500:1")])
    assert desk.ends(job) == {**all_are("succeeded", 2), "bad": "failed: http_400", "once": "succeeded"}
    assert "maximum context length" in desk.rows(job)["bad"]["error"]["message"]


def test_trap_n_records_that_come_twice_are_one_row_each(desk: Desk) -> None:
    job = desk.run([*plain(8), row("twice", "duplicate"), row("again", "duplicate")])
    assert desk.ends(job) == {**all_are("succeeded", 8), "twice": "succeeded", "again": "succeeded"}
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_n_a_preamble_is_counted_and_not_billed(desk: Desk) -> None:
    job = desk.run([row("r0"), row("r1", "cached")])
    assert desk.ends(job) == all_are("succeeded", 2)
    assert desk.cost(job) == cost_of(desk.provider.bill()) > 0


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "fault", [{"do": "short_body", "share": 0.6}, {"do": "cut_body", "share": 0.9}, {"do": "status", "status": 403}]
)
def test_trap_n_an_avro_file_that_breaks_off_is_read_again(desk: Desk, fault: dict[str, object]) -> None:
    desk.provider.script({**fault, "match": {"verb": "content"}, "times": 1})
    job = desk.run(plain(50))
    assert desk.ends(job) == all_are("succeeded", 50)
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.long
def test_trap_n_half_a_record_at_the_end_loses_its_row_alone(desk: Desk) -> None:
    script(desk, "cut_tail", verb="create")
    job = desk.run(plain(5))
    assert desk.ends(job) == all_are("succeeded", 5)
    assert [batch["rows"] for batch in desk.batches()] == [5, 1]


def test_trap_n_a_schema_stands_in_the_prompt(desk: Desk) -> None:
    (desk.folder / "documents").mkdir()
    (desk.folder / "documents" / "d.txt").write_text("Party 1 pays 100 EUR.")
    task = {"id": "t", "prompt": "Who pays?", "model": "small", "max_tokens": 90, "schema": SCHEMA}
    spec = {"name": "k", "documents": "documents", "tasks": [task], "models": {"small": {"cohere": "m"}}}
    path = desk.folder / "job.yaml"
    path.write_text(json.dumps(spec), encoding="utf-8")
    job = desk.run(path)
    assert [sorted(found["output"]) for found in desk.rows(job).values()] == [["a"]]
    assert desk.provider.refused() == []


@pytest.mark.parametrize("field", [{"stop": ["."]}, {"response_format": {"type": "json_object"}}, {"n": 2}])
def test_trap_n_a_row_with_a_field_that_batches_lack_is_not_sent_and_costs_nothing(
    desk: Desk, field: dict[str, object]
) -> None:
    job = desk.run([*plain(2), row("odd", **field)])
    assert desk.ends(job) == {**all_are("succeeded", 2), "odd": "failed: unsupported_parameter"}
    assert next(iter(field)) in desk.rows(job)["odd"]["error"]["message"]
    assert [batch["rows"] for batch in desk.batches()] == [2]


def test_trap_n_a_cancelled_batch_keeps_the_rows_that_ran(desk: Desk) -> None:
    script(desk, "stuck_in_progress", share=0.5)
    job = desk.submit(plain(4))
    desk.until(job, desk.batches)
    desk.later(HOUR, job)
    desk.cancel(job)
    desk.finish(job)
    assert sorted(desk.ends(job).values()) == ["cancelled: cancelled"] * 2 + ["succeeded"] * 2
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_n_a_batch_that_ends_between_the_look_and_the_cancel_is_collected(desk: Desk) -> None:
    script(desk, "status", status=400, verb="cancel", message="batch cannot be canceled", times=None)
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.cancel(job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)


@pytest.mark.long
def test_trap_n_rows_of_a_batch_that_is_refused_as_a_whole_wait_with_coheres_words_and_none_fails(desk: Desk) -> None:
    script(desk, "fails", message="model m is not available for batches", times=2)
    job = desk.submit(plain(2))
    for _ in range(6):
        desk.later(10 * MINUTE, job)
    assert set(desk.ends(job).values()) == {"pending"}
    assert any("is not available for batches" in said for said in desk.said)
    assert desk.provider.bill()["lines"] == []
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 2)


def test_trap_n_a_batch_runs_on_for_days(desk: Desk) -> None:
    script(desk, "turnaround", seconds=2.5 * DAY)
    job = desk.run(plain(2))
    assert desk.ends(job) == all_are("succeeded", 2)
    assert len(desk.batches()) == 1


def test_trap_n_answers_whose_dataset_is_not_ready_are_waited_for(desk: Desk) -> None:
    script(desk, "late_content", verb="create", seconds=20 * MINUTE)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())
