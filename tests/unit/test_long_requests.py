"""Tasks that split long documents: who the parts are, what stays when one changes, what a job file may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import InputError
from orchestrator.documents.types import Document
from orchestrator.policy.requests import Builder, Built, custom_id, reduce_line
from orchestrator.settings.job_file import load
from orchestrator.settings.job_spec import JobSpec
from orchestrator.settings.task_spec import Task

LONG: dict[str, Any] = {"part_tokens": 100, "overlap_tokens": 0, "reduce": "One answer."}
TASK: dict[str, Any] = {"id": "t", "prompt": "What is owed?", "model": "small", "long": LONG}
PARAGRAPHS = [f"Clause {number}. " + f"Party {number} pays on day {number}. " * 5 for number in range(20)]
TEXT = "\n\n".join(PARAGRAPHS)


def built(text: str = TEXT, document: dict[str, Any] | None = None, **task: Any) -> list[Built]:
    spec = JobSpec.model_validate({"name": "j", "documents": "d", "tasks": [{**TASK, **task}]})
    fields = {"name": "a.txt", "size": len(text), **(document or {})}
    return list(Builder(spec).build(Document("d/a.txt", "a.txt", text, f"digest of {text}", len(text), fields)))


def said(one: Built) -> str:
    content: str = json.loads(one.line)["body"]["messages"][-1]["content"]
    return content.removeprefix("<document>\n").removesuffix("\n</document>\n\nWhat is owed?")


def test_the_row_of_the_answer_comes_first_and_the_parts_are_the_text() -> None:
    whole, *parts = built()
    assert (whole.row.custom_id, whole.row.parts, whole.row.part, whole.line) == (
        custom_id("d/a.txt", "t"), len(parts), None, b"",
    )  # fmt: skip
    assert "".join(map(said, parts)) == TEXT
    assert [one.row.part for one in parts] == [*range(1, len(parts) + 1)]
    assert [one.row.seq for one in (whole, *parts)] == [*range(len(parts) + 1)]
    assert {one.row.parts for one in parts} == {len(parts)}
    assert len({one.row.custom_id for one in (whole, *parts)}) == len(parts) + 1
    assert all(json.loads(one.line)["custom_id"] == one.row.custom_id for one in parts)
    assert whole.row.cache_key is None
    assert None not in {one.row.cache_key for one in parts}


def test_parts_that_say_the_same_are_rows_of_their_own() -> None:
    _, *parts = built("The same clause again, word for word.\n\n" * 60)
    assert len({said(one) for one in parts}) < len(parts) == len({one.row.custom_id for one in parts})


def test_a_document_within_the_limit_is_asked_at_once_as_the_same_row() -> None:
    [one] = built("Nothing is owed.")
    [plain] = built("Nothing is owed.", long=None)
    assert (one.row.parts, one.row.custom_id, one.line) == (None, plain.row.custom_id, plain.line)
    # The same request, so that its answer is found; but not the same row, as one that was asked whole is no longer.
    assert one.row.cache_key == plain.row.cache_key
    assert one.row.fingerprint != plain.row.fingerprint


def fingerprints(rows: list[Built]) -> dict[str, str]:
    return {one.row.custom_id: one.row.fingerprint for one in rows}


def test_an_edit_moves_the_document_and_the_part_that_it_is_in() -> None:
    before = fingerprints(built())
    after = fingerprints(built("\n\n".join([*PARAGRAPHS[:-1], "Nothing more."])))
    assert before[custom_id("d/a.txt", "t")] != after[custom_id("d/a.txt", "t")]
    same = before.items() & after.items()
    assert 1 <= len(after) - len(same) - 1 <= 2


@pytest.mark.parametrize(
    ("change", "whole", "parts"),
    [
        ({}, True, True),
        ({"long": {**LONG, "reduce": "Another."}}, False, True),
        ({"long": {**LONG, "reduce_model": "large"}}, False, True),
        ({"long": {**LONG, "reduce_tokens": 5000}}, False, True),
        ({"prompt": "Who owes?"}, False, False),
        ({"model": "large"}, False, False),
        ({"document": {"name": "b.txt"}}, True, True),
        ({"prompt": "What is owed by {{ name }}?"}, False, False),
    ],
    ids=["nothing", "reduce prompt", "reduce model", "reduce bound", "prompt", "model", "unused field", "field"],
)
def test_what_makes_rows_other_rows(change: dict[str, Any], whole: bool, parts: bool) -> None:
    before, after = fingerprints(built()), fingerprints(built(**change))
    assert before.keys() == after.keys()
    row = custom_id("d/a.txt", "t")
    assert (before.pop(row) == after.pop(row)) is whole
    assert (before == after) is parts
    assert before == after or not before.items() & after.items()


def test_the_answers_row_has_its_own_model_bound_and_version() -> None:
    spec = JobSpec.model_validate(
        {
            "name": "j",
            "documents": "d",
            "tasks": [{**TASK, "max_tokens": "auto", "long": {**LONG, "reduce_model": "b"}}],
        }
    )
    bounds: dict[str, int] = {}
    builder = Builder(spec, lambda task, version: bounds.setdefault(version, 64 * (len(bounds) + 1)))
    whole, part, *_ = builder.build(Document("d/a.txt", "a.txt", TEXT, "digest", 9, {}))
    assert (whole.row.model, part.row.model) == ("b", "small")
    assert bounds == {part.row.prompt_version: part.row.max_output, whole.row.prompt_version: whole.row.max_output}
    assert whole.row.max_output != part.row.max_output


def test_a_prompt_that_cannot_be_made_of_a_document_fails_it_as_one_row() -> None:
    [one] = built(prompt="{{ size / 0 }}")
    assert one.row.problem is not None
    assert (one.row.seq, one.row.parts, one.row.custom_id) == (0, None, custom_id("d/a.txt", "t"))


def test_what_is_cut_is_cut_before_it_is_split() -> None:
    whole, *parts = built(max_document_tokens=250)
    told = "".join(map(said, parts))
    assert TEXT.startswith(told)
    assert whole.row.cut_from_tokens == parts[0].row.cut_from_tokens
    assert len(parts) < len(built()) - 1


def test_what_a_clean_up_saved_is_told_of_the_parts_once() -> None:
    spaced = TEXT.replace(" ", "     ")
    spec = {"name": "j", "documents": "d", "tasks": [TASK], "clean": {"whitespace": True}}
    rows = list(Builder(JobSpec.model_validate(spec)).build(Document("d/a.txt", "a", spaced, "x", 9, {})))
    saved = (len(spaced) - len(TEXT)) // 4
    assert saved - 2 * len(rows) <= sum(one.row.trimmed_tokens for one in rows) <= saved + 2


def task(**long: Any) -> Task:
    return Task.model_validate({**TASK, "long": {**LONG, **long}})


def test_the_request_about_the_answers() -> None:
    line = reduce_line(task(reduce_model="big"), "t-1", 77, ["One.", "Two."])
    assert isinstance(line, bytes)
    assert b"\n" not in line
    told = "<answers>\n<answer>\nOne.\n</answer>\n<answer>\nTwo.\n</answer>\n</answers>\n\nOne answer."
    assert json.loads(line) == {
        "custom_id": "t-1", "method": "POST", "url": "/v1/chat/completions",
        "body": {"model": "big", "messages": [{"role": "user", "content": told}], "max_tokens": 77},
    }  # fmt: skip


def test_answers_are_put_where_the_prompt_wants_them_up_to_its_bound() -> None:
    prompt = "{% for one in answers %}- {{ one }}\n{% endfor %}"
    line = reduce_line(task(reduce=prompt, reduce_tokens=12), "t-1", 77, ["One.", "Two."])
    assert isinstance(line, bytes)
    assert json.loads(line)["body"]["messages"] == [{"role": "user", "content": "- One.\n- Two.\n"}]
    code, message = reduce_line(task(reduce=prompt, reduce_tokens=11), "t-1", 77, ["One.", "Two."])
    assert (code, message) == (
        "answers_too_long",
        "the answers to its 2 parts make a request of 12 tokens, and `reduce_tokens` is 11: raise it, or "
        "`part_tokens`, or ask for shorter answers",
    )


FAULTS = {
    "a field in reduce": (
        {"long": {**LONG, "reduce": "{{ answers }} of {{ name }}"}},
        "tasks[0].long.reduce", "the template uses {{ name }}", "it may use {{ answers }}",
    ),
    "no template": (
        {"long": {**LONG, "reduce": "{{ answers"}}, "tasks[0].long.reduce", "is not a Jinja2 template", None,
    ),
    "a field in system": (
        {"system": "Of {{ name }}."}, "tasks[0].system", "the template uses {{ name }}", "no fields",
    ),
    "too much overlap": (
        {"long": {**LONG, "overlap_tokens": 51}}, "tasks[0].long", "half of `part_tokens`", None,
    ),
    "no reduce": ({"long": {"part_tokens": 100}}, "tasks[0].long.reduce", "is required", None),
    "tiny parts": ({"long": {**LONG, "part_tokens": 99}}, "tasks[0].long.part_tokens", "100", None),
}  # fmt: skip


@pytest.mark.parametrize(("change", "field", "message", "hint"), FAULTS.values(), ids=FAULTS.keys())
def test_what_is_wrong_is_told_by_field(
    tmp_path: Path, change: dict[str, Any], field: str, message: str, hint: str | None
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"name": "j", "documents": "d", "tasks": [{**TASK, **change}]}), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        load(path)
    assert refused.value.field == field
    assert refused.value.line == 1
    assert message in refused.value.message
    assert hint is None or hint in str(refused.value.hint)


def test_a_job_file_with_long_documents_loads(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    told = {**TASK, "system": "Short.", "long": {"reduce": "Of {{ answers | length }}: {{ answers }}"}}
    path.write_text(json.dumps({"name": "j", "documents": "d", "tasks": [told]}), encoding="utf-8")
    [task] = load(path).tasks
    assert task.long is not None
    assert (task.long.part_tokens, task.long.overlap_tokens, task.aliases) == (6000, 200, {("model",): "small"})
