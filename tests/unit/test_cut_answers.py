"""Answers that ended before they were complete: counted if they are accepted, refused if the context was full."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from orchestrator.backends.anthropic.results import completion
from orchestrator.core.batch_api import ResultLine
from orchestrator.core.model import Outcome, RequestState, Span
from orchestrator.policy import results
from orchestrator.policy.answer_check import AnswerCheck, OutputCheck, VectorCheck
from orchestrator.policy.answer_ends import Bound
from orchestrator.policy.results import FoundLine
from orchestrator.server.dispatch.pages import context_window

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat(finish: str, text: str = "half a sent") -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": finish}], "usage": {"prompt_tokens": 9}}


def responses(reason: str) -> dict[str, Any]:
    said = {"type": "message", "content": [{"type": "output_text", "text": "half a sent"}]}
    told = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return {**told, "output": [said], "usage": {"input_tokens": 9}}


def anthropic(reason: str) -> dict[str, Any]:
    return completion({"content": [{"type": "text", "text": "half"}], "stop_reason": reason, "usage": {}})


def outcome(
    body: dict[str, Any], check: AnswerCheck | None, *, window_full: bool = False, bound: int | None = None
) -> Outcome:
    orch = {"upstream": "u", "latency_ms": 1, "upstream_seconds": 1, "attempts": 1, "window_full": window_full}
    line = {"custom_id": "a", "response": {"status_code": 200, "body": body}, "orch": orch}
    found = FoundLine(Span(0, 9), msgspec.json.decode(json.dumps(line), type=ResultLine))
    ended = results.outcome(0, "output", found, check, lambda: None if bound is None else Bound(bound))
    assert isinstance(ended, Outcome)
    return ended


CUT = {
    "chat": chat("length"),
    "responses": responses("max_output_tokens"),
    "anthropic": anthropic("max_tokens"),
    "a gateway that translates nothing": chat("max_tokens"),
    "in capitals": chat("MAX_TOKENS"),
    "vertex": chat("FINISH_REASON_MAX_TOKENS"),
    "an enum as text": chat("FinishReason.MAX_TOKENS"),
    "with a hyphen": chat("max-tokens"),
    "an older engine": chat("max_new_tokens"),
}
FULL = {
    "anthropic": anthropic("model_context_window_exceeded"),
    "mistral": chat("model_length"),
    "cohere": chat("ERROR_LIMIT"),
    "watsonx": chat("TOKEN_LIMIT"),
    "an enum as text": chat("FinishReason.MODEL_LENGTH"),
    "responses": responses("model_context_window_exceeded"),
}
CHECKS = {"a task": OutputCheck(None), "a ready batch file": None}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("body", CUT.values(), ids=CUT)
def test_text_that_ended_at_max_tokens_is_an_answer_and_counted(body: Any, check: AnswerCheck | None) -> None:
    ended = outcome(body, check)
    assert (ended.state, ended.cut, ended.error_code) == (RequestState.SUCCEEDED, True, None)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("reason", ["stop", "tool_calls", "", "eos"])
def test_a_complete_answer_is_not_counted_whatever_its_words(reason: str, check: AnswerCheck | None) -> None:
    assert not outcome(chat(reason, 'the "length" of max_tokens'), check).cut


@pytest.mark.parametrize(
    "reason",
    [
        "CONTENT_FILTER",
        "content_filtered",
        "SAFETY",
        "FINISH_REASON_RECITATION",
        "ERROR_TOXIC",
        "sensitive",
        "content_filter: PROHIBITED_CONTENT",
        "content_filter: RECITATION",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
    ],
)
def test_an_answer_that_a_filter_stopped_is_not_a_success_however_it_is_spelled(reason: str) -> None:
    for check in (OutputCheck(None), OutputCheck(SCHEMA)):
        assert outcome(chat(reason), check).error_code == "content_filter"


def test_json_that_fits_its_schema_is_complete_wherever_it_ends() -> None:
    ended = outcome(chat("length", '{"a": 1}'), OutputCheck(SCHEMA))
    assert (ended.state, ended.cut) == (RequestState.SUCCEEDED, False)
    ended = outcome(chat("length", '{"a": '), OutputCheck(SCHEMA))
    assert (ended.state, ended.cut, ended.error_code) == (RequestState.FAILED, False, "truncated")


@pytest.mark.parametrize("check", [None, OutputCheck(None), OutputCheck(SCHEMA)], ids=["raw", "text", "schema"])
@pytest.mark.parametrize("body", FULL.values(), ids=FULL)
def test_a_full_context_window_is_never_accepted(body: Any, check: AnswerCheck | None) -> None:
    ended = outcome(body, check)
    assert (ended.state, ended.error_code, ended.cut) == (RequestState.FAILED, "context_full", False)
    whole = outcome(chat("model_length", '{"a": 1}'), check)
    assert whole.error_code == "context_full", "nobody knows what the model still had to say"


@pytest.mark.parametrize("check", [None, OutputCheck(None), OutputCheck(SCHEMA)], ids=["raw", "text", "schema"])
def test_an_answer_that_fills_the_window_of_its_server_is_never_accepted(check: AnswerCheck | None) -> None:
    ended = outcome(chat("stop", '{"a": 1}'), check, window_full=True)
    assert (ended.state, ended.error_code) == (RequestState.FAILED, "context_full")


@pytest.mark.parametrize(("tokens", "bound", "code"), [(20, 20, None), (19, 20, "context_full"), (19, None, None)])
def test_an_answer_cut_before_its_bound_met_the_window(tokens: int, bound: int | None, code: str | None) -> None:
    ended = outcome(chat("length") | {"usage": {"completion_tokens": tokens}}, OutputCheck(None), bound=bound)
    assert (ended.error_code, ended.cut) == (code, code is None)


@pytest.mark.parametrize("finish_first", ["length", "stop"])
def test_several_choices_share_their_tokens_so_their_sum_tells_nothing_of_one(finish_first: str) -> None:
    """With `n`, the bound of a row is that of all choices together; one that ended early leaves the sum below it."""
    choices = [
        {"index": number, "message": {"content": "half"}, "finish_reason": finish}
        for number, finish in enumerate((finish_first, "stop"))
    ]
    ended = outcome({"choices": choices, "usage": {"completion_tokens": 15}}, None, bound=20)
    assert (ended.state, ended.error_code) == (RequestState.SUCCEEDED, None)
    assert ended.cut == (finish_first == "length")
    full = outcome({"choices": choices, "usage": {"completion_tokens": 15}}, None, window_full=True)
    assert full.error_code is None, "their sum with the prompt may exceed a window that each of them fits"


MODEL = {"id": "m", "max_model_len": 4096}


@pytest.mark.parametrize(
    ("models", "window"),
    [
        ([MODEL], 4096),
        ([MODEL, {"id": "n", "max_model_len": 8192}], 8192),
        ([MODEL, {"id": "adapter", "parent": "m"}], 4096),
        ([MODEL, {"id": "n"}], 0),
        ([{"id": "m", "max_model_len": "4096"}], 0),
        ([], 0),
    ],
)
def test_a_window_is_known_if_every_model_states_its_own(models: list[dict[str, Any]], window: int) -> None:
    assert context_window(models) == window


def test_a_vector_is_never_cut() -> None:
    body = {"object": "list", "data": [{"embedding": [0.1, 0.2]}], "usage": {"prompt_tokens": 8}}
    assert not outcome(body, VectorCheck(2)).cut
