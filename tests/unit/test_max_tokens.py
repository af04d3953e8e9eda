"""`max_tokens: auto`: the bound of an answer, from the lengths of earlier ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import InputError
from orchestrator.documents.types import Document
from orchestrator.policy.max_tokens import AUTO_AT_MOST, BoundOf, bound_from, written_bound
from orchestrator.policy.request_limits import too_large
from orchestrator.policy.requests import Builder, Built
from orchestrator.settings.job_file import load
from orchestrator.settings.job_spec import JobSpec
from orchestrator.settings.task_spec import Task

BOUNDS: dict[str, tuple[dict[int, int], int | None, int]] = {
    "nothing is known": ({}, None, 512),
    "199 answers are too few": ({20: 199}, None, 512),
    "200 are enough: a quarter more, up to a multiple of 64": ({20: 200}, None, 64),
    "exactly a multiple": ({512: 200}, None, 640),
    "one in a thousand may be longer": ({20: 999, 900: 1}, None, 64),
    "two in a thousand may not": ({20: 998, 900: 2}, None, 1152),
    "never above the highest": ({4000: 200}, None, 4096),
    "answers of no tokens": ({0: 200}, None, 64),
    "one was cut off: twice as much": ({20: 200, 512: 1}, 512, 1024),
    "cut off among few": ({512: 3}, 512, 1024),
    "cut off at the highest": ({4096: 3}, 4096, 4096),
    "cut off at less than most others have": ({900: 1000}, 64, 1152),
}


@pytest.mark.parametrize(("seen", "cut_at", "bound"), BOUNDS.values(), ids=BOUNDS.keys())
def test_the_bound_that_earlier_answers_give(seen: dict[int, int], cut_at: int | None, bound: int) -> None:
    assert bound_from(seen, cut_at) == bound


@pytest.mark.slow
@given(st.lists(st.integers(0, 3000), min_size=200, max_size=400), st.integers(1, 3000))
def test_a_bound_holds_what_was_seen_and_grows_with_it(lengths: list[int], more: int) -> None:
    bound = bound_from(Counter(lengths), None)
    assert bound % 64 == 0
    assert max(lengths) < bound <= AUTO_AT_MOST
    assert bound_from(Counter([*lengths, more + max(lengths)]), None) >= bound


def spec(**task: Any) -> JobSpec:
    tasks = [{"id": "t", "prompt": "Who?", "model": "m", **task}]
    return JobSpec.model_validate({"name": "j", "documents": "d", "tasks": tasks})


def built(bound_of: BoundOf = written_bound, **task: Any) -> Built:
    [one] = Builder(spec(**task), bound_of).build(Document("d/a", "a", "It was agreed.", "digest", 9, {}))
    return one


def test_a_bound_that_is_found_is_asked_for_and_is_no_part_of_who_a_row_is() -> None:
    asked: list[tuple[str, str]] = []

    def learned(task: Task, version: str) -> int:
        asked.append((task.id, version))
        return 192

    first, second = built(max_tokens="auto"), built(learned, max_tokens="auto")
    assert [json.loads(one.line)["body"]["max_tokens"] for one in (first, second)] == [512, 192]
    assert [one.row.max_output for one in (first, second)] == [512, 192]
    assert asked == [("t", first.row.prompt_version)]
    for name in ("fingerprint", "cache_key", "prompt_version", "custom_id"):
        assert getattr(first.row, name) == getattr(second.row, name)
    written = built(max_tokens=512).row
    assert written.fingerprint != first.row.fingerprint
    assert written.cache_key != first.row.cache_key


def test_in_a_job_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = "name: j\ndocuments: d\ntasks:\n  - {id: t, prompt: Who, model: m, max_tokens: %s}\n"
    path.write_text(text % "auto")
    assert load(path).tasks[0].max_tokens == "auto"
    path.write_text(text % "many")
    with pytest.raises(
        InputError, match=r"job.yaml:4: tasks\[0\].max_tokens: Input should be a valid integer"
    ) as told:
        load(path)
    assert "\n" not in told.value.message


def test_numbers_that_nothing_can_hold_are_told_and_texts_of_digits_are_none() -> None:
    def told(body: str) -> tuple[str | None, str] | None:
        raw = msgspec.Raw(body.encode())
        return too_large(bytes(raw), "/v1/chat/completions", raw)

    assert told('{"max_tokens": 2147483647}') is None
    assert told('{"max_tokens": 2147483648}') == ("body.max_tokens", "must be at most 2,147,483,647")
    assert told('{"n": 3, "max_output_tokens": 1000000000}') == (
        "body.n", "times max_tokens must be at most 2,147,483,647"
    )  # fmt: skip
    digits = "9" * 4301
    assert told(f'{{"messages": "{digits}"}}') is None
    assert told(f'{{"temperature": 0.{digits}}}') is None
    assert told(f'{{"seed": {digits}}}') == (None, "a number has more than 4,300 digits")
    assert told(f'{{"seed": {digits[1:]}}}') is None
