"""Which requests one answer would do for; and the mark that finds it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.batch_api import CHAT as ENDPOINT
from orchestrator.core.model import FinishedRow, RequestState, Span, Usage
from orchestrator.documents.types import Document
from orchestrator.policy.cache_keys import cache_key, line_cache_key
from orchestrator.policy.merged_rows import batch_row
from orchestrator.policy.requests import Builder
from orchestrator.settings.job_spec import JobSpec

CHAT, EMBEDDINGS = ENDPOINT, "/v1/embeddings"


def answer_format(*properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in properties}}
    return {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}


BODY: dict[str, Any] = {
    "model": "small",
    "messages": [{"role": "user", "content": "Who?"}],
    "max_tokens": 50,
    "response_format": answer_format("a", "b"),
}


def reordered(value: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(value.items()))


SAME: dict[str, dict[str, Any]] = {
    "again": {**BODY},
    "another model": {**BODY, "model": "big"},
    "the fields in another order": reordered(BODY),
    "a field that is null": {**BODY, "temperature": None},
}


@pytest.mark.parametrize("body", SAME.values(), ids=SAME.keys())
def test_the_same_request_has_the_same_key(body: dict[str, Any]) -> None:
    assert cache_key(CHAT, body) == cache_key(CHAT, BODY)


OTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "another endpoint": ("/v1/completions", BODY),
    "another text": (CHAT, {**BODY, "messages": [{"role": "user", "content": "What?"}]}),
    "another bound": (CHAT, {**BODY, "max_tokens": 51}),
    "a parameter more": (CHAT, {**BODY, "temperature": 0}),
    "a seed more": (CHAT, {**BODY, "temperature": 1, "seed": 7}),
    "properties in another order, which is that of the answer": (
        CHAT,
        {**BODY, "response_format": answer_format("b", "a")},
    ),
}


def test_every_other_request_has_another_key() -> None:
    keys = [cache_key(CHAT, BODY), *(cache_key(url, body) for url, body in OTHER.values())]
    assert None not in keys
    assert len(set(keys)) == len(OTHER) + 1


OF_THEIR_OWN: dict[str, dict[str, Any]] = {
    "sampling": {"temperature": 0.7},
    "tools, which look things up": {"tools": [{"type": "web_search"}]},
    "a search": {"web_search_options": {}},
    "what the provider keeps": {"previous_response_id": "r"},
    "a conversation there": {"conversation": "c"},
}


@pytest.mark.parametrize("more", OF_THEIR_OWN.values(), ids=OF_THEIR_OWN.keys())
def test_what_may_be_answered_otherwise_each_time_is_asked_each_time(more: dict[str, Any]) -> None:
    assert cache_key(CHAT, {**BODY, **more}) is None


LINES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "nothing said of sampling": (CHAT, {}, False),
    "temperature 0": (CHAT, {"temperature": 0}, True),
    "temperature 0.0": (CHAT, {"temperature": 0.0}, True),
    "a seed": (CHAT, {"seed": 1}, True),
    "a seed and a temperature": (CHAT, {"seed": 1, "temperature": 0.5}, True),
    "a temperature": (CHAT, {"temperature": 0.5}, False),
    "temperature 0 with tools": (CHAT, {"temperature": 0, "tools": []}, False),
    "embeddings, which are not sampled": (EMBEDDINGS, {}, True),
}


@pytest.mark.parametrize(("url", "more", "shared"), LINES.values(), ids=LINES.keys())
def test_a_ready_line_is_shared_where_it_says_that_it_has_one_answer(
    url: str, more: dict[str, Any], shared: bool
) -> None:
    body = {**BODY, **more}
    found = line_cache_key(url, msgspec.Raw(json.dumps(body, indent=1).encode()))
    assert found == (cache_key(url, body) if shared else None)


@pytest.mark.parametrize("raw", [b'{"a": 1e999}', b'{"a": "\xff"}', b"[" * 5000], ids=["a number", "bytes", "depth"])
def test_a_line_that_cannot_be_read_is_sent_as_it_is(raw: bytes) -> None:
    assert line_cache_key(EMBEDDINGS, msgspec.Raw(raw)) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)
)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=5), st.randoms())
def test_a_key_is_told_by_the_fields_alone(body: dict[str, Any], random: Any) -> None:
    items = list(body.items())
    random.shuffle(items)
    assert cache_key(EMBEDDINGS, dict(items)) == cache_key(EMBEDDINGS, body)


def key_of(document: str = "It was agreed.", **task: Any) -> str | None:
    spec = JobSpec.model_validate(
        {"name": "j", "documents": "d", "tasks": [{"id": "t", "prompt": "Who?", "model": "m", **task}]}
    )
    [one] = Builder(spec).build(Document(f"d/{document}", "a.txt", document, "digest", 9, {}))
    body = json.loads(one.line)["body"]
    assert one.row.cache_key in (None, cache_key(ENDPOINT, body), cache_key(ENDPOINT, {**body, "max_tokens": "auto"}))
    return one.row.cache_key


def test_the_key_of_a_tasks_request_is_that_of_its_body() -> None:
    assert key_of() == key_of(id="other", model="big") is not None
    assert key_of("Another.") != key_of()
    assert key_of(max_tokens="auto") == key_of(max_tokens="auto") != key_of()
    assert key_of(cache=False) is None
    assert key_of(temperature=0.3) is None
    assert key_of(temperature=0.3, seed=1) is not None


def test_a_ready_result_line_bears_the_id_of_the_row_that_has_taken_the_answer() -> None:
    row = FinishedRow(
        1, "mine", "", "", "m", "", None, RequestState.SUCCEEDED, 0, ("s", "output", Span(0, 9)), "m", None, None,
        Usage(), None, Decimal(0), None, None, "job-1", "openai", "b",
    )  # fmt: skip
    line = b'{"id": "x", "custom_id": "theirs", "response": {"status_code": 200, "body": {"n": 1.50}}, "error": null}'
    assert batch_row(row, line) == (
        b'{"id":"x","custom_id":"mine","response":{"status_code": 200, "body": {"n": 1.50}},"error":null}'
    )
