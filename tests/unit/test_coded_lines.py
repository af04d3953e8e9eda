"""Row codes in request lines and answers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from orchestrator.core.row_codes import code_of, with_property, without_code
from orchestrator.policy import coded_lines
from orchestrator.policy.answer_check import WRONG_CODE, check_of
from orchestrator.policy.answer_text import Answer
from orchestrator.policy.request_bodies import asked_fields, fixed_fields, url_of
from orchestrator.settings.task_spec import Task

Json = dict[str, Any]
SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TASK: Json = {"id": "t", "prompt": "What?", "model": "m", "check": "nonce", "schema": SCHEMA}


def line(task: Task, content: Any) -> bytes:
    body = {"model": "m", **asked_fields(url_of(task), [{"role": "user", "content": content}]), **fixed_fields(task)}
    return msgspec.json.encode({"custom_id": "t-1", "method": "POST", "url": url_of(task), "body": body})


@pytest.mark.parametrize("endpoint", ["chat", "responses"])
@pytest.mark.parametrize("content", ["What?", [{"type": "text", "text": "What?"}]])
def test_the_prompt_ends_with_the_code_and_the_schema_begins_with_its_property(endpoint: str, content: Any) -> None:
    task = Task.model_validate({**TASK, "endpoint": endpoint})
    plain = line(task, content)
    told = json.loads(coded_lines.with_code(coded_lines.with_property(plain), "job"))["body"]
    before = json.loads(plain)["body"]
    asked = told["text"]["format"] if endpoint == "responses" else told["response_format"]["json_schema"]
    schema = asked["schema"]
    assert list(schema["properties"]) == ["row_code", "a"]
    assert schema["required"] == ["row_code", "a"]
    last = (told.get("messages") or told["input"])[-1]["content"]
    text = last if isinstance(last, str) else last[-1]["text"]
    assert text.endswith(f": {code_of('job', 't-1')}")
    kept = (before.get("messages") or before["input"])[-1]["content"]
    assert last.startswith(kept) if isinstance(last, str) else last[:-1] == kept


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": None}, "`check: nonce` needs a `schema`, in which the answer gives a code back"),
        ({"schema": {"type": "array", "items": {}}}, "needs a `schema` of `type: object` with `properties`"),
        ({"schema": {**SCHEMA, "maxProperties": 1}}, "whose `maxProperties` may forbid it: leave that out"),
        (
            {"schema": {"type": "object", "properties": {"row_code": {}}}},
            "give the schema's own property another name",
        ),
        ({"kind": "embedding", "schema": None, "max_tokens": 512}, "an embedding is a vector"),
        ({"extra": {"regex": "a+"}}, "`regex` sets the form of the answer"),
    ],
    ids=["no schema", "a list", "bounded", "taken", "vector", "grammar"],
)
def test_a_task_whose_answers_cannot_give_a_code_back_is_refused(change: Json, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Task.model_validate({**TASK, **change})
    assert words in str(refused.value)


def test_labels_have_codes_too() -> None:
    Task.model_validate({"id": "t", "kind": "classify", "labels": ["x", "y"], "model": "m", "check": "nonce"})


@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "Here it is: {}"])
def test_the_code_is_found_and_taken_off(around: str) -> None:
    check = check_of(Task.model_validate(TASK), job_name="job")
    code = code_of("job", "t-1")
    good = Answer(around.replace("{}", json.dumps({"row_code": f" {code.upper()}", "a": 1})), "stop", False)
    assert check.problem(good) is None
    assert check.code_problem(good, "t-1") is None
    assert check.output(good, msgspec.Raw(b"{}")) == {"a": 1}
    assert (check.code_problem(good, "t-2") or ("",))[0] == WRONG_CODE
    bare = Answer(around.replace("{}", '{"a": 1}'), "stop", False)
    assert (check.code_problem(bare, "t-1") or ("", ""))[1].startswith("the answer has no `row_code`")


def test_a_property_of_the_users_own_schema_stays() -> None:
    assert (
        without_code({"row_code": "x", "a": 1}, {**SCHEMA, "properties": {"row_code": {}, "a": {}}})["row_code"]
        == "x"
    )
    assert without_code({"row_code": "x", "a": 1}, SCHEMA) == {"a": 1}
    assert with_property({"type": "object", "properties": {}})["required"] == ["row_code"]
