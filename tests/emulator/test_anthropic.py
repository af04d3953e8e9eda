"""Anthropic's Message Batches as the emulator plays them, through the official SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import anthropic
import httpx2
import pytest

from tests.emulator.client import Emulator
from tests.emulator.driving import DAY, HOUR, SIX, of_batch, parsed

Json = dict[str, Any]


@pytest.fixture
def api(provider: Emulator) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=provider.url_anthropic, api_key="sk-ant", max_retries=0) as api:
        yield api


def request(custom_id: str, text: str, **params: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    params = {"model": "claude-m", "max_tokens": 100, "messages": messages, **params}
    return {"custom_id": custom_id, "params": params}


def requests(*texts: str, **params: Any) -> list[Any]:
    return [request(f"r{number}", text, **params) for number, text in enumerate(texts)]


def run(provider: Emulator, api: anthropic.Anthropic, rows: list[Any]) -> Any:
    batch = api.messages.batches.create(requests=rows)
    provider.clock.advance(HOUR)
    return api.messages.batches.retrieve(batch.id)


def results(api: anthropic.Anthropic, batch_id: str) -> list[Json]:
    return [line.model_dump() for line in api.messages.batches.results(batch_id)]


def test_a_batch_ends_and_its_counters_move_only_then(provider: Emulator, api: anthropic.Anthropic) -> None:
    provider.settings(turnaround_s=[100, 100])
    batch = api.messages.batches.create(requests=requests(*SIX))
    assert (batch.processing_status, batch.results_url) == ("in_progress", None)
    assert batch.expires_at - batch.created_at == timedelta(days=1)
    provider.clock.advance(50)
    running = api.messages.batches.with_raw_response.retrieve(batch.id)
    assert running.headers["retry-after"] == "10"
    assert running.parse().request_counts.model_dump() == dict.fromkeys(
        ("canceled", "errored", "expired", "succeeded"), 0
    ) | {"processing": 6}
    with pytest.raises(anthropic.NotFoundError):
        api.get(f"/v1/messages/batches/{batch.id}/results", cast_to=object)
    provider.clock.advance(50)
    ended = api.messages.batches.retrieve(batch.id)
    assert (ended.processing_status, ended.request_counts.succeeded) == ("ended", 6)
    assert ended.ended_at == provider.clock.now()


def test_results_come_in_any_order_and_say_batch(provider: Emulator, api: anthropic.Anthropic) -> None:
    rows = requests(*[str(number) for number in range(40)], system="be kind")
    batch = run(provider, api, rows)
    found = results(api, batch.id)
    assert {line["custom_id"] for line in found} == {row["custom_id"] for row in rows}
    assert [line["custom_id"] for line in found] != [row["custom_id"] for row in rows]
    usages = [line["result"]["message"]["usage"] for line in found]
    assert {usage["service_tier"] for usage in usages} == {"batch"}
    [line] = provider.bill()["lines"]
    assert (line["flavour"], line["model"], line["tier"], line["rows"]) == ("anthropic", "claude-m", "batch", 40)
    assert line["input"] == sum(usage["input_tokens"] for usage in usages)
    assert line["output"] == sum(usage["output_tokens"] for usage in usages)
    assert set(provider.bill(rows=True)["rows"].values()) == {1}


def test_cached_and_written_tokens_stand_beside_the_input(provider: Emulator, api: anthropic.Anthropic) -> None:
    text = "x" * 400 + "[[fault:cached]][[fault:cache_write]][[fault:reasoning]]"
    batch = run(provider, api, requests(text))
    [line] = results(api, batch.id)
    usage = line["result"]["message"]["usage"]
    [billed] = provider.bill()["lines"]
    assert usage["cache_read_input_tokens"] == billed["cached"] > 0
    assert usage["cache_creation_input_tokens"] == billed["cache_write"] > 0
    told = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    assert told == billed["input"]
    assert usage["output_tokens_details"]["thinking_tokens"] == billed["reasoning"] > 0
    assert [block["type"] for block in line["result"]["message"]["content"]] == ["thinking", "text"]


def test_models_may_be_mixed(provider: Emulator, api: anthropic.Anthropic) -> None:
    rows = [request("a", "x"), request("b", "x", model="claude-n"), request("c", "y", model="claude-n")]
    run(provider, api, rows)
    assert [(line["model"], line["rows"]) for line in provider.bill()["lines"]] == [("claude-m", 1), ("claude-n", 2)]


@pytest.mark.parametrize("custom_id", ["", "a" * 65, "a b", "ü", "a:b"])
def test_custom_ids_have_a_narrow_rule(api: anthropic.Anthropic, custom_id: str) -> None:
    api.messages.batches.create(requests=[request("a_-9" * 16, "x")])
    with pytest.raises(anthropic.BadRequestError, match=r"requests\.0\.custom_id"):
        api.messages.batches.create(requests=[request(custom_id, "x")])


@pytest.mark.parametrize(
    "rows",
    [[], [request("a", "x")] * 2, [{"custom_id": "a"}], [{"params": {}}]],
    ids=["empty", "twice", "no-params", "no-id"],
)
def test_a_list_that_is_refused_at_once(api: anthropic.Anthropic, rows: list[Any]) -> None:
    with pytest.raises(anthropic.BadRequestError):
        api.messages.batches.create(requests=rows)
    assert not api.messages.batches.list().data


@pytest.mark.long
def test_a_body_over_256_mb_is_a_413(provider: Emulator) -> None:
    piece = b" " * 1024 * 1024
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    url = f"{provider.url_anthropic}/v1/messages/batches"
    answer = httpx2.post(url, headers=headers, content=(piece for _ in range(257)), timeout=60)
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "request_too_large"
    assert httpx2.post(url, headers=headers, content=b"no JSON").status_code == 400


@pytest.mark.parametrize(
    ("params", "kind", "message"),
    [
        ({"max_tokens": None}, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 0}, "invalid_request_error", "max_tokens"),
        ({"stream": True}, "invalid_request_error", "stream"),
        ({"n": 2}, "invalid_request_error", "n: Extra inputs"),
        ({"model": "claude-none"}, "not_found_error", "claude-none"),
        ({"model": "claude-new", "temperature": 0.5}, "invalid_request_error", "temperature"),
        ({"messages": []}, "invalid_request_error", "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "invalid_request_error", "messages.0.role"),
        ({"messages": [{"role": "user", "content": ""}]}, "invalid_request_error", "messages.0.content"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_params_are_looked_at_row_by_row(
    provider: Emulator, api: anthropic.Anthropic, params: Json, kind: str, message: str
) -> None:
    provider.settings(models=["claude-m", "claude-new"], no_sampling=["claude-new"])
    batch = run(provider, api, [request("good", "x", temperature=0.5), request("bad", "x", **params)])
    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 1)
    [error] = [line["result"]["error"] for line in results(api, batch.id) if line["custom_id"] == "bad"]
    assert error["error"]["type"] == kind
    assert message in error["error"]["message"]
    assert provider.bill(rows=True)["rows"] == {"good": 1}


@pytest.mark.parametrize(
    ("fault", "types", "billed"),
    [
        ("status:429", ["rate_limit_error"], 0),
        ("status:500", ["api_error"], 0),
        ("status:529", ["overloaded_error"], 0),
        ("expired", ["expired"], 0),
        ("cancelled", ["canceled"], 0),
        ("missing", [], 1),
        ("duplicate", ["end_turn", "end_turn"], 1),
        ("length", ["max_tokens"], 1),
        ("filtered", ["refusal"], 1),
    ],
)
def test_what_becomes_of_a_row(
    provider: Emulator, api: anthropic.Anthropic, fault: str, types: list[str], billed: int
) -> None:
    batch = run(provider, api, [request("good", "x"), request("bad", f"[[fault:{fault}]]")])
    lines = [line["result"] for line in results(api, batch.id) if line["custom_id"] == "bad"]

    def kind(result: Json) -> str:
        match result:
            case {"message": message}:
                return str(message["stop_reason"])
            case {"error": error}:
                return str(error["error"]["type"])
            case _:
                return str(result["type"])

    assert [kind(line) for line in lines] == types
    assert provider.bill(rows=True)["rows"].get("bad", 0) == billed
    assert sum(batch.request_counts.model_dump().values()) == 2


def test_lines_may_be_broken_cut_or_of_nobody(provider: Emulator, api: anthropic.Anthropic) -> None:
    of_batch(provider, "cut_tail")
    batch = run(provider, api, requests("[[fault:broken_line]]", "[[fault:unknown_id]]"))
    # The SDK would stop at the first broken line.
    headers = {"x-api-key": "sk-ant", "anthropic-version": "2023-06-01"}
    text = httpx2.get(batch.results_url, headers=headers).content
    lines = text.splitlines()
    assert (len(lines), len(list(parsed(text)))) == (3, 1)
    assert not text.endswith(b"\n")
    assert b"nobody-asked-for-this" in text


def test_cancelled_and_expired_batches_have_ended(provider: Emulator, api: anthropic.Anthropic) -> None:
    provider.settings(turnaround_s=[600, 600])
    batch = api.messages.batches.create(requests=requests(*SIX))
    provider.clock.advance(300)
    assert api.messages.batches.cancel(batch.id).processing_status == "canceling"
    assert api.messages.batches.cancel(batch.id).processing_status == "canceling"
    with pytest.raises(anthropic.BadRequestError):
        api.messages.batches.delete(batch.id)
    provider.clock.advance(HOUR)
    ended = api.messages.batches.retrieve(batch.id)
    assert (ended.processing_status, ended.request_counts.succeeded, ended.request_counts.canceled) == ("ended", 3, 3)
    with pytest.raises(anthropic.BadRequestError):
        api.messages.batches.cancel(batch.id)
    of_batch(provider, "expires", share=0.5)
    late = run(provider, api, requests(*SIX))
    assert late.processing_status == "in_progress"
    provider.clock.advance(DAY)
    late = api.messages.batches.retrieve(late.id)
    assert (late.processing_status, late.request_counts.succeeded, late.request_counts.expired) == ("ended", 3, 3)
    assert late.ended_at == late.expires_at
    assert provider.bill()["lines"][0]["rows"] == 6


def test_results_are_there_for_29_days(provider: Emulator, api: anthropic.Anthropic) -> None:
    batch = run(provider, api, requests("x"))
    provider.clock.advance(29 * DAY)
    archived = api.messages.batches.retrieve(batch.id)
    assert archived.results_url is None
    assert archived.archived_at is not None
    with pytest.raises(anthropic.NotFoundError):
        api.get(f"/v1/messages/batches/{batch.id}/results", cast_to=object)


def test_listing_in_pages_and_deleting(provider: Emulator, api: anthropic.Anthropic) -> None:
    made = [run(provider, api, requests("x")).id for _ in range(5)][::-1]
    assert [batch.id for batch in api.messages.batches.list(limit=2)] == made
    newer = api.messages.batches.list(before_id=made[3], limit=2)
    assert ([batch.id for batch in newer.data], newer.has_more) == (made[1:3], True)
    assert api.messages.batches.delete(made[0]).type == "message_batch_deleted"
    assert [batch.id for batch in api.messages.batches.list()] == made[1:]


def test_a_cut_after_creating_leaves_a_batch_without_metadata(provider: Emulator, api: anthropic.Anthropic) -> None:
    provider.script({"do": "cut_after", "match": {"verb": "create", "flavour": "anthropic", "model": "claude-m"}})
    with pytest.raises(anthropic.APIConnectionError):
        api.messages.batches.create(requests=requests(*SIX))
    [orphan] = api.messages.batches.list().data
    assert orphan.request_counts.processing == 6


def test_synchronous_messages_and_their_limits(provider: Emulator, api: anthropic.Anthropic) -> None:
    provider.settings(requests_per_minute=1)
    asked: Json = request("a", "hello")["params"]
    raw = api.messages.with_raw_response.create(**asked)
    assert raw.headers["anthropic-ratelimit-requests-limit"] == "1"
    assert raw.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert raw.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    assert raw.parse().usage.service_tier == "standard"
    with pytest.raises(anthropic.RateLimitError):
        api.messages.create(**asked)
    [line] = provider.bill()["lines"]
    assert (line["tier"], line["rows"]) == ("standard", 1)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "keep"}])
def test_a_forced_tool_is_used(provider: Emulator, api: anthropic.Anthropic, choice: Any) -> None:
    tool: Any = {"name": "keep", "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    message = api.messages.create(**request("a", "x", tools=[tool], tool_choice=choice)["params"])
    assert message.stop_reason == "tool_use"
    [block] = message.content
    assert isinstance(block, anthropic.types.ToolUseBlock)
    assert set(block.input) == {"n"}


def test_json_that_fits_a_schema(provider: Emulator, api: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    batch = run(provider, api, requests("x", output_config=config))
    [line] = results(api, batch.id)
    assert set(json.loads(line["result"]["message"]["content"][0]["text"])) == {"n"}


def test_models_and_the_headers_that_are_asked_for(provider: Emulator, api: anthropic.Anthropic) -> None:
    assert {model.id for model in api.models.list()} >= {"claude-sonnet-5-5"}
    assert api.models.retrieve("any").id == "any"
    provider.settings(models=["claude-m"], accounts={"sk-ant": "org-a"})
    with pytest.raises(anthropic.NotFoundError):
        api.models.retrieve("any")
    assert api.models.with_raw_response.list().headers["anthropic-organization-id"] == "org-a"
    url = f"{provider.url_anthropic}/v1/models"
    assert httpx2.get(url, headers={"x-api-key": "sk-ant"}).status_code == 400
    wrong = httpx2.get(url, headers={"x-api-key": "other", "anthropic-version": "x"})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")


def test_errors_have_anthropics_shape(provider: Emulator, api: anthropic.Anthropic) -> None:
    provider.script({"do": "status", "status": 529, "match": {"flavour": "anthropic"}})
    with pytest.raises(anthropic.APIStatusError) as refused:
        api.messages.batches.list()
    body: Any = refused.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "overloaded_error")
    assert body["request_id"] == refused.value.response.headers["request-id"]
