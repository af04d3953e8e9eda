"""Anthropic's answers and results -> OpenAI's: whatever they hold, a paid answer is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.backends.anthropic.results import completion, result_line
from tests.support.examples import ample

Json = dict[str, Any]
MODEL = "claude-sonnet-4-5"
LEAF = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
NAMES = st.sampled_from("type content text thinking tool_use message error usage input name details id".split())
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)


def text(words: str) -> Json:
    return {"type": "text", "text": words}


USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 5,
    "cache_read_input_tokens": 3,
    "cache_creation": {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 4},
    "output_tokens": 7,
    "output_tokens_details": {"thinking_tokens": 2},
    "service_tier": "batch",
}


def message(*blocks: Json, reason: str | None = "end_turn", **more: Any) -> Json:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": list(blocks),
        "stop_reason": reason, "stop_sequence": None, "usage": USAGE, **more,
    }  # fmt: skip


def choice(answer: Json) -> Json:
    (only,) = answer["choices"]
    assert isinstance(only, dict)
    return only


def test_an_answer_in_full() -> None:
    used = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"ä": 1}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    found = completion(message(thought, text("a"), text("b"), used, {"type": "redacted_thinking", "data": "x"}))
    assert found == {
        "id": "msg_1",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "ab",
                    "refusal": None,
                    "tool_calls": [
                        {
                            "id": "toolu_1",
                            "type": "function",
                            "function": {"name": "look", "arguments": '{"ä":1}'},
                        }
                    ],
                    "reasoning_content": "hm",
                    "other_content": [{"type": "redacted_thinking", "data": "x"}],
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 18,
            "completion_tokens": 7,
            "total_tokens": 25,
            "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 5, "cache_write_1h_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        "service_tier": "batch",
    }


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "model_context_window_exceeded"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("something_new", "something_new"),
        (None, None),
    ],
)
def test_the_end_of_an_answer(reason: str | None, finish: str | None) -> None:
    assert choice(completion(message(text("a"), reason=reason)))["finish_reason"] == finish


SHAPES: dict[str, tuple[Json, Any]] = {
    "no content": (message(), {}),
    "content that is null": (message(content=None), {}),
    "content of a number": (message(content=5), {"other_content": [5]}),
    "a text that is none": (message({"type": "text"}), {"other_content": [{"type": "text"}]}),
    "no keys at all": ({}, {}),
    "usage that is none": (message(usage=[1]), {}),
    "usage of other types": (message(usage={"input_tokens": "nine", "output_tokens_details": 1}), {}),
}


def test_content_that_is_a_string_and_usage_in_text_are_read() -> None:
    found = completion(message(content="words", usage={"input_tokens": "9", "output_tokens": 2.0}))
    assert found["choices"][0]["message"]["content"] == "words"
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (9, 2)


def test_a_block_of_an_unknown_kind_keeps_its_text() -> None:
    thought = {"type": "thinking_step", "text": "hm"}
    found = completion(message(text("ye"), thought, {"type": "rich_text", "text": "s", "style": {}}))
    assert found["choices"][0]["message"]["content"] == "yes"
    assert found["choices"][0]["message"]["other_content"] == [thought]


@pytest.mark.parametrize("number", [2**70, -5, 10**400, True, None, [1]])
def test_tokens_that_cannot_be_are_not_told(number: Any) -> None:
    found = completion(message(usage={"input_tokens": number, "output_tokens": number}))
    assert found["usage"]["total_tokens"] == 0


@pytest.mark.parametrize("odd", [{"model": 2**70}, {"id": 10**400}, {"id": "\ud800"}])
def test_what_json_libraries_do_not_write_loses_no_answer(odd: Json) -> None:
    line = line_of({"type": "Succeeded", "message": {**message({"type": "text", "text": "yes"}), **odd}})
    assert line["response"]["body"]["choices"][0]["message"]["content"] == "yes"


def test_a_success_without_a_message_is_an_answer_of_nothing() -> None:
    """It is billed, and is not asked for again."""
    for result in ({"type": "succeeded"}, {"type": "succeeded", "message": None}):
        line = line_of(result)
        assert line["response"] == {"status_code": 200, "request_id": None, "body": None}


def test_a_message_of_an_errors_words_stays_one() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    assert line_of({"type": "succeeded", "message": error})["response"]["body"] == error


@pytest.mark.parametrize(("given_message", "more"), SHAPES.values(), ids=SHAPES)
def test_a_paid_answer_is_kept_whatever_its_shape(given_message: Json, more: Json) -> None:
    found = completion(given_message)
    assert choice(found)["message"] == {"role": "assistant", "content": None, "refusal": None, **more}
    assert found["usage"]["total_tokens"] in (0, 25)


def line_of(result: Any) -> Json:
    line: Json = json.loads(result_line(json.dumps({"custom_id": "tag-1", "result": result}).encode()))
    assert (line.pop("custom_id"), line.pop("id")) == ("tag-1", "batch_req_tag-1")
    return line


def test_a_row_that_succeeded() -> None:
    line = line_of({"type": "succeeded", "message": message(text("yes"))})
    assert line["error"] is None
    assert (line["response"]["status_code"], line["response"]["request_id"]) == (200, None)
    assert choice(line["response"]["body"])["message"]["content"] == "yes"


STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
    "something_new": 502,
}


@pytest.mark.parametrize(("type_", "status"), STATUSES.items(), ids=STATUSES)
def test_a_row_that_was_refused_has_the_status_of_its_error_type(type_: str, status: int) -> None:
    inner = {"type": type_, "message": "why"}
    line = line_of({"type": "errored", "error": {"type": "error", "error": inner, "request_id": "req_1"}})
    told_error = {"error": {"message": "why", "type": type_, "param": None, "code": type_}}
    assert line == {
        "response": {"status_code": status, "request_id": "req_1", "body": told_error},
        "error": None,
    }


def test_the_narrowest_word_for_an_error_is_its_code() -> None:
    inner = {"type": "rate_limit_error", "message": "m", "details": {"error_code": "contract_spend_limit_reached"}}
    line = line_of({"type": "errored", "error": {"error": inner}})
    assert line["response"]["body"]["error"]["code"] == "contract_spend_limit_reached"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [({"type": "api_error", "message": "m"}, "api_error", "m"), ({}, "error", None), ({"error": "x"}, "error", None)],
    ids=["not wrapped", "empty", "a string"],
)
def test_an_error_of_another_shape_is_an_error(error: Json, code: str, said: str | None) -> None:
    line = line_of({"type": "errored", "error": error})
    assert line["response"]["body"]["error"]["code"] == code
    assert line["response"]["body"]["error"]["message"] == said


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"type": "canceled"}, "batch_cancelled"),
        ({"type": "expired"}, "batch_expired"),
        ({"type": "postponed"}, "unknown_result"),
        ({"type": ["x"]}, "unknown_result"),
        (None, "unknown_result"),
    ],
)
def test_a_row_that_did_not_run(result: Any, code: str) -> None:
    line = line_of(result)
    assert line["response"] is None
    assert line["error"]["code"] == code


RESULT = st.fixed_dictionaries({"type": st.sampled_from(["succeeded", "errored", "canceled"])}) | JSON


@pytest.mark.long
@settings(max_examples=ample(300))
@given(st.builds(lambda result, more: {**result, **more} if isinstance(result, dict) else result, RESULT,
                 st.dictionaries(st.sampled_from(["message", "error"]), JSON, max_size=2)))  # fmt: skip
def test_whatever_a_result_holds_is_one_line(result: Any) -> None:
    raw = result_line(json.dumps({"custom_id": "t-1", "result": result}).encode())
    assert b"\n" not in raw
    assert json.loads(raw)["custom_id"] == "t-1"
