"""The provider that misbehaves, as OpenAI: its batches, files and calls, seen through the official SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.emulator.client import Emulator
from tests.emulator.driving import DAY, HOUR, Customer, chat_line, chat_lines, ids

PARTS = [{"type": "input_text", "text": "x"}]
SIX = [f"document {number}" for number in range(6)]


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "provider") as emulator:
        yield emulator


@pytest.fixture
def customer(provider: Emulator) -> Iterator[Customer]:
    customer = Customer(provider, provider.url_openai)
    yield customer
    customer.close()


def of_batch(provider: Emulator, do: str, **options: Any) -> None:
    provider.script({"do": do, **options})


class TestLife:
    def test_a_batch_goes_through_its_stages_by_the_clock_alone(self, provider: Emulator, customer: Customer) -> None:
        provider.settings(validating_s=[10, 10], turnaround_s=[100, 100], finalizing_s=[10, 10])
        batch = customer.create(chat_lines(*SIX), metadata={"job": "7"})
        assert (batch.status, batch.metadata) == ("validating", {"job": "7"})
        assert batch.expires_at == batch.created_at + DAY
        seen = [customer.later(batch, seconds) for seconds in (5, 55, 55, 10)]
        assert [one.status for one in seen] == ["validating", "in_progress", "finalizing", "completed"]
        assert [one.request_counts.completed for one in seen if one.request_counts] == [0, 3, 6, 6]
        ended = seen[-1]
        assert ended.completed_at == batch.created_at + 120
        assert (ended.model, ended.error_file_id) == ("m", None)

    def test_answers_are_the_same_whenever_they_are_read(self, customer: Customer) -> None:
        first, second = (customer.run(chat_lines(*SIX)) for _ in range(2))
        answers = [
            [row["response"]["body"]["choices"] for row in customer.rows(batch.output_file_id)]
            for batch in (first, second)
        ]
        assert answers[0] == answers[1]
        assert customer.read(first.output_file_id) == customer.read(first.output_file_id)

    def test_usage_and_bill_agree_with_the_rows(self, provider: Emulator, customer: Customer) -> None:
        batch = customer.run(chat_lines(*SIX, "[[fault:cached]] and [[fault:reasoning]]", max_tokens=7))
        usages = [row["response"]["body"]["usage"] for row in customer.rows(batch.output_file_id)]
        sums = {
            "input": sum(usage["prompt_tokens"] for usage in usages),
            "output": sum(usage["completion_tokens"] for usage in usages),
            "cached": sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages),
            "reasoning": sum(usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages),
        }
        assert all(usage["completion_tokens"] <= 7 for usage in usages)
        assert sums["cached"] == 5, "half of the 40 bytes that make 10 tokens"
        assert sums["reasoning"] > 0
        line = {"flavour": "openai", "model": "m", "tier": "batch", "rows": 7, "cache_write": 0, **sums}
        assert provider.bill()["lines"] == [line]
        assert batch.usage is not None
        assert (batch.usage.input_tokens, batch.usage.output_tokens) == (sums["input"], sums["output"])
        assert provider.bill(rows=True)["rows"] == dict.fromkeys([f"r{number}" for number in range(7)], 1)

    @pytest.mark.parametrize(
        ("endpoint", "body", "tokens"),
        [
            ("/v1/responses", {"input": "some text", "instructions": "be kind"}, "input_tokens"),
            (
                "/v1/responses",
                {"input": [{"role": "user", "content": PARTS}]},
                "input_tokens",
            ),
            ("/v1/embeddings", {"input": ["one", "two"]}, "prompt_tokens"),
            ("/v1/embeddings", {"input": [1, 2, 3]}, "prompt_tokens"),
        ],
        ids=["responses", "responses-parts", "embeddings", "embedding-of-tokens"],
    )
    def test_other_endpoints_answer_in_their_own_shape(
        self, customer: Customer, endpoint: str, body: dict[str, Any], tokens: str
    ) -> None:
        line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": "m", **body}}
        batch = customer.run([line], endpoint=endpoint)
        [row] = customer.rows(batch.output_file_id)
        assert row["response"]["body"]["usage"][tokens] > 0
        assert batch.usage is not None
        assert batch.usage.input_tokens == row["response"]["body"]["usage"][tokens]

    def test_an_answer_fits_the_schema_that_is_asked_for(self, customer: Customer) -> None:
        schema = {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "pages": {"type": "integer"}}}
        wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        batch = customer.run([chat_line("a", "x", response_format=wanted)])
        [row] = customer.rows(batch.output_file_id)
        answer = json.loads(row["response"]["body"]["choices"][0]["message"]["content"])
        assert answer["kind"] in ("a", "b")
        assert isinstance(answer["pages"], int)

    def test_listing_is_newest_first_and_in_pages(self, customer: Customer) -> None:
        made = [customer.create(chat_lines("x")).id for _ in range(5)]
        assert [batch.id for batch in customer.api.batches.list(limit=2)] == made[::-1]
        with pytest.raises(openai.BadRequestError):
            customer.api.batches.list(limit=101)

    def test_files_are_listed_read_and_deleted(self, customer: Customer) -> None:
        batch = customer.run(chat_lines("x"))
        listed = list(customer.api.files.list(limit=1))
        assert [file.id for file in listed] == [batch.output_file_id, batch.input_file_id]
        assert listed[0].bytes == len(customer.read(batch.output_file_id))
        assert [file.id for file in customer.api.files.list(purpose="batch", order="asc")] == [batch.input_file_id]
        assert customer.api.files.delete(batch.input_file_id).deleted
        assert ids(customer.rows(batch.output_file_id)) == ["r0"], "a batch outlives its input"
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            customer.api.files.retrieve(batch.input_file_id)

    def test_files_are_gone_when_they_expire(self, provider: Emulator, customer: Customer) -> None:
        batch = customer.create(chat_lines("x"), output_expires_after={"anchor": "created_at", "seconds": 3600})
        ended = customer.later(batch)
        assert customer.read(ended.output_file_id)
        provider.clock.advance(2 * HOUR)
        with pytest.raises(openai.NotFoundError):
            customer.read(ended.output_file_id)
        provider.clock.advance(31 * DAY)
        assert not customer.api.files.list().data

    def test_both_spellings_of_expires_after_are_read(self, provider: Emulator, customer: Customer) -> None:
        file = customer.api.files.create(
            file=("a.jsonl", b"{}"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert file.expires_at == file.created_at + 3600
        dotted = customer.api.post(
            "/files",
            cast_to=openai.types.FileObject,
            body={"purpose": "batch", "expires_after.anchor": "created_at", "expires_after.seconds": "7200"},
            files={"file": ("b.jsonl", b"{}")},
            options={"headers": {"Content-Type": "multipart/form-data"}},
        )
        assert dotted.expires_at == dotted.created_at + 7200

    def test_another_key_sees_nothing_of_it(self, provider: Emulator, customer: Customer) -> None:
        """hindsight#3691: a batch that is polled with the wrong key."""
        batch = customer.create(chat_lines("x"))
        other = Customer(provider, provider.url_openai, "sk-b")
        with pytest.raises(openai.NotFoundError, match=f"No batch found with id '{batch.id}'"):
            other.api.batches.retrieve(batch.id)
        assert not other.api.batches.list().data
        answer = other.api.models.with_raw_response.list()
        assert (
            answer.headers["openai-organization"]
            != customer.api.models.with_raw_response.list().headers["openai-organization"]
        )
        provider.settings(accounts={"sk-a": "org-1", "sk-c": "org-1"})
        with pytest.raises(openai.AuthenticationError) as refused:
            other.api.models.list()
        assert refused.value.code == "invalid_api_key"
        other.close()


