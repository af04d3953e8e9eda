"""Which bodies with the status of an answer are not answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from orchestrator.core.answers import read_answer
from orchestrator.core.finish_reasons import end_word


def chat(end: Any, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "half an ans"}, "finish_reason": end, **more}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    return {"object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


def response(status: Any, details: Any = None) -> dict[str, Any]:
    item = {"type": "message", "content": [{"type": "output_text", "text": "half an ans"}]}
    return {"object": "response", "status": status, "incomplete_details": details, "output": [item]}


def reason(body: dict[str, Any]) -> str | None:
    return read_answer(msgspec.json.encode(body)).not_an_answer


@pytest.mark.parametrize(
    "end",
    [
        "abort",
        "error",
        "ABORT",
        "insufficient_system_resource",
        "engine_overloaded",
        {"type": "abort"},
        ["error"],
        "function_call_filter: MALFORMED_FUNCTION_CALL",
        "error: upstream went away",
    ],
)
def test_an_end_that_says_that_the_server_stopped_is_not_an_answer(end: Any) -> None:
    why = reason(chat(end))
    assert why is not None
    assert "stopped before the answer was complete" in why


@pytest.mark.parametrize("text", [{"message": {"content": [{"type": "text", "text": "half"}]}}, {"response": "half"}])
@pytest.mark.parametrize("end", [{"finish_reason": "ERROR"}, {"finish_reason": "TIMEOUT"}, {"done": False}])
def test_the_end_of_a_choice_at_the_top_level_counts_as_well(text: dict[str, Any], end: dict[str, Any]) -> None:
    """Cohere's and Ollama's own endpoints have no list of choices."""
    assert reason({"model": "m", **text, **end}) is not None
    assert reason({"model": "m", **text, "finish_reason": "COMPLETE", "done": True}) is None


@pytest.mark.parametrize(
    "end", ["stop", "length", "tool_calls", "content_filter", "", None, "eos", 1, {"type": "stop"}, [], "COMPLETE"]
)
def test_any_other_end_is_an_answer(end: Any) -> None:
    assert reason(chat(end)) is None


@pytest.mark.parametrize("error", [{"code": 502, "message": "Upstream went away"}, "Upstream went away"])
def test_an_error_in_a_choice_is_not_an_answer_and_says_so_in_the_words_of_its_server(error: Any) -> None:
    assert reason(chat("stop", error=error)) == "the answer has an error: Upstream went away"


@pytest.mark.parametrize("error", [None, {}, ""])
def test_an_empty_error_in_a_choice_is_none(error: Any) -> None:
    assert reason(chat("stop", error=error)) is None


def test_a_second_choice_that_was_aborted_counts() -> None:
    body = chat("stop")
    body["choices"] += chat("abort")["choices"]
    assert reason(body) is not None


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress", "queued", "incomplete"])
def test_a_response_that_is_not_complete_is_not_an_answer(status: str) -> None:
    assert status in str(reason(response(status)))


@pytest.mark.parametrize(
    ("status", "details"),
    [
        ("completed", None),
        (None, None),
        ("complete", None),
        ("incomplete", {"reason": "max_output_tokens"}),
        ("incomplete", {"reason": "content_filter"}),
    ],
)
def test_a_response_that_was_cut_where_its_request_says_is_an_answer(status: str | None, details: Any) -> None:
    assert reason(response(status, details)) is None


def test_a_piece_of_a_stream_is_not_an_answer() -> None:
    piece = {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "a"}, "finish_reason": None}]}
    assert reason(piece) == "the answer is a piece of a stream"


def test_one_odd_part_hides_no_end() -> None:
    """Usage of an unknown shape, and a choice that is not an object, leave the other parts readable."""
    body = chat("abort")
    body["usage"] = "many"
    body["choices"].insert(0, "odd")
    head = read_answer(msgspec.json.encode(body))
    assert head.not_an_answer is not None
    assert head.model == "m"


def test_a_word_that_is_wrapped_too_deep_is_not_searched() -> None:
    deep: Any = "abort"
    for _ in range(50):
        deep = [deep]
    assert end_word(deep) != "abort"
