"""OpenAI's files and batches as they are when nothing is scripted, seen through the official SDK."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest

from tests.emulator.client import Emulator
from tests.emulator.driving import DAY, HOUR, SIX, Customer, chat_line, chat_lines, ids, of_batch

PARTS = [{"type": "input_text", "text": "x"}]


class TestLife:
    def test_a_batch_goes_through_its_stages_by_the_clock_alone(self, provider: Emulator, customer: Customer) -> None:
        provider.settings(validating_s=[10, 10], turnaround_s=[100, 100], finalizing_s=[10, 10])
        batch = customer.create(chat_lines(*SIX), metadata={"job": "7"})
        assert (batch.status, batch.metadata) == ("validating", {"job": "7"})
        assert batch.expires_at == batch.created_at + DAY
        seen = [customer.later(batch, seconds) for seconds in (5, 55, 55, 10)]
        assert [one.status for one in seen] == ["validating", "in_progress", "finalizing", "completed"]
        assert [one.request_counts.completed for one in seen] == [0, 3, 6, 6]
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
        assert batch.usage.input_tokens == row["response"]["body"]["usage"][tokens]

    def test_lines_may_end_and_begin_as_they_like(self, customer: Customer) -> None:
        lines = [json.dumps(line).encode() for line in chat_lines("x", "y", "z")]
        batch = customer.run([lines[0] + b" \r", b" \r", b"  " + lines[1], lines[2]])
        assert ids(customer.rows(batch.output_file_id)) == ["r0", "r1", "r2"]

    def test_tokens_are_a_quarter_of_all_text(self, customer: Customer) -> None:
        parts = [{"type": "text", "text": "abcd"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
        messages = [{"role": "system", "content": "ü" * 4}, {"role": "user", "content": parts}]
        batch = customer.run([chat_line("a", "", messages=messages)])
        assert batch.usage.input_tokens == 3

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
        for query in ({"limit": 101}, {"after": "batch_nobody"}):
            with pytest.raises(openai.BadRequestError):
                customer.api.batches.list(**query)

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


def upload(customer: Customer, name: str, content: bytes, **fields: str) -> httpx2.Response:
    files = {"file": (name, content)} if name else {"other": ("a.jsonl", content)}
    return httpx2.post(f"{customer.api.base_url}files", headers=KEY, data=fields, files=files, timeout=60)


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
    assert upload(customer, name, content, purpose=purpose).status_code == status


@pytest.mark.long
def test_upload_refuses_what_is_missing_or_too_large(customer: Customer) -> None:
    answers = [
        upload(customer, "a.jsonl", b"{}"),
        upload(customer, "", b"{}", purpose="batch"),
        upload(customer, "a.jsonl", b"{" * 209_715_201, purpose="batch"),
    ]
    told = [(answer.status_code, answer.json()["error"]["param"]) for answer in answers]
    assert told == [(400, "purpose"), (400, "file"), (413, None)]
    assert "larger than the 209715200 maximum" in answers[2].json()["error"]["message"]
    assert not customer.api.files.list().data


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
    told = [(one.code, one.param, one.line) for one in batch.errors.data]
    assert told == [(code, param, 3), ("invalid_json_line", None, 4)]
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert batch.request_counts.total == 0
    assert provider.bill()["lines"] == []


@pytest.mark.long
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
    told = [batch.errors.data[0] for batch in batches]
    assert [one.code for one in told] == ["invalid_request", "empty_file", "too_many_tasks", "too_many_tasks"]
    assert told[0].message is not None
    assert told[0].message.startswith("Cannot find file file-x, or organization org-")


class TestCancelling:
    def test_what_is_done_stays_and_the_rest_is_given_up(self, provider: Emulator, customer: Customer) -> None:
        provider.settings(validating_s=[0, 0], turnaround_s=[600, 600], cancelling_s=[60, 60])
        batch = customer.create(chat_lines(*SIX))
        provider.clock.advance(300)
        assert provider.bill()["batches"][batch.id]["rows"] == 3
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
        cancelling: Any = customer.api.batches.cancel(batch.id)
        ended = customer.later(batch)
        counts = [one.request_counts for one in (cancelling, ended)]
        assert [(one.total, one.completed, one.failed) for one in counts] == [(5, 1, 0), (5, 0, 0)]
        assert ended.output_file_id is None
        assert len(customer.rows(ended.error_file_id)) == 4
        assert provider.bill()["batches"][batch.id]["rows"] == int(billed)