KEY = {"Authorization": "Bearer sk-a"}
CREATE = {"input_file_id": "file-x", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.mark.parametrize(
    ("changed", "param", "code"),
    [
        ({"input_file_id": None}, "input_file_id", "missing_required_parameter"),
        ({"endpoint": "/v1/x"}, "endpoint", "invalid_value"),
        ({"completion_window": "1h"}, "completion_window", "invalid_value"),
        ({"metadata": []}, "metadata", "invalid_type"),
        ({"metadata": {"tags": []}}, "metadata.tags", "invalid_type"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata", None),
        ({"output_expires_after": {"anchor": "then"}}, "output_expires_after.anchor", "invalid_value"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 60}},
            "output_expires_after.seconds",
            "invalid_value",
        ),
    ],
)
def test_create_refuses(customer: Customer, changed: dict[str, Any], param: str, code: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        customer.api.post("/batches", cast_to=object, body=CREATE | changed)
    assert (refused.value.param, refused.value.code) == (param, code)


@pytest.mark.parametrize(
    ("name", "content", "purpose", "status"),
    [
        ("a.txt", b"{}", "batch", 400),
        ("a.jsonl", b"no lines", "batch", 400),
        ("a.jsonl", b"{}", "nonsense", 400),
        ("a.txt", b"no lines", "user_data", 200),
        ("a.jsonl", b'{"custom_id": "keys are missing"}', "batch", 200),
    ],
)
def test_upload_checks_little(customer: Customer, name: str, content: bytes, purpose: Any, status: int) -> None:
    form = {"purpose": purpose}
    answer = httpx2.post(f"{customer.api.base_url}files", headers=KEY, data=form, files={"file": (name, content)})
    assert answer.status_code == status


GOOD = chat_line("good", "x")


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b'{"custom_id": ', "invalid_json_line", None),
        ({**GOOD, "custom_id": None}, "missing_required_parameter", "custom_id"),
        ({**GOOD, "custom_id": 7}, "invalid_request", "custom_id"),
        ({**GOOD, "method": "GET"}, "invalid_request", "method"),
        ({**GOOD, "url": "/v1/embeddings", "custom_id": "b"}, "invalid_url", "url"),
        (GOOD, "duplicate_custom_id", "custom_id"),
        (chat_line("b", "x", "other"), "mismatched_model", "body.model"),
        (chat_line("b", "x", "unknown"), "model_not_found", "body.model"),
        (chat_line("b", "x", ""), "invalid_request", "body.model"),
        (chat_line("b", "x", messages=None), "invalid_request", "body.messages"),
        (chat_line("b", "x", stream=True), "streaming_unsupported", "body.stream"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_line_errors_fail_the_batch(
    provider: Emulator, customer: Customer, bad: Any, code: str, param: str | None
) -> None:
    provider.settings(models=["m", "other"])
    batch = customer.run([GOOD, b"", bad, b"no JSON"])
    assert batch.status == "failed"
    assert batch.errors is not None
    told = [(one.code, one.param, one.line) for one in batch.errors.data or ()]
    assert told == [(code, param, 3), ("invalid_json_line", None, 4)]
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert batch.request_counts is not None
    assert batch.request_counts.total == 0
    assert provider.bill()["lines"] == []


def test_what_is_wrong_with_the_whole_file(provider: Emulator, customer: Customer) -> None:
    too_many = [chat_line(str(number), "x") for number in range(50_001)]
    inputs = {"model": "m", "input": ["x"] * 50_001}
    embeddings = [{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": inputs}]
    unknown = customer.api.batches.create(**{**CREATE, "input_file_id": "file-x"})  # type: ignore[arg-type]
    batches = [
        customer.later(unknown),
        customer.run([b"", b"  "]),
        customer.run(too_many),
        customer.run(embeddings, endpoint="/v1/embeddings"),
    ]
    told = [(batch.errors.data or [])[0] for batch in batches if batch.errors]
    assert [one.code for one in told] == ["invalid_request", "empty_file", "too_many_tasks", "too_many_tasks"]
    assert told[0].message is not None
    assert told[0].message.startswith("Cannot find file file-x, or organization org-")


ROW_FAULTS: list[tuple[str, list[int], list[int], int]] = [
    # what the row asks for, statuses in the output file, in the error file, and how often it is billed
    ("status:400", [], [400], 0),
    ("status:429", [], [429], 0),
    ("status:500", [], [500], 0),
    ("status:503", [], [503], 0),
    ("status:0", [0], [], 0),
    ("content_filter", [], [400], 0),
    ("context_length_exceeded", [], [400], 0),
    ("insufficient_quota", [], [429], 0),
    ("expired", [], [-1], 0),
    ("cancelled", [], [-1], 0),
    ("missing", [], [], 1),
    ("never_ran", [], [], 0),
    ("duplicate", [200, 200], [], 1),
    ("both_files", [200], [200], 1),
    ("length", [200], [], 1),
    ("filtered", [200], [], 1),
    ("body_string", [200], [], 1),
    ("status:429]][[fault:in_output", [429], [], 0),
    ("status:400]][[fault:body_string", [], [400], 0),
]


@pytest.mark.parametrize(
    ("fault", "output", "errors", "billed"),
    ROW_FAULTS,
    ids=[fault.replace("]][[fault:", "+") for fault, *_ in ROW_FAULTS],
)
def test_what_becomes_of_a_row(
    provider: Emulator, customer: Customer, fault: str, output: list[int], errors: list[int], billed: int
) -> None:
    batch = customer.run([chat_line("good", "x"), chat_line("bad", f"y [[fault:{fault}]]")])
    assert batch.status == "completed"

    def statuses(file_id: str | None) -> list[int]:
        rows = [row for row in customer.rows(file_id) if row["custom_id"] == "bad"]
        return [(row["response"] or {"status_code": -1})["status_code"] for row in rows]

    assert (statuses(batch.output_file_id), statuses(batch.error_file_id)) == (output, errors)
    assert provider.bill(rows=True)["rows"].get("bad", 0) == billed
    assert batch.request_counts is not None
    has_failed = any(status >= 400 or status == -1 for status in (*output, *errors))
    assert (batch.request_counts.completed, batch.request_counts.failed) == ((1, 1) if has_failed else (2, 0))


def _bad_row(customer: Customer, fault: str) -> dict[str, Any]:
    batch = customer.run([chat_line("bad", f"y [[fault:{fault}]]")])
    [row] = [*customer.rows(batch.output_file_id), *customer.rows(batch.error_file_id)]
    return row


class TestRowsInDetail:
    def test_an_error_row_has_its_error_in_the_body_and_none_beside_it(self, customer: Customer) -> None:
        row = _bad_row(customer, "context_length_exceeded")
        assert row["error"] is None
        assert set(row["response"]["body"]["error"]) == {"message", "type", "param", "code"}
        assert row["response"]["body"]["error"]["code"] == "context_length_exceeded"

    def test_an_expired_row_has_no_response(self, customer: Customer) -> None:
        row = _bad_row(customer, "expired")
        assert row["response"] is None
        assert row["error"]["code"] == "batch_expired"

    def test_a_body_may_be_a_json_string(self, customer: Customer) -> None:
        assert json.loads(_bad_row(customer, "body_string")["response"]["body"])["object"] == "chat.completion"

    def test_a_reasoning_model_cut_by_length_has_an_empty_content(self, customer: Customer) -> None:
        [choice] = _bad_row(customer, "length")["response"]["body"]["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")

    def test_reasoning_may_be_left_out_of_completion_tokens(self, customer: Customer) -> None:
        usage = _bad_row(customer, "reasoning_outside")["response"]["body"]["usage"]
        reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] + reasoning
        assert reasoning > 0

    def test_a_forced_tool_is_called_with_arguments_that_fit(self, customer: Customer) -> None:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        tools = [{"type": "function", "function": {"name": "keep", "parameters": schema}}]
        for choice in ("required", {"type": "function", "function": {"name": "keep"}}):
            batch = customer.run([chat_line("a", "x", tools=tools, tool_choice=choice)])
            [row] = customer.rows(batch.output_file_id)
            [said] = row["response"]["body"]["choices"]
            assert said["finish_reason"] == "tool_calls"
            assert set(json.loads(said["message"]["tool_calls"][0]["function"]["arguments"])) == {"name"}

    def test_lines_may_be_broken_or_of_nobody(self, customer: Customer) -> None:
        texts = ["a [[fault:broken_line]]", "b [[fault:unknown_id]]", "c"]
        batch = customer.run(chat_lines(*texts))
        content = customer.read(batch.output_file_id)
        assert len(content.splitlines()) == 4
        assert ids(customer.rows(batch.output_file_id)) == ["r1", "nobody-asked-for-this-r1", "r2"]

    def test_a_fault_may_hold_for_a_number_of_tries(self, provider: Emulator, customer: Customer) -> None:
        lines = chat_lines("x [[fault:status:429:2]]")
        batches = [customer.run(lines) for _ in range(3)]
        assert [batch.output_file_id is not None for batch in batches] == [False, False, True]
        assert provider.bill()["lines"][0]["rows"] == 1

    def test_a_custom_id_comes_back_as_it_was(self, customer: Customer) -> None:
        name = 'ä "quoted" \\ ' + "x" * 120
        batch = customer.run([chat_line(name, "x")])
        assert ids(customer.rows(batch.output_file_id)) == [name]


class TestBatchFaults:
    def test_completed_plus_failed_is_total_where_all_rows_fail(self, provider: Emulator, customer: Customer) -> None:
        """BerriAI/litellm#34067: a batch whose rows all failed has no output file."""
        of_batch(provider, "rows", row="status:400")
        batch = customer.run(chat_lines(*SIX))
        assert (batch.status, batch.output_file_id) == ("completed", None)
        assert batch.request_counts is not None
        assert batch.request_counts.failed == 6
        assert len(customer.rows(batch.error_file_id)) == 6

    def test_faults_of_rows_by_line_and_by_share(self, provider: Emulator, customer: Customer) -> None:
        of_batch(provider, "rows", row="missing", lines=[2, 99])
        batch = customer.run(chat_lines(*SIX))
        assert ids(customer.rows(batch.output_file_id)) == ["r0", "r2", "r3", "r4", "r5"]
        of_batch(provider, "rows", row="status:500", share=0.3)
        batch = customer.run(chat_lines(*[str(number) for number in range(400)]))
        assert 80 < len(customer.rows(batch.error_file_id)) < 160

    def test_expired_batches_have_what_was_done_and_billed(self, provider: Emulator, customer: Customer) -> None:
        """bespokelabsai/curator#226, warmbly/warmbly#333: the rows that are done are paid."""
        of_batch(provider, "expires", share=0.5)
        batch = customer.create(chat_lines(*SIX))
        assert customer.later(batch, 12 * HOUR).status == "in_progress"
        ended = customer.later(batch, 13 * HOUR)
        assert (ended.status, ended.expired_at) == ("expired", ended.expires_at)
        assert len(customer.rows(ended.output_file_id)) == 3
        assert {row["error"]["code"] for row in customer.rows(ended.error_file_id)} == {"batch_expired"}
        assert provider.bill()["batches"][batch.id]["rows"] == 3

    def test_a_batch_may_expire_with_nothing_done(self, provider: Emulator, customer: Customer) -> None:
        of_batch(provider, "expires", share=0)
        ended = customer.later(customer.create(chat_lines(*SIX)), 25 * HOUR)
        assert (ended.status, ended.output_file_id) == ("expired", None)
        assert len(customer.rows(ended.error_file_id)) == 6

    def test_a_slow_batch_expires_too(self, provider: Emulator, customer: Customer) -> None:
        of_batch(provider, "turnaround", seconds=48 * HOUR)
        assert customer.later(customer.create(chat_lines(*SIX)), 25 * HOUR).status == "expired"

    def test_validation_fails_as_scripted(self, provider: Emulator, customer: Customer) -> None:
        of_batch(provider, "fails", code="invalid_url", message="no", lines=[2, 3])
        of_batch(provider, "fails", code="billing_hard_limit_reached", match={"nth": 2})
        told = [customer.run(chat_lines(*SIX)).errors for _ in range(2)]
        found = [[(one.code, one.line) for one in errors.data or ()] for errors in told if errors]
        assert found == [[("invalid_url", 2), ("invalid_url", 3)], [("billing_hard_limit_reached", None)]]

    def test_token_limit_exceeded_is_told_at_validation(self, provider: Emulator, customer: Customer) -> None:
        """openai/openai-python#2084; the limit counts what is enqueued, not the file."""
        provider.settings(enqueued_tokens={"m": 100}, turnaround_s=[HOUR, HOUR])
        texts = ["x" * 4 * 30] * 2
        first = customer.create(chat_lines(*texts))
        provider.clock.advance(60)
        second = customer.later(customer.create(chat_lines(*texts)), 60)
        assert (customer.api.batches.retrieve(first.id).status, second.status) == ("in_progress", "failed")
        assert second.errors is not None
        [told] = second.errors.data or ()
        assert (told.code, told.line) == ("token_limit_exceeded", None)
        assert told.message is not None
        assert told.message.startswith("Enqueued token limit reached for m in organization org-")
        assert "Limit: 100 enqueued tokens. Please try again once some in_progress" in told.message
        provider.clock.advance(2 * HOUR)
        assert customer.run(chat_lines(*texts)).status == "in_progress"

    def test_token_limit_exceeded_may_come_from_nowhere(self, provider: Emulator, customer: Customer) -> None:
        of_batch(provider, "token_limit_exceeded", limit=1_000)
        errors = customer.run(chat_lines("x")).errors
        assert errors is not None
        assert "Limit: 1,000 enqueued tokens." in str((errors.data or [])[0].message)
        assert customer.run(chat_lines("x")).status == "completed"

    def test_completed_before_output_file_id(self, provider: Emulator, customer: Customer) -> None:
        """BerriAI/litellm#37713."""
        of_batch(provider, "late_output_id", seconds=3 * HOUR)
        batch = customer.run(chat_lines("x"))
        assert (batch.status, batch.output_file_id) == ("completed", None)
        assert [file.purpose for file in customer.api.files.list()] == ["batch"]
        assert customer.rows(customer.later(batch, 3 * HOUR).output_file_id)

    def test_stuck_batches_stay_where_they_are(self, provider: Emulator, customer: Customer) -> None:
        """openclaw#88238: an hour in validating; doublewordai/control-layer#159: queued or hung?"""
        of_batch(provider, "stuck_validating")
        assert customer.later(customer.create(chat_lines(*SIX)), 30 * DAY).status == "validating"
        of_batch(provider, "stuck_in_progress", share=0.5)
        batch = customer.create(chat_lines(*SIX))
        for hours in (5, 10):
            seen = customer.later(batch, hours * HOUR)
            assert seen.request_counts is not None
            assert (seen.status, seen.request_counts.completed) == ("in_progress", 3)
        assert customer.later(batch, 10 * HOUR).status == "expired"

    def test_a_vanished_batch_is_a_404(self, provider: Emulator, customer: Customer) -> None:
        of_batch(provider, "vanishes", seconds=HOUR / 2)
        batch = customer.create(chat_lines("x"))
        with pytest.raises(openai.NotFoundError):
            customer.later(batch)
        assert not customer.api.batches.list().data

    def test_a_hidden_batch_is_listed_later(self, provider: Emulator, customer: Customer) -> None:
        of_batch(provider, "hidden", seconds=120)
        batch = customer.create(chat_lines("x"))
        assert not customer.api.batches.list().data
        provider.clock.advance(120)
        assert [one.id for one in customer.api.batches.list()] == [batch.id]

    def test_what_result_files_may_look_like(self, provider: Emulator, customer: Customer) -> None:
        for fault in ("shuffled", "cut_tail", "zero_byte_error_file"):
            of_batch(provider, fault)
        batch = customer.run(chat_lines(*[f"{number}" for number in range(40)]))
        content = customer.read(batch.output_file_id)
        found = ids(customer.rows(batch.output_file_id))
        assert not content.endswith(b"\n")
        assert len(found) == 39
        assert found != sorted(found, key=lambda name: int(name[1:]))
        assert batch.error_file_id is not None
        assert customer.read(batch.error_file_id) == b""


class TestCancelling:
    def test_what_is_done_stays_and_the_rest_is_given_up(self, provider: Emulator, customer: Customer) -> None:
        provider.settings(validating_s=[0, 0], turnaround_s=[600, 600], cancelling_s=[60, 60])
        batch = customer.create(chat_lines(*SIX))
        provider.clock.advance(300)
        assert customer.api.batches.cancel(batch.id).status == "cancelling"
        assert customer.api.batches.cancel(batch.id).status == "cancelling"
        ended = customer.later(batch)
        assert (ended.status, ended.cancelled_at) == ("cancelled", batch.created_at + 360)
        assert len(customer.rows(ended.output_file_id)) == 3
        assert {row["error"]["code"] for row in customer.rows(ended.error_file_id)} == {"batch_cancelled"}
        assert provider.bill()["batches"][batch.id]["rows"] == 3
        assert customer.api.batches.cancel(batch.id).status == "cancelled"

    def test_what_has_ended_cannot_be_cancelled(self, customer: Customer) -> None:
        batch = customer.run(chat_lines("x"))
        with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'completed'"):
            customer.api.batches.cancel(batch.id)

    def test_cancelling_while_it_validates_leaves_no_files(self, provider: Emulator, customer: Customer) -> None:
        batch = customer.create(chat_lines("x"))
        customer.api.batches.cancel(batch.id)
        ended = customer.later(batch)
        assert (ended.status, ended.output_file_id, ended.error_file_id) == ("cancelled", None, None)

    def test_cancel_takes_ten_minutes(self, provider: Emulator, customer: Customer) -> None:
        of_batch(provider, "slow_cancel")
        batch = customer.create(chat_lines("x"))
        customer.api.batches.cancel(batch.id)
        assert customer.later(batch, 599).status == "cancelling"
        assert customer.later(batch, 1).status == "cancelled"

    @pytest.mark.parametrize("billed", [True, False])
    def test_cancel_race(self, provider: Emulator, customer: Customer, billed: bool) -> None:
        """A finished row is in neither file, and the counts drop."""
        provider.settings(validating_s=[0, 0], turnaround_s=[600, 600])
        of_batch(provider, "cancel_race", billed=billed)
        batch = customer.create(chat_lines(*SIX[:5]))
        provider.clock.advance(120)
        cancelling = customer.api.batches.cancel(batch.id)
        ended = customer.later(batch)
        counts = [one.request_counts for one in (cancelling, ended)]
        assert [(one.total, one.completed, one.failed) for one in counts if one] == [(5, 1, 0), (5, 0, 0)]
        assert ended.output_file_id is None
        assert len(customer.rows(ended.error_file_id)) == 4
        assert provider.bill()["batches"][batch.id]["rows"] == int(billed)
