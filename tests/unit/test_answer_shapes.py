"""Answers in the shapes that providers give them: one odd part loses no other part."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from orchestrator.core.model import Usage
from orchestrator.policy.answer_check import OutputCheck
from orchestrator.policy.answer_text import Answer, answer_of
from orchestrator.reports.words import tokens


def chat(content: Any, end: Any = "stop", **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": content, **message}, "finish_reason": end}]}


def item(*texts: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text} for text in texts], **more}


THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []}
THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
EMPTY_CALL = {
    "function_call": {"name": "", "arguments": ""},
    "audio": {"data": ""},
    "refusal": "",
    "tool_calls": None,
}
CALL = {"function_call": {"name": "add", "arguments": "{}"}}
SHAPES: dict[str, tuple[dict[str, Any], Answer]] = {
    "a list of parts": (chat([{"type": "text", "text": "ye"}, {"type": "text", "text": "s"}]),
                        Answer("yes", "stop", False)),
    "a list of texts": (chat(["ye", "s"]), Answer("yes", "stop", False)),
    "thoughts before the text": (chat([THINKING, {"type": "text", "text": "yes"}]), Answer("yes", "stop", False)),
    "thoughts alone": (chat([THINKING]), Answer(None, "stop", False)),
    "no part": (chat([]), Answer(None, "stop", False)),
    "an object as the answer": (chat({"title": "A", "n": 1}), Answer('{"title":"A","n":1}', "stop", False)),
    "a list as the answer": (chat([{"a": 1}]), Answer('[{"a":1}]', "stop", False)),
    "a list of JSON with types": (chat([{"type": "invoice", "n": 1}]),
                                  Answer('[{"type":"invoice","n":1}]', "stop", False)),
    "JSON with a type": (chat({"type": "invoice", "n": 1}), Answer('{"type":"invoice","n":1}', "stop", False)),
    "a part without a type": (chat([{"text": "yes", "annotations": []}]), Answer("yes", "stop", False)),
    "parts of other texts": (chat([{"type": "input_text", "text": "ye"}, {"type": "markdown", "text": "s"}]),
                             Answer("yes", "stop", False)),
    "parts of unknown kinds": (chat([{"type": "rich_text", "text": "ye"}, {"type": "text", "text": "s"}]),
                               Answer("yes", "stop", False)),
    "an unknown part alone": (chat([{"type": "rich_text", "text": "yes"}]), Answer("yes", "stop", False)),
    "an object of such fields": (chat({"type": "rich_text", "text": "yes"}),
                                 Answer('{"type":"rich_text","text":"yes"}', "stop", False)),
    "thoughts of an unknown kind": (chat([{"type": "thought_text", "text": "hm"}]), Answer(None, "stop", False)),
    "a response of unknown parts": ({"output": [{**item(), "content": [{"type": "output_chart", "data": [1]}]}]},
                                    Answer(None, None, False)),
    "a response of an unknown text": (
        {"output": [{**item(), "content": [{"type": "output_rich", "text": "yes", "style": {}}]}]},
        Answer("yes", None, False)),
    "a response of unknown thoughts": (
        {"output": [{**item(), "content": [{"type": "reasoning_step", "text": "hm"},
                                           {"type": "output_text", "text": "yes"}]}]},
        Answer("yes", None, False)),
    "a picture alone": (chat([{"type": "image_url", "image_url": {"url": "x"}}]), Answer(None, "stop", False)),
    "a number as the answer": (chat(3), Answer("3", "stop", False)),
    "one part": (chat({"type": "text", "text": "yes"}), Answer("yes", "stop", False)),
    "a refusal among parts": (chat([{"type": "refusal", "refusal": "No."}]), Answer(None, "stop", False, "No.")),
    "an end that is null": (chat("yes", None), Answer("yes", None, False)),
    "an end that is empty": (chat("yes", ""), Answer("yes", "", False)),
    "an end that is a number": (chat("yes", 1), Answer("yes", "1", False)),
    "an end that is an object": (chat("yes", {"type": "length", "n": 1}), Answer("yes", "length", False)),
    "an end that is a list": (chat("yes", ["stop"]), Answer("yes", "stop", False)),
    "empty calls": (chat("yes", **EMPTY_CALL), Answer("yes", "stop", False)),
    "a function call": (chat(None, "function_call", **CALL), Answer(None, "function_call", True)),
    "sound": (chat(None, audio={"data": "QUJD"}), Answer(None, "stop", True)),
    "calls of an odd shape": (chat("yes", tool_calls={"id": 1}), Answer("yes", "stop", True)),
    "a message that is a text": ({"choices": [{"message": "yes"}]}, Answer("yes", None, False)),
    "a first choice that is no object": ({"choices": [1, *chat("yes")["choices"]]}, Answer("yes", "stop", False)),
    "several choices, the first one last": (
        {"choices": [{**choice, "index": index} for choice, index in zip(
            chat("no")["choices"] + chat("yes", "length")["choices"], (1, 0), strict=True)]},
        Answer("yes", "length", False, choices=2)),
    "several odd choices, the first one last": (
        {"choices": [{**chat(["no"])["choices"][0], "index": 1}, {**chat(["yes"])["choices"][0], "index": 0}]},
        Answer("yes", "stop", False, choices=2)),
    "a whole piece of a stream": ({"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}]},
                                  Answer("yes", "stop", False)),
    "a response's thoughts": ({"output": [THOUGHT, item("yes")]}, Answer("yes", None, False)),
    "thoughts and a call": ({"output": [THOUGHT, {"type": "function_call"}]}, Answer(None, None, True)),
    "several messages": ({"output": [item("ye"), item("s")]}, Answer("yes", None, False, messages=("ye", "s"))),
    "a final message": ({"output": [item("let me see", phase="commentary"), item("yes", phase="final_answer")]},
                        Answer("yes", None, False)),
    "commentary and a message": ({"output": [item("let me see", phase="commentary"), item("yes")]},
                                 Answer("yes", None, False)),
    "commentary alone": ({"output": [item("see", phase="commentary")]}, Answer("see", None, False)),
    "what the user said": ({"output": [item("2+2?", role="user"), item("4", role="assistant")]},
                           Answer("4", None, False)),
    "a text in place of parts": ({"output": [{"type": "message", "content": "yes"}]}, Answer("yes", None, False)),
    "a part whose kind is odd": (chat([{"type": {"a": 1}, "text": "yes", "annotations": []}]),
                                 Answer("yes", "stop", False)),
    "a part whose kind is empty": ({"output": [{**item(), "content": [{"type": "", "text": "yes"}]}]},
                                   Answer("yes", None, False)),
    "an item whose kind is odd": ({"output": [{**item("yes"), "type": ["message"]}]}, Answer("yes", None, False)),
    "an item whose role is odd": ({"output": [{**item("yes"), "role": []}]}, Answer("yes", None, False)),
    "an item of thoughts and an odd one": ({"output": [{"type": {}, "summary": []}, item("yes")]},
                                           Answer("yes", None, False)),
    "ollama's own": ({"message": {"role": "assistant", "content": "yes", "thinking": "hm"}, "done": True,
                      "done_reason": "length"}, Answer("yes", "length", False)),
    "ollama's own, generated": ({"response": "yes", "done": True, "done_reason": "stop"},
                                Answer("yes", "stop", False)),
    "a piece of ollama's stream": ({"message": {"role": "assistant", "content": "ye"}, "done": False},
                                   Answer(None, None, False, is_missing=True)),
    "cohere's own": ({"message": {"content": [{"type": "text", "text": "yes"}]}, "finish_reason": "COMPLETE"},
                     Answer("yes", "COMPLETE", False)),
    "incomplete as a text": ({"output": [item("ye")], "incomplete_details": "max_output_tokens"},
                             Answer("ye", "length", False)),
}  # fmt: skip


@pytest.mark.parametrize(("body", "answer"), SHAPES.values(), ids=SHAPES)
def test_an_answer_is_read_in_each_shape(body: dict[str, Any], answer: Answer) -> None:
    assert answer_of(msgspec.Raw(json.dumps(body).encode())) == answer


@pytest.mark.parametrize("odd", ["1e999", "-1e999", "123456789012345678901234567890"])
@pytest.mark.parametrize("place", ["refusal", "tool_calls", "audio", "other"])
def test_a_value_that_cannot_be_represented_loses_no_text(odd: str, place: str) -> None:
    body = f'{{"choices": [{{"message": {{"content": ["yes"], "{place}": {odd}}}, "finish_reason": "stop"}}]}}'
    answer = answer_of(msgspec.Raw(body.encode()))
    assert (answer.text, answer.finish_reason) == ("yes", "stop")


@pytest.mark.parametrize("place", ["type", "role", "id", "annotations"])
@pytest.mark.parametrize("odd", ["1e999", '[{"a": -1e999}]'])
def test_such_a_value_in_a_response_loses_no_text(odd: str, place: str) -> None:
    part = f'{{"type": "output_text", "text": "yes", "annotations": {odd if place == "annotations" else "[]"}}}'
    named = "" if place == "annotations" else f', "{place}": {odd}'
    body = f'{{"output": [{{"type": "reasoning", "x": {odd}}}, {{"content": [{part}]{named}}}]}}'
    assert answer_of(msgspec.Raw(body.encode())).text == "yes"


@pytest.mark.parametrize("body", [{}, {"usage": {}}, {"choices": []}, {"id": "x", "model": "m"}])
def test_a_body_without_a_completion_is_said_so_and_is_no_empty_answer(body: dict[str, Any]) -> None:
    found = OutputCheck(None).problem(answer_of(msgspec.Raw(json.dumps(body).encode())))
    assert found is not None
    assert found[0] == "empty_answer"
    assert "no completion in the answer" in found[1]
    empty = OutputCheck(None).problem(answer_of(msgspec.Raw(json.dumps(chat("")).encode())))
    assert empty == ("empty_answer", "the model returned an empty answer")


def test_tokens_of_answers_without_a_usage_are_unknown() -> None:
    assert tokens(Usage(), answered=3) == "no token counts in the answers"
    assert tokens(Usage(), answered=0) == "", "there is nothing yet to say"
    assert tokens(Usage(5, 0, 2), answered=3) == "5 in, 2 out"
