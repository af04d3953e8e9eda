"""What rows and batches of OpenAI do when they misbehave, each after the trap or the complaint it stands for."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.emulator.client import Emulator
from tests.emulator.driving import DAY, HOUR, SIX, Customer, chat_line, chat_lines, ids, of_batch

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
        found = [[(one.code, one.line) for one in errors.data] for errors in told]
        assert found == [[("invalid_url", 2), ("invalid_url", 3)], [("billing_hard_limit_reached", None)]]

    def test_token_limit_exceeded_is_told_at_validation(self, provider: Emulator, customer: Customer) -> None:
        """openai/openai-python#2084; the limit counts what is enqueued, not the file."""
        provider.settings(enqueued_tokens={"m": 100}, turnaround_s=[HOUR, HOUR])
        texts = ["x" * 4 * 30] * 2
        first = customer.create(chat_lines(*texts))
        provider.clock.advance(60)
        second = customer.later(customer.create(chat_lines(*texts)), 60)
        assert (customer.api.batches.retrieve(first.id).status, second.status) == ("in_progress", "failed")
        [told] = second.errors.data
        assert (told.code, told.line) == ("token_limit_exceeded", None)
        assert told.message.startswith("Enqueued token limit reached for m in organization org-")
        assert "Limit: 100 enqueued tokens. Please try again once some in_progress" in told.message
        provider.clock.advance(2 * HOUR)
        assert customer.run(chat_lines(*texts)).status == "in_progress"

    def test_token_limit_exceeded_may_come_from_nowhere(self, provider: Emulator, customer: Customer) -> None:
        of_batch(provider, "token_limit_exceeded", limit=1_000)
        errors = customer.run(chat_lines("x")).errors
        assert "Limit: 1,000 enqueued tokens." in str(errors.data[0].message)
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
