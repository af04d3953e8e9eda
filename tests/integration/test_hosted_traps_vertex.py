"""What is otherwise at Vertex AI, through the whole pipeline."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.integration.test_canary_hosted import job_file, texts
from tests.support.hostedjob import HOUR, Desk, Json, all_are, cost_of, finds_a_lost_create, plain, row, script

ECHOES = ("sent", "nulls", "snakes", "defaults")


@pytest.fixture(autouse=True)
def vertex(desk: Desk) -> None:
    desk.backend("vertex")


def same(custom_id: str, text: str = "of all", **body: Any) -> Json:
    """A row whose request is that of others: its user is not sent."""
    return row(custom_id, user=custom_id, messages=[{"role": "user", "content": text}], **body)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("echo", ECHOES)
def test_trap_k_rows_are_found_by_their_requests_however_these_are_echoed(desk: Desk, echo: str) -> None:
    desk.provider.settings(echoes=[echo])
    schema = {"type": "object", "properties": {"end_date": {"type": ["string", "null"]}, "n": {"type": "number"}}}
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    lines = [
        row("with spaces", temperature=0.7, stop=["A_b"]),
        row("ünïcode 行", temperature=1, response_format=asked),
        row("Case", messages=[{"role": "user", "content": "Once?"}]),
        row("case", messages=[{"role": "user", "content": "once?"}]),
        row("picture", messages=[{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA-_"}}, {"type": "text", "text": "?"},
        ]}]),
    ]  # fmt: skip
    job = desk.run(lines)
    assert desk.ends(job) == {line["custom_id"]: "succeeded" for line in lines}
    assert desk.rows(job)["Case"]["output"] != desk.rows(job)["case"]["output"]
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert desk.files() == []
    assert desk.provider.refused() == []


def test_trap_k_equal_requests_share_their_answers_each_one_row(desk: Desk) -> None:
    job = desk.run([same("a"), same("b"), same("c"), *plain(2)])
    assert desk.ends(job) == {"a": "succeeded", "b": "succeeded", "c": "succeeded", **all_are("succeeded", 2)}
    assert sum(desk.billed().values()) == 5
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_k_of_equal_requests_an_answer_is_for_another_row_than_a_failure(desk: Desk) -> None:
    script(desk, "rows", verb="create", row="status:500", lines=[1])
    job = desk.run([same("a"), same("b")])
    assert desk.ends(job) == {"a": "succeeded", "b": "succeeded"}
    assert [batch["rows"] for batch in desk.batches()] == [2, 1]
    assert sum(desk.billed().values()) == 2
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.long
def test_trap_k_of_equal_requests_one_without_an_answer_is_sent_again(desk: Desk) -> None:
    script(desk, "rows", verb="create", row="never_ran", lines=[2])
    job = desk.run([same("a"), same("b"), same("c")])
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert sorted(batch["rows"] for batch in desk.batches()) == [1, 3]
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.soak
def test_trap_k_an_echo_that_may_be_of_several_requests_is_given_to_none(desk: Desk) -> None:
    desk.provider.settings(echoes=["snakes"])
    job = desk.run([*plain(2), same("a", stop=["X"]), same("b", stop=["x"])])
    ends = desk.ends(job)
    assert {name: ends[name] for name in ("r0", "r1")} == all_are("succeeded", 2)
    assert {ends["a"], ends["b"]} == {"failed: unrecognised_id"}
    assert "of no row: request" in str(desk.rows(job)["a"])


@pytest.mark.long
def test_trap_k_a_result_of_no_request_is_told_and_others_are_kept(desk: Desk) -> None:
    job = desk.run([*plain(3), row("odd", "id_null:1"), row("two", "unknown_id")])
    assert desk.ends(job) == {**all_are("succeeded", 3), "odd": "succeeded", "two": "succeeded"}
    assert sorted(desk.billed().values()) == [1, 1, 1, 1, 2]


def test_trap_k_a_result_that_comes_twice_is_booked_once(desk: Desk) -> None:
    job = desk.run([row("r0", "duplicate"), row("r1", "fails_first"), *plain(3)[2:]])
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert len(desk.batches()) == 1


def test_trap_k_a_job_whose_create_was_not_answered_is_found_by_the_place_of_its_results(desk: Desk) -> None:
    finds_a_lost_create(desk)


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("share", [0.5, 0.0])
def test_trap_k_a_job_that_ends_early_keeps_its_answers_and_the_others_are_sent_again(
    desk: Desk, share: float
) -> None:
    script(desk, "expires", share=share)
    job = desk.run(plain(4))
    assert desk.ends(job) == all_are("succeeded", 4)
    assert [batch["rows"] for batch in desk.batches()] == [4, 4 - int(4 * share)]
    assert desk.states(job) == ["collected (expired)", "collected (completed)"]
    assert set(desk.attempts(job).values()) == {1}
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_k_errors_stand_in_the_status_of_results(desk: Desk) -> None:
    job = desk.run([*plain(2), row("bad", "status:400"), row("late", "status:503:1"), row("odd", "status:0:1")])
    ends = {**all_are("succeeded", 2), "bad": "failed: http_400", "late": "succeeded", "odd": "succeeded"}
    assert desk.ends(job) == ends
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_k_a_job_that_succeeds_and_all_of_whose_rows_failed_is_no_success(desk: Desk) -> None:
    job = desk.submit([row(f"r{number}", "status:400") for number in range(3)])
    desk.settle(job)
    desk.later(HOUR, job)
    assert desk.states(job) == ["collected (completed)"]
    assert "refuses all rows of" in desk.said[-1]
    assert desk.cost(job) == 0


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", ["late_output_id", "late_content"])
def test_trap_k_results_that_are_late_in_the_bucket_are_waited_for(desk: Desk, fault: str) -> None:
    script(desk, fault, verb="create", seconds=5000.0)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1


@pytest.mark.thinned(2)
@pytest.mark.parametrize("code", ["7", "9"])
def test_trap_k_a_bucket_that_the_service_agent_may_not_use_costs_no_row(desk: Desk, code: str) -> None:
    script(desk, "fails", verb="create", code=code, message="Failed to get GCS bucket location for night.")
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.later(HOUR, job)
    assert "the account is not permitted to do this" in desk.held(job)[0]
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert set(desk.attempts(job).values()) == {1}


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("code", ["8", "13", "14"])
def test_trap_k_a_job_that_failed_for_no_fault_of_its_rows_is_sent_again(desk: Desk, code: str) -> None:
    script(desk, "fails", verb="create", code=code, message="System error. Please try this operation again.")
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 2


@pytest.mark.thinned(3)
@pytest.mark.parametrize("verb", ["create", "retrieve", "upload", "content", "files"])
def test_trap_k_an_exhausted_quota_of_calls_is_waited_out(desk: Desk, verb: str) -> None:
    script(desk, "status", verb=verb, status=429, times=3)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("verb", "status"),
    [("upload", 403), ("upload", 404), ("content", 403), ("files", 404), ("retrieve", 401), ("create", 401),
     ("create", 403)],
)  # fmt: skip
def test_trap_k_refused_credentials_and_rights_hold_a_job_and_cost_no_row(desk: Desk, verb: str, status: int) -> None:
    script(desk, "status", verb=verb, status=status, times=4)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert set(desk.attempts(job).values()) == {1}
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_k_a_token_of_another_project_sends_nothing(desk: Desk) -> None:
    desk.backend("vertex", project="another-project")
    job = desk.submit(plain(3))
    desk.settle(job)
    assert desk.batches() == []
    assert "Permission" in desk.held(job)[0]


def test_trap_k_a_field_without_counterpart_is_named_and_its_row_costs_nothing(desk: Desk) -> None:
    far = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]
    lines = [*plain(2), row("odd", logit_bias={"5": 1}), row("far", messages=far), row("kept", cachedContent="c")]
    job = desk.run(lines)
    assert Counter(desk.ends(job).values()) == {"succeeded": 2, "failed: unsupported_parameter": 3}
    assert "cachedContent" in desk.rows(job)["kept"]["error"]["message"]
    assert [batch["rows"] for batch in desk.batches()] == [2]


def test_trap_k_a_schema_that_cannot_be_imported_is_named_before_it_fails_a_whole_job(desk: Desk) -> None:
    def asked(schema: Json) -> Json:
        return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}

    part = {"type": "object", "properties": {"n": {"type": ["integer", "null"]}, "k": {"enum": ["a", None]}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    referring = {"$schema": "x", "$defs": {"P": part}, "type": "object", "properties": {"p": {"$ref": "#/$defs/P"}}}
    itself = {"type": "object", "properties": {"p": {"$ref": "#"}}}
    job = desk.run(
        [
            *plain(2),
            row("refers", response_format=asked(referring)),
            row("tool", tools=[tool]),
            row("spaces", response_format=asked({"type": "object", "properties": {"a b": {"type": "string"}}})),
            row("itself", response_format=asked(itself)),
        ]
    )
    assert Counter(desk.ends(job).values()) == {"succeeded": 4, "failed: unsupported_parameter": 2}
    assert "response_format" in desk.rows(job)["spaces"]["error"]["message"]
    assert len(desk.batches()) == 1


def test_trap_k_one_row_is_asked_first_at_the_synchronous_endpoint(desk: Desk) -> None:
    desk.backend("vertex", preflight=True)
    job = desk.run(plain(30))
    assert desk.ends(job) == all_are("succeeded", 30)
    assert desk.provider.calls("chat") == {200: 1}


def test_trap_k_caches_and_thoughts_are_counted_as_they_are_billed(desk: Desk) -> None:
    job = desk.run([row("r0", "cached"), row("r1", "reasoning"), row("r2", "reasoning_outside")])
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_k_a_job_file_runs_with_its_schema(desk: Desk) -> None:
    job = desk.run(job_file(desk, texts(3)))
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.provider.refused() == []
    assert desk.cost(job) == cost_of(desk.provider.bill())
