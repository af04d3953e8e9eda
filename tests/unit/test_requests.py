"""Documents x tasks -> request lines: what is asked, in which order, and what makes a row the same row."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.core.request_lines import CheckedLine, check_line
from orchestrator.documents.types import Document, DocumentProblem, UnreadableDocument
from orchestrator.policy.model_names import resolve_model, with_model
from orchestrator.policy.request_limits import bounds
from orchestrator.policy.requests import Builder, Built, custom_id, places_text_late, variables
from orchestrator.settings.job_spec import JobSpec
from tests.support.examples import ample

DOCUMENT = Document("docs/a.txt", "a.txt", "It was agreed.", "d1g35t", 14, {"name": "a.txt", "path": "a.txt"})
TASK: dict[str, Any] = {"id": "parties", "prompt": "Who signs?", "model": "small"}


def spec(*tasks: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate({"name": "j", "documents": "docs", "tasks": list(tasks) or [TASK]})


def built(task: dict[str, Any] | None = None, document: Document = DOCUMENT) -> Built:
    [one] = Builder(spec({**TASK, **(task or {})})).build(document)
    return one


def body(one: Built) -> dict[str, Any]:
    return dict(json.loads(one.line)["body"])


def test_a_row_that_is_not_read_says_what_was_sent_when_it_was() -> None:
    builder = Builder(spec(TASK, {**TASK, "id": "other"}))
    identity, other = (
        {"custom_id": one.custom_id, "fingerprint": one.fingerprint}
        for one in builder.identities("d/a.pdf", "content")
    )
    earlier = [
        SimpleNamespace(**identity, cut_from_tokens=7, sent_as="pages 1-3 as images", notes=None),
        SimpleNamespace(**other, cut_from_tokens=None, sent_as=None, notes="2 pictures"),
    ]
    rows = [one.row for one in builder.unread("d/a.pdf", "content", earlier)]
    assert [(row.cut_from_tokens, row.sent_as, row.notes) for row in rows] == [
        (7, "pages 1-3 as images", None), (None, None, "2 pictures")
    ]  # fmt: skip


def test_a_request_line_is_one_that_the_batch_api_takes() -> None:
    one = built()
    checked = check_line(one.line, "/v1/chat/completions")
    assert isinstance(checked, CheckedLine)
    assert (checked.custom_id, checked.model) == (one.row.custom_id, "small")
    assert b"\n" not in one.line
    assert body(one) == {
        "model": "small",
        "messages": [{"role": "user", "content": "<document>\nIt was agreed.\n</document>\n\nWho signs?"}],
        "max_tokens": 512,
    }


def test_a_bound_under_extra_is_the_one_that_a_budget_holds() -> None:
    assert built({"max_tokens": 100}).row.max_output == 100
    assert built({"max_tokens": 100, "extra": {"max_completion_tokens": 4096}}).row.max_output == 4096


def test_the_tasks_of_a_document_stand_side_by_side_and_begin_alike() -> None:
    tasks = [{**TASK, "id": f"t{number}", "prompt": f"Question {number}?"} for number in range(3)]
    builder = Builder(spec(*tasks))
    other = replace(DOCUMENT, key="docs/b.txt", text="Nothing was.")
    found = [*builder.build(DOCUMENT), *builder.build(other)]
    assert [one.row.seq for one in found] == list(range(6))
    assert [(one.row.document, one.row.task) for one in found] == [
        (key, f"t{number}") for key in ("docs/a.txt", "docs/b.txt") for number in range(3)
    ]
    prefix = "<document>\nIt was agreed.\n</document>\n\nQuestion "
    assert all(body(one)["messages"][-1]["content"].startswith(prefix) for one in found[:3])


FIELDS = {
    "temperature": ({"temperature": 0}, {"temperature": 0}),
    "top_p": ({"top_p": 0.5}, {"top_p": 0.5}),
    "seed": ({"seed": 7}, {"seed": 7}),
    "stop": ({"stop": ["END"]}, {"stop": ["END"]}),
    "max_tokens": ({"max_tokens": 9}, {"max_tokens": 9}),
    "extra": ({"extra": {"top_k": 5}}, {"top_k": 5}),
    "schema": (
        {"schema": {"type": "object"}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "parties", "schema": {"type": "object"}, "strict": True},
            }
        },
    ),
    "nothing": ({}, {}),
}


@pytest.mark.parametrize(("task", "fields"), FIELDS.values(), ids=FIELDS.keys())
def test_the_fields_of_a_task_stand_in_the_body_and_no_others(task: dict[str, Any], fields: dict[str, Any]) -> None:
    found = body(built(task))
    assert {name: value for name, value in found.items() if name not in ("model", "messages")} == {
        "max_tokens": 512,
        **fields,
    }


def test_a_prompt_that_places_the_text_itself_is_taken_as_written() -> None:
    [message] = body(built({"prompt": "Read {{ text }} of {{ name }}.\n"}))["messages"]
    assert message["content"] == "Read It was agreed. of a.txt.\n"


def test_a_system_prompt_goes_before_and_may_use_fields() -> None:
    messages = body(built({"system": "You read {{ name }}."}))["messages"]
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"] == "You read a.txt."


def test_a_document_that_speaks_jinja_is_text() -> None:
    tricky = replace(DOCUMENT, text="{{ name }} {% raw %} </document>")
    assert "{{ name }} {% raw %} </document>" in body(built(document=tricky))["messages"][0]["content"]


@pytest.mark.slow
def test_a_long_document_is_cut_and_it_is_recorded() -> None:
    one = built({"max_document_tokens": 2})
    assert body(one)["messages"][0]["content"] == "<document>\nIt was\n</document>\n\nWho signs?"
    assert one.row.cut_from_tokens == 4
    assert built({"max_document_tokens": 4}).row.cut_from_tokens is None


FAILING = {
    "a field that is missing": ("{{ amount }}", "'amount' is undefined"),
    "text where a number is meant": ("{{ name * 1.5 }}", "can't multiply sequence by non-int"),
    "a division by nothing": ("{{ 1 / size }}", "division by zero"),
    "an item that is not there": ("{{ name.x.y }}", "has no attribute 'x'"),
    "a filter that does not fit": ("{{ name | sum }}", "unsupported operand type"),
    "what a template may not do": ("{{ ''.__class__.__mro__ }}", "is unsafe"),
    "a list without end": ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
}


@pytest.mark.parametrize(("prompt", "says"), FAILING.values(), ids=FAILING.keys())
def test_a_prompt_that_fails_for_a_document_fails_that_row_and_no_other(prompt: str, says: str) -> None:
    document = replace(DOCUMENT, fields={"name": "a.txt", "size": 0})
    builder = Builder(spec({**TASK, "prompt": prompt}, {**TASK, "id": "other"}))
    bad, good = builder.build(document)
    assert bad.line == b""
    assert bad.row.problem is not None
    assert bad.row.problem[0] == "template"
    assert says in bad.row.problem[1]
    assert (good.row.problem, good.row.seq) == (None, 1)


def test_a_document_that_could_not_be_read_fails_each_of_its_rows() -> None:
    broken = UnreadableDocument("docs/a.pdf", "a.pdf", DocumentProblem.ENCRYPTED, "needs a password", 5)
    found = list(Builder(spec(TASK, {**TASK, "id": "other"})).build(broken))
    assert [one.row.problem for one in found] == [("encrypted", "needs a password")] * 2
    assert [one.line for one in found] == [b"", b""]
    assert found[0].row.custom_id == custom_id("docs/a.pdf", "parties")


def fingerprint(task: dict[str, Any] | None = None, **document: Any) -> str:
    return built(task, replace(DOCUMENT, **document)).row.fingerprint


INGREDIENTS: dict[str, dict[str, Any]] = {
    "the document's bytes": {"digest": "other"},
    "the text read from them": {"text": "It was not agreed."},
    "the prompt": {"task": {"prompt": "Who signed?"}},
    "a system prompt": {"task": {"system": "You are exact."}},
    "the model's alias": {"task": {"model": "big"}},
    "a schema": {"task": {"schema": {"type": "object"}}},
    "another schema": {"task": {"schema": {"type": "array"}}},
    "max_tokens": {"task": {"max_tokens": 100}},
    "max_document_tokens": {"task": {"max_document_tokens": 100}},
    "temperature": {"task": {"temperature": 0}},
    "top_p": {"task": {"top_p": 0.5}},
    "seed": {"task": {"seed": 1}},
    "stop": {"task": {"stop": ["x"]}},
    "extra": {"task": {"extra": {"top_k": 1}}},
}


def test_each_ingredient_makes_another_fingerprint() -> None:
    marks = [fingerprint(), *(fingerprint(**changed) for changed in INGREDIENTS.values())]
    assert len(set(marks)) == len(INGREDIENTS) + 1
    assert all(re.fullmatch(r"[0-9a-f]{32}", mark) for mark in marks)


SAME: dict[str, dict[str, Any]] = {
    "again": {},
    "the document's name and key": {"name": "b.txt", "key": "docs/b.txt"},
    "the task's id, which is in the custom_id": {"task": {"id": "other"}},
    "defaults that are written out": {"task": {"max_tokens": 512, "extra": {}, "temperature": None}},
}


@pytest.mark.parametrize("changed", SAME.values(), ids=SAME.keys())
def test_nothing_else_makes_another_fingerprint(changed: dict[str, Any]) -> None:
    assert fingerprint(**changed) == fingerprint()


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    # Frozen: where it changes, every job's answers are asked for again in the next night.
    assert custom_id("docs/a.txt", "parties") == "parties-855180c4716602db97bf"
    assert fingerprint() == "b077573dac40c21fb716715c8b85275d"


def test_a_problem_has_a_fingerprint_of_its_own() -> None:
    def broken(code: DocumentProblem, message: str = "x") -> str:
        document = UnreadableDocument("docs/a.txt", "a.txt", code, message, 0)
        return next(Builder(spec()).build(document)).row.fingerprint

    empty = broken(DocumentProblem.EMPTY)
    assert broken(DocumentProblem.EMPTY, "in other words") == empty, "a sentence is not what is wrong"
    assert len({empty, broken(DocumentProblem.ENCODING), fingerprint()}) == 3


def test_the_prompts_version_changes_with_the_question_alone() -> None:
    version = built().row.prompt_version
    assert built(document=replace(DOCUMENT, text="x", digest="y")).row.prompt_version == version
    assert built({"model": "big"}).row.prompt_version == version
    assert built({"prompt": "Who?"}).row.prompt_version != version


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", fullmatch=True)


@pytest.mark.slow
@settings(max_examples=ample(100))
@given(st.text(st.characters(codec="utf-8"), max_size=300), NAMES)
def test_a_custom_id_is_short_and_plain_and_stable(key: str, task: str) -> None:
    found = custom_id(key, task)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,61}", found)
    assert found == custom_id(key, task)


@pytest.mark.slow
@settings(max_examples=ample(50))
@given(st.sets(st.tuples(st.text(st.characters(codec="utf-8"), max_size=10), NAMES), min_size=2, max_size=50))
def test_custom_ids_differ(pairs: set[tuple[str, str]]) -> None:
    assert len({custom_id(*pair) for pair in pairs}) == len(pairs)


def test_with_another_model_the_line_is_otherwise_the_same() -> None:
    line = built({"extra": {"n": 1.50, "deep": {"model": "small"}}, "temperature": 0.1}).line
    renamed = with_model(line, 'a "quoted" ü')
    assert json.loads(renamed) == json.loads(line) | {"body": body(built()) | json.loads(line)["body"] | {
        "model": 'a "quoted" ü'
    }}  # fmt: skip
    assert list(json.loads(renamed)["body"]) == list(json.loads(line)["body"])


@settings(max_examples=ample(50))
@given(
    st.dictionaries(
        st.text(max_size=5), st.text(max_size=5) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    )
)
def test_with_another_model_every_value_keeps_its_bytes(fields: dict[str, Any]) -> None:
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items() if name != "model"}
    line = msgspec.json.encode({"custom_id": "a", "method": "POST", "url": "/v1/x", "body": {"model": "m", **raw}})
    assert with_model(line, "m") == line


@pytest.mark.parametrize(
    ("alias", "backend", "name"),
    [("small", "gpu", "tiny"), ("big", "gpu", "b"), ("big", "api", None), ("none", "gpu", None)],
)
def test_a_models_name_at_a_backend(alias: str, backend: str, name: str | None) -> None:
    assert resolve_model(alias, backend, {"small": "tiny", "big": {"gpu": "b"}}) == name


@pytest.mark.parametrize(
    ("prompt", "late"),
    [
        ("Who signs?", False),
        ("{{ text }}\nWho signs?", False),
        ("  {{- text -}} Who?", False),
        ("Who signs {{ text }}?", True),
        ("{{ name }}: {{ text }}", True),
        ("{{ name }}?", False),
    ],
)
def test_a_prompt_that_places_the_text_late_is_noticed(prompt: str, late: bool) -> None:
    assert places_text_late(spec({**TASK, "prompt": prompt}).tasks[0]) == late


def test_variables_of_prompt_and_system_without_the_text() -> None:
    task = spec({**TASK, "prompt": "{{ text }} {{ amount }}", "system": "{% set x = name %}{{ x }}"}).tasks[0]
    assert variables(task) == {"amount", "name"}


CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"


@pytest.mark.parametrize(
    ("url", "body", "found"),
    [
        (CHAT, {"max_tokens": 50}, (1, 50)),
        (CHAT, {"max_tokens": 50, "max_completion_tokens": 40}, (1, 40)),
        (CHAT, {"max_tokens": 50, "n": 3}, (1, 150)),
        ("/v1/responses", {"max_output_tokens": 9, "input": ["a", "b"]}, (1, 9)),
        (CHAT, {}, (1, None)),
        (CHAT, {"max_tokens": None}, (1, None)),
        (CHAT, {"max_tokens": "many"}, (1, None)),
        (EMBEDDINGS, {"input": "text"}, (1, 0)),
        (EMBEDDINGS, {"input": ["a", "b", "c"]}, (3, 0)),
        (EMBEDDINGS, {"input": [1, 2, 3]}, (1, 0)),
        (EMBEDDINGS, {"input": [[1, 2], [3]]}, (2, 0)),
        (EMBEDDINGS, {"input": []}, (1, 0)),
    ],
    ids=str,
)
def test_what_goes_into_a_request_and_may_come_back(
    url: str, body: dict[str, Any], found: tuple[int, int | None]
) -> None:
    assert bounds(url, msgspec.Raw(msgspec.json.encode(body))) == found
