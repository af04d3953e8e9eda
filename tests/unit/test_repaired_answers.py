"""JSON among other text is an answer if it is one whole value that fits; nulls go if a schema forbids them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from orchestrator.policy.answer_check import OutputCheck, check_of
from orchestrator.policy.answer_text import Answer
from orchestrator.settings.task_spec import Task

GOOD = '{"months": 12}'
DRAFT = '{"months": 11}'
SCHEMA = {
    "type": "object",
    "properties": {"months": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["months"],
    "additionalProperties": False,
}
BODY = msgspec.Raw(b"{}")


def said(text: str, end: str | None = "stop", **more: Any) -> Answer:
    return Answer(text, end, False, **more)


REPAIRED = {
    "a fence": f"```json\n{GOOD}\n```",
    "a fence without a language": f"```\n{GOOD}\n```",
    "a fence of tildes": f"~~~\n{GOOD}\n~~~",
    "a fence behind a sentence": f"Here is the answer:\n\n```json\n{GOOD}\n```\nI hope that helps.",
    "a sentence": f"The answer is {GOOD}.",
    "thoughts": f"<think>Is it {{}}? Perhaps 12.</think>\n{GOOD}",
    "thoughts whose mark was cut off": f"Is it {{}}? Perhaps 12.</think>{GOOD}",
    "thoughts and a fence": f"<think>\nhm\n</think>\n```json\n{GOOD}\n```",
    "nested thoughts": f"<think>a<think>{DRAFT}</think>b {DRAFT}</think>{GOOD}",
    "thoughts twice": f"<think>{DRAFT}</think>Well.<think>{DRAFT}</think>{GOOD}",
    "thoughts of kimi": f"◁think▷{DRAFT}◁/think▷{GOOD}",
    "thoughts of magistral": f"[THINK]{DRAFT}[/THINK]{GOOD}",
    "thoughts of seed": f"<seed:think>{DRAFT}</seed:think>{GOOD}",
    "thoughts of command": f"<|START_THINKING|>{DRAFT}<|END_THINKING|><|START_RESPONSE|>{GOOD}<|END_RESPONSE|>",
    "thoughts of gemma": f"<|channel>thought\n{DRAFT}<channel|>{GOOD}",
    "thoughts of granite": f"Here is my thought process: {DRAFT} Here is my response: {GOOD}",
    "a sentence that granite ends thoughts with": f"{GOOD} Here is my response: as above.",
    "thoughts in a channel": f"<|channel|>analysis<|message|>{DRAFT}<|end|><|start|>assistant"
    f"<|channel|>final <|constrain|>json<|message|>{GOOD}<|return|>",
    "thoughts in a channel without its marks": f"analysisPerhaps {DRAFT}.assistantfinal{GOOD}",
    "a mark of the byte order": f"\ufeff{GOOD}",
    "brackets in the text": f"As [the note] says: {GOOD}",
}
NOT_REPAIRED = {
    "two values": f"{GOOD} or {GOOD}",
    "a value and another": f'{GOOD} but also {{"x": 1}}',
    "no value": "twelve",
    "cut inside": 'The answer is {"months": 12',
    "cut around a whole object": '{"months": 12, "note": {"months": 12}',
    "cut list around a whole object": '[{"months": 12}, {"mon',
    "a broken object before a good one": f"{{months: 12}} {GOOD}",
    "thoughts that do not end": f"<think>it is {GOOD}",
    "a channel of thoughts alone": f"<|channel|>analysis<|message|>it is {GOOD}",
    "thoughts that begin again": f"<think>hm</think><think>it is {GOOD}",
    "thoughts with another's end": f"<think>it is {GOOD}</reasoning>",
    "a number that is none": 'so {"months": NaN}',
    "too large a number": 'so {"months": 1e999}',
}


@pytest.mark.parametrize("text", REPAIRED.values(), ids=REPAIRED)
def test_one_whole_value_among_other_text_is_the_answer(text: str) -> None:
    check, answer = OutputCheck(SCHEMA), said(text)
    assert check.problem(answer) is None
    assert check.is_repaired(answer)
    assert check.output(answer, BODY) == {"months": 12}


@pytest.mark.parametrize("text", NOT_REPAIRED.values(), ids=NOT_REPAIRED)
def test_nothing_is_completed_and_nothing_is_guessed(text: str) -> None:
    check = OutputCheck(SCHEMA)
    problem = check.problem(said(text))
    assert problem is not None
    assert problem[0] == "invalid_json"
    assert not check.is_repaired(said(text))


@pytest.mark.parametrize("mark", ["<think>", "</think>", "◁think▷", "[/THINK]"])
@pytest.mark.parametrize("around", ["so: {}", "```json\n{}\n```", "<x>{}</x>"])
def test_a_mark_of_thoughts_in_a_text_of_the_answer_is_text(around: str, mark: str) -> None:
    check, answer = OutputCheck(SCHEMA), said(around.replace("{}", f'{{"months": 12, "note": "see {mark} there"}}'))
    assert check.problem(answer) is None
    assert check.output(answer, BODY) == {"months": 12, "note": f"see {mark} there"}


def test_a_raw_tab_or_line_break_in_a_string_is_taken() -> None:
    check, answer = OutputCheck(SCHEMA), said('{"months": 12, "note": "a\tb\nc"}')
    assert check.problem(answer) is None
    assert check.output(answer, BODY) == {"months": 12, "note": "a\tb\nc"}


def test_a_value_that_does_not_fit_is_a_mismatch_and_not_repaired() -> None:
    check, answer = OutputCheck(SCHEMA), said('Here: {"months": "twelve"}')
    assert (check.problem(answer) or ("",))[0] == "schema_mismatch"
    assert not check.is_repaired(answer)


@pytest.mark.parametrize("end", ["length", "max_tokens", "content_filter"])
def test_an_answer_that_was_cut_is_not_repaired(end: str) -> None:
    assert OutputCheck(SCHEMA).problem(said(f"```json\n{GOOD}\n```", end)) is not None


def test_plain_json_is_not_repaired() -> None:
    check = OutputCheck(SCHEMA)
    assert not check.is_repaired(said(f" {GOOD}\n"))


def test_a_task_can_forbid_it_and_an_accepted_answer_stays_readable() -> None:
    task = Task.model_validate({"id": "t", "prompt": "p", "model": "m", "schema": SCHEMA, "repair": False})
    check, answer = check_of(task), said(f"```json\n{GOOD}\n```")
    assert (check.problem(answer) or ("",))[0] == "invalid_json"
    assert check.output(answer, BODY) == {"months": 12}


def test_a_label_in_a_fence_is_a_label() -> None:
    task = Task.model_validate({"id": "t", "kind": "classify", "labels": ["a", "b"], "model": "m", "logprobs": True})
    check, answer = check_of(task), said('```json\n{"label": "a"}\n```')
    assert check.problem(answer) is None
    assert check.output(answer, BODY) == {"label": "a", "probability": None, "confidence": None}


def test_of_several_messages_the_last_that_is_json_is_the_answer() -> None:
    check = OutputCheck(SCHEMA)
    answer = said(f"I look.{GOOD}Done.", None, messages=("I look.", GOOD, "Done."))
    assert check.problem(answer) is None
    assert check.output(answer, BODY) == {"months": 12}
    assert not check.is_repaired(answer)


TEXT = {"type": "string"}
NULLS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "an optional property": (SCHEMA, {"months": 1, "note": None}, {"months": 1}),
    "nested": (
        {"properties": {"a": {"properties": {"b": TEXT}}}}, {"a": {"b": None}}, {"a": {}},
    ),
    "in a list": (
        {"properties": {"a": {"items": {"properties": {"b": TEXT}}}}}, {"a": [{"b": None}, {"b": "x"}]},
        {"a": [{}, {"b": "x"}]},
    ),
    "by a reference": (
        {"$defs": {"c": {"properties": {"b": TEXT}}, "t": TEXT}, "properties": {"a": {"$ref": "#/$defs/c"},
         "d": {"$ref": "#/$defs/t"}}},
        {"a": {"b": None}, "d": None},
        {"a": {}},
    ),
    "in one of several": (
        {"anyOf": [{"properties": {"k": {"const": 1}, "b": TEXT}, "required": ["k"]}, {"type": "string"}]},
        {"k": 1, "b": None},
        {"k": 1},
    ),
    "in exactly one": (
        {"properties": {"a": {"oneOf": [{"type": "null"}, {"type": "object", "properties": {"b": TEXT}}]}}},
        {"a": {"b": None}},
        {"a": {}},
    ),
    "in all of several": (
        {"allOf": [{"properties": {"b": TEXT}}, {"required": ["c"]}]}, {"b": None, "c": 1}, {"c": 1},
    ),
    "of a recursive schema": (
        {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}, "b": TEXT}, "type": "object"}},
         "$ref": "#/$defs/n"},
        {"next": {"next": None, "b": None}},
        {"next": {}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "output"), NULLS.values(), ids=NULLS)
def test_a_null_of_an_optional_property_is_removed_if_the_schema_forbids_it(
    schema: dict[str, Any], value: Any, output: Any
) -> None:
    check, answer = OutputCheck(schema), said(json.dumps(value))
    assert check.problem(answer) is None
    assert check.output(answer, BODY) == output


KEPT: dict[str, tuple[dict[str, Any], Any]] = {
    "that the schema allows": ({"properties": {"b": {"type": ["string", "null"]}}}, {"b": None}),
    "that has no schema": ({"properties": {"a": TEXT}}, {"b": None}),
    "beside one that is removed": (
        {"properties": {"a": TEXT, "b": {"type": ["string", "null"]}}}, {"a": None, "b": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), KEPT.values(), ids=KEPT)
def test_any_other_null_is_kept(schema: dict[str, Any], value: dict[str, Any]) -> None:
    check, answer = OutputCheck(schema), said(json.dumps(value))
    assert check.problem(answer) is None
    assert check.output(answer, BODY)["b"] is None


@pytest.mark.parametrize("schema", [{"allOf": [{"$ref": "#"}], "type": "string"}, {"anyOf": [{"$ref": "#"}]}])
def test_a_schema_that_refers_to_itself_without_end_ends(schema: dict[str, Any]) -> None:
    assert OutputCheck(schema).problem(said('{"a": null}')) is not None


def test_a_null_for_a_required_property_is_a_mismatch() -> None:
    assert (OutputCheck(SCHEMA).problem(said('{"months": null}')) or ("",))[0] == "schema_mismatch"
