"""Rows by the request that an answer echoes; Vertex AI's jobs, results and requests in OpenAI's shape."""

from __future__ import annotations

import json
import random
import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.backends import BatchOrder
from orchestrator.backends.buckets import BucketPrefix
from orchestrator.backends.echoes import Echoes, request_digest
from orchestrator.backends.open import limits_of, profile_for
from orchestrator.backends.package import BackendAccess
from orchestrator.backends.vertex import PACKAGE
from orchestrator.backends.vertex.jobs import batch_of, creation, results_in
from orchestrator.backends.vertex.requests import SPOKEN, translate
from orchestrator.backends.vertex.results import matched, request_lines, sent_line
from orchestrator.core.errors import InputError, UsageError
from tests.support.google import vertex_settings

ASK = [{"role": "user", "content": "hello"}]
PLACE = BucketPrefix("night-batches", "orch", "gs")
ORDER = BatchOrder(
    "job_a-1f.001", "orch/in/0f/job_a-1f.001.jsonl", "/v1/chat/completions", 86_400, 3, "h1", "gemini-x"
)
FOLDER = "gs://night-batches/orch/out/h1/job_a-1f.001/prediction-model-2026-09-02T20:06:30.166279Z"
Json = dict[str, Any]


def sent(text: str = "hello", **body: Any) -> Json:
    return translate({"model": "gemini-x", "messages": [{"role": "user", "content": text}], **body})


def answered(request: object, text: str = "yes", **more: Any) -> bytes:
    response = {"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}]}
    return json.dumps({"status": "", "request": request, "response": response, **more}).encode()


def ids_of(lines: list[bytes], rows: list[tuple[str, Json]]) -> list[str]:
    return [json.loads(line)["custom_id"] for line in matched(lines, Echoes(rows, SPOKEN))]


# --- echoes

NAMES = st.sampled_from(["topP", "maxOutputTokens", "stopSequences", "responseJsonSchema", "thinkingConfig"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.integers(-(2**31), 2**31), st.floats(-1e6, 1e6, width=32), st.text(max_size=6), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)
REQUESTS = st.builds(
    lambda text, config: {"contents": [{"role": "user", "parts": [{"text": text}]}], "generationConfig": config},
    st.text(min_size=1, max_size=8),
    st.dictionaries(NAMES, VALUES, max_size=3),
)


def rewritten(value: Any, dice: random.Random) -> Any:
    """The same value in other words: order, nulls, spelling of names, kind of numbers."""
    if isinstance(value, dict):
        names = list(value)
        dice.shuffle(names)
        snake = dice.random() < 0.5
        found = {
            re.sub("([A-Z])", r"_\1", name).lower() if snake else name: rewritten(value[name], dice) for name in names
        }
        return found | ({"fileData": None} if dice.random() < 0.5 else {})
    if isinstance(value, list):
        return [rewritten(one, dice) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and dice.random() < 0.5:
        return float(value)
    return value


@pytest.mark.slow
@given(st.lists(REQUESTS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_an_answer_is_never_given_to_a_row_with_another_request(requests: list[Json], dice: random.Random) -> None:
    rows = [(str(number), request) for number, request in enumerate(requests)]
    echoes = Echoes(rows, SPOKEN)
    order = [*requests]
    dice.shuffle(order)
    taken: list[str] = []
    for request in order:
        found = echoes.find(rewritten(request, dice))
        if found is not None:
            assert found == request_digest(request)
            taken.append(echoes.take(found))
    assert len(taken) == len(set(taken))


@given(REQUESTS, st.randoms(use_true_random=False))
def test_a_request_is_found_in_other_words(request_: Json, dice: random.Random) -> None:
    echoes = Echoes([("a", request_), ("b", sent("something else entirely"))], SPOKEN)
    assert echoes.find(rewritten(request_, dice)) == request_digest(request_)


def test_an_echo_with_a_config_that_nobody_sent_is_found_by_its_texts() -> None:
    rows = [("a", sent("one")), ("b", sent("two", temperature=0.5))]
    echo = {**sent("two", temperature=0.5), "generationConfig": {"temperature": 0.5, "topK": 40, "topP": 0.95}}
    assert ids_of([answered(echo)], rows) == ["b"]


def test_requests_with_one_text_are_told_apart_by_their_config() -> None:
    rows = [("a", sent(temperature=0.1)), ("b", sent(temperature=0.9))]
    assert ids_of([answered(rows[1][1]), answered(rows[0][1])], rows) == ["b", "a"]
    unclear = answered({**sent(), "generationConfig": {"topK": 40}})
    assert ids_of([unclear], rows)[0].startswith("of no row: request ")


def test_equal_requests_are_answered_in_turn_and_failures_come_last() -> None:
    rows = [("a", sent()), ("b", sent()), ("c", sent("other"))]
    failed = json.dumps({"status": "Internal Server Error", "request": sent(), "response": {}}).encode()
    found = [
        json.loads(line)
        for line in matched([failed, answered(sent()), answered(sent("other"))], Echoes(rows, SPOKEN))
    ]
    assert [(one["custom_id"], one["response"]["status_code"]) for one in found] == [
        ("a", 200),
        ("c", 200),
        ("b", 500),
    ]


def test_answers_beyond_the_rows_are_duplicates_of_the_last() -> None:
    rows = [("a", sent()), ("b", sent())]
    assert ids_of([answered(sent())] * 4, rows) == ["a", "b", "b", "b"]


@pytest.mark.parametrize("echo", [None, [], "text", {}, {"contents": 5}, {"contents": [{"parts": [{"text": 7}]}]}])
def test_an_echo_of_any_shape_finds_no_row_and_stops_nothing(echo: object) -> None:
    rows = [("a", sent()), ("silent", sent(""))]
    first, second = ids_of([answered(echo), answered(sent())], rows)
    assert first.startswith("of no row")
    assert second == "a"


def test_a_line_that_is_not_json_stays() -> None:
    assert [*matched([b'{"status": "", "req'], Echoes([], SPOKEN))] == [b'{"status": "", "req']


# --- results


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ('Bad Request: {"error": {"code": 400, "message": "Please use a valid role: user, model.", '
         '"status": "INVALID_ARGUMENT"}}', 400, "Please use a valid role: user, model."),
        ('RESOURCE_EXHAUSTED error occurred: {"error": {"code": 429, "message": "Quota."}}', 429, "Quota."),
        ("Too Many Requests: later", 429, "Too Many Requests: later"),
        ("Service Unavailable", 503, "Service Unavailable"),
        ("no words of HTTP", 502, "no words of HTTP"),
    ],
)  # fmt: skip
def test_the_status_of_a_failed_row_is_read(status: str, code: int, message: str) -> None:
    line = json.dumps({"status": status, "request": sent(), "response": {}}).encode()
    [found] = [json.loads(one) for one in matched([line], Echoes([("a", sent())], SPOKEN))]
    assert found["response"]["status_code"] == code
    assert found["response"]["body"]["error"]["message"] == message


def test_a_line_without_answer_and_error_is_unknown() -> None:
    line = json.dumps({"status": "", "request": sent(), "response": {}}).encode()
    [found] = [json.loads(one) for one in matched([line], Echoes([("a", sent())], SPOKEN))]
    assert found["error"]["code"] == "unknown_result"


def test_a_model_has_its_own_name() -> None:
    line = json.loads(answered(sent()))
    line["response"]["modelVersion"] = "gemini-2.5-flash-001@default"
    [found] = [json.loads(one) for one in matched([json.dumps(line).encode()], Echoes([("a", sent())], SPOKEN))]
    assert found["response"]["body"]["model"] == "gemini-2.5-flash-001"


def test_a_line_of_ours_and_the_one_that_was_sent_have_one_digest() -> None:
    ours = json.dumps({"custom_id": "r", "body": {"model": "gemini-x", "messages": ASK, "user": "u"}}).encode()
    [theirs] = request_lines([ours])
    assert theirs == b'{"request":{"contents":[{"role":"user","parts":[{"text":"hello"}]}]}}\n'
    assert sent_line(ours) == ("r", sent_line(theirs)[1])
    assert sent_line(b"no line") == sent_line(b"no line ")


# --- jobs


def test_a_create_has_the_place_of_its_files() -> None:
    found = creation(ORDER, PLACE)
    assert found["displayName"] == "orch_shard=job_a-1f.001 orch_home=h1"
    assert found["model"] == "publishers/google/models/gemini-x"
    assert found["inputConfig"]["gcsSource"]["uris"] == ["gs://night-batches/orch/in/0f/job_a-1f.001.jsonl"]
    assert found["outputConfig"]["gcsDestination"]["outputUriPrefix"].endswith("/orch/out/h1/job_a-1f.001/")


def test_a_long_name_of_a_job_is_cut_and_its_place_is_not() -> None:
    long = replace(ORDER, shard=f"{'n' * 200}-1f.001")
    found = creation(long, PLACE)
    assert len(found["displayName"]) == 128
    batch = batch_of({"name": "a/1", **found}, PLACE)
    assert isinstance(batch, dict)
    assert batch["metadata"]["orch_shard"] == long.shard


def job(state: str, **more: Any) -> Json:
    name = "projects/123/locations/us-central1/batchPredictionJobs/987"
    return {"name": name, **creation(ORDER, PLACE), "state": state, "createTime": "2026-11-01T00:00:00Z", **more}


@pytest.mark.parametrize(
    ("state", "status", "has_results"),
    [
        ("JOB_STATE_QUEUED", "queued", False),
        ("JOB_STATE_PENDING", "pending", False),
        ("JOB_STATE_RUNNING", "running", False),
        ("JOB_STATE_PAUSED", "in_progress", False),
        ("JOB_STATE_UPDATING", "in_progress", False),
        ("JOB_STATE_CANCELLING", "cancelling", False),
        ("JOB_STATE_SUCCEEDED", "succeeded", True),
        ("JOB_STATE_PARTIALLY_SUCCEEDED", "expired", True),
        ("JOB_STATE_FAILED", "failed", False),
        ("JOB_STATE_CANCELLED", "cancelled", False),
        ("JOB_STATE_EXPIRED", "expired", False),
    ],
)
def test_a_job_is_a_batch(state: str, status: str, has_results: bool) -> None:
    found = batch_of(job(state), PLACE)
    assert isinstance(found, dict)
    assert (found["id"], found["status"]) == ("987", status)
    assert found["metadata"] == {"orch_home": "h1", "orch_shard": "job_a-1f.001"}
    assert found["input_file_id"] == ORDER.input_file_id
    assert ("output_file_id" in found) is has_results


@pytest.mark.parametrize("state", ["JOB_STATE_CANCELLED", "JOB_STATE_FAILED", "JOB_STATE_EXPIRED"])
@pytest.mark.parametrize(
    ("stats", "has_results"),
    [
        ({"successfulCount": "2"}, True),
        ({"failedCount": "1"}, True),
        ({"incompleteCount": "-1"}, False),
        (None, True),
    ],
)
def test_what_was_done_before_an_end_is_read(state: str, stats: Json | None, has_results: bool) -> None:
    found = batch_of(job(state, completionStats=stats, outputInfo={"gcsOutputDirectory": FOLDER}), PLACE)
    assert isinstance(found, dict)
    assert found.get("output_file_id") == (f"{FOLDER.removeprefix('gs://night-batches/')}/" if has_results else None)


@pytest.mark.parametrize(
    ("code", "word"),
    [(3, "invalid_argument"), (7, "permission_denied"), (8, "resource_exhausted"), (9, "permission_denied"),
     (13, "internal"), (99, "rpc_99")],
)  # fmt: skip
def test_the_error_of_a_job_has_its_code(code: int, word: str) -> None:
    found = batch_of(job("JOB_STATE_FAILED", error={"code": code, "message": "why"}), PLACE)
    assert isinstance(found, dict)
    assert found["errors"] == [{"code": word, "message": "why"}]


@pytest.mark.parametrize("told", [None, [], "text", {"state": 5}, {"outputInfo": [], "completionStats": "x"}])
def test_a_job_of_any_shape_raises_nothing(told: object) -> None:
    batch_of(told, PLACE)
    batch_of({"state": "JOB_STATE_SUCCEEDED", **(told if isinstance(told, dict) else {})}, PLACE)


def test_parts_of_results_are_left_where_the_whole_is() -> None:
    assert results_in(["a/incremental_1.jsonl", "a/predictions.jsonl"]) == ["a/predictions.jsonl"]
    assert results_in(["a/p-1.jsonl", "a/p-2.jsonl", "a/stats.json"]) == ["a/p-1.jsonl", "a/p-2.jsonl"]


# --- requests and settings


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"logit_bias": {}}, "logit_bias"),
        ({"cachedContent": "caches/1"}, "cachedContent"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {}}}}}}, None),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"ä": {"type": 1}}}}}},
         "response_format"),
        ({"messages": [*ASK, {"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": {}}'}}]}]}, "messages"),
    ],
)  # fmt: skip
def test_what_a_batch_cannot_have_is_named(body: Json, field: str | None) -> None:
    if field is None:
        assert "responseJsonSchema" not in sent(**body)["generationConfig"]
        return
    with pytest.raises(InputError) as caught:
        translate({"model": "gemini-x", "messages": ASK, **body})
    assert caught.value.field == field


def test_a_nesting_that_is_too_deep_is_named() -> None:
    schema: Json = {"type": "string"}
    for _ in range(7):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(InputError, match="more than 15 levels"):
        sent(response_format={"type": "json_schema", "json_schema": {"schema": schema}})


def test_a_call_without_arguments_has_none() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    found = translate({"model": "m", "messages": [*ASK, {"role": "assistant", "tool_calls": [call]}]})
    assert found["contents"][1]["parts"] == [{"functionCall": {"name": "f"}}]


def test_without_the_extra_a_backend_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = vertex_settings("", "k")
    monkeypatch.delitem(sys.modules, "orchestrator.backends.vertex.credentials", raising=False)
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(UsageError, match="needs the extra `vertex`") as caught:
        PACKAGE.open(settings, BackendAccess("it", ""))
    assert str(caught.value.hint).startswith("pip install 'orch-batch[vertex]'")
    PACKAGE.open(settings, BackendAccess("it", "a-token")).close()


def test_limits_and_windows_are_those_of_googles_guide() -> None:
    settings = vertex_settings("", "k")
    limits = limits_of(settings, profile_for(settings))
    assert (limits.max_rows, limits.max_bytes, profile_for(settings).windows) == (200_000, 10**9, ("96h",))
