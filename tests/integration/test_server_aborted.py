"""A 200 that says that it is no answer is no row's result: the row is tried again, or fails in the server's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_server_faults import served
from tests.support.batchapi import create, ended, row, run_batch
from tests.support.canned import canned
from tests.support.process import wait_until

GOOD = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "whole"}}
USAGE = {"prompt_tokens": 5, "completion_tokens": 62, "total_tokens": 67}


def chat(**choice: Any) -> bytes:
    """A chat answer; a second choice that is whole hides nothing."""
    return json.dumps({"object": "chat.completion", "choices": [{**GOOD, **choice}], "usage": USAGE}).encode()


# body, and the beginning of the row's error
NO_ANSWERS = {
    "vllm that stops": (chat(finish_reason="abort"), "aborted: the server stopped before the answer was complete"),
    "an engine's error": (chat(finish_reason="error"), "aborted: the server stopped before the answer was complete"),
    "deepseek": (chat(finish_reason="insufficient_system_resource"), "aborted: the server stopped before"),
    "an error in a choice": (
        chat(error={"code": 502, "message": "provider gone"}, finish_reason="stop"),
        "aborted: the answer has an error: provider gone",
    ),
    "one choice of two": (
        json.dumps({"choices": [GOOD, {**GOOD, "finish_reason": "abort"}], "usage": USAGE}).encode(),
        "aborted: the server stopped before",
    ),
    "a piece of a stream": (
        json.dumps({"object": "chat.completion.chunk", "choices": [{"delta": {"content": "wh"}}]}).encode(),
        "aborted: the answer is a piece of a stream",
    ),
    "an error object": (b'{"error":{"message":"no worker is left"}}', "aborted: no worker is left"),
    "words alone": (b'{"detail":"no worker is left"}', "aborted: no worker is left"),
    "a failed base": (
        chat(finish_reason="stop")[:-1] + b',"base_resp":{"status_code":1000,"status_msg":"unknown error"}}',
        "aborted: unknown error",
    ),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_a_row_that_gets_no_whole_answer_fails_after_its_tries(tmp_path: Path, name: str) -> None:
    body, message = NO_ANSWERS[name]
    whole = chat()
    with canned(whole) as upstream, served(tmp_path, upstream.base_url, max_concurrency=1) as sdk:
        run_batch(sdk, [row("first")])  # the upstream works: then a lone row that fails is at fault
        upstream.body = body
        end = run_batch(sdk, [row("a")])
        assert len(upstream.bodies) == 1 + 4
    end.check(["a"])
    assert end.counts == (1, 0, 1)
    assert end.errors[0]["error"]["code"] == "upstream_error"
    assert end.errors[0]["error"]["message"].startswith(message)
    assert end.batch.usage.total_tokens == 0


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NO_ANSWERS)
def test_a_row_is_whole_once_the_server_is(tmp_path: Path, name: str) -> None:
    body, _ = NO_ANSWERS[name]
    with canned(body) as upstream, served(tmp_path, upstream.base_url) as sdk:
        batch = create(sdk, [row(f"{number}") for number in range(20)])
        wait_until(lambda: len(upstream.bodies) >= 5)
        upstream.body = chat()
        end = ended(sdk, batch.id)
    assert end.counts == (20, 20, 0)
    assert {line["response"]["body"]["choices"][0]["message"]["content"] for line in end.output} == {"whole"}


def test_a_response_that_is_not_complete_is_none(tmp_path: Path) -> None:
    def response(**fields: Any) -> bytes:
        return json.dumps({"object": "response", "error": None, "output": [], **fields}).encode()

    lines = [{**row(name), "url": "/v1/responses", "body": {"model": "m", "input": name}} for name in ("a", "b")]
    with canned(response(status="failed")) as upstream, served(tmp_path, upstream.base_url) as sdk:
        batch = create(sdk, lines, endpoint="/v1/responses")
        wait_until(lambda: len(upstream.bodies) >= 3)
        upstream.body = response(status="incomplete", incomplete_details={"reason": "max_output_tokens"})
        assert ended(sdk, batch.id).counts == (2, 2, 0), "cut where its request says, it is an answer"


@pytest.mark.parametrize("body", [
    b'{"error":{"code":400,"message":"This model\'s maximum context length is 5 tokens"}}',
    b'{"detail":"This model\'s maximum context length is 5 tokens"}',
    b'{"base_resp":{"status_code":2013,"status_msg":"prompt is too long"},"choices":null}',
])  # fmt: skip
def test_a_status_in_the_body_of_an_error_counts_as_that_status(tmp_path: Path, body: bytes) -> None:
    with canned(body) as upstream, served(tmp_path, upstream.base_url) as sdk:
        end = run_batch(sdk, [row("a")])
        assert len(upstream.bodies) == 1
    assert end.errors[0]["response"]["status_code"] == 400
    assert end.errors[0]["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_an_aborted_answer_of_an_upstream_that_bills_is_in_doubt(tmp_path: Path) -> None:

    with canned(chat(finish_reason="abort")) as upstream, served(tmp_path, upstream.base_url, paid=True) as sdk:
        batch = create(sdk, [row("a")], extra_body={"include_provenance": True})
        wait_until(lambda: len(upstream.bodies) >= 2)
        upstream.body = chat()
        end = ended(sdk, batch.id)
    assert end.output[0]["orch"]["uncertain"] == len(upstream.bodies) - 1, "each aborted answer may have been billed"


# body, status and code of the rows' errors
REFUSALS = {
    "fastapi's words for a model": (b'{"detail":"model does not exist"}', 404, "model does not exist"),
    "openai's words for a model": (
        b'{"error":{"message":"The model `m` does not exist","type":"x","code":"model_not_found"}}',
        404,
        "The model `m` does not exist",
    ),
    "a list of errors": (b'{"errors":[{"message":"Unrecognized request argument supplied: seed"}]}', 400, "Unrecog"),
    "a kind of errors": (
        b'{"error":{"type":"invalid_request_error","message":"messages: roles must alternate"}}',
        400,
        "messages: roles must alternate",
    ),
    "a word and a message": (b'{"code":"InvalidParameter","message":"top_k must be positive"}', 400, "top_k must"),
    "a list of fastapi's": (
        b'{"detail":[{"loc":["body","seed"],"msg":"Extra inputs are not permitted","type":"extra_forbidden"}]}',
        400,
        "seed: Extra inputs are not permitted",
    ),
    "minimax's parameters": (
        b'{"base_resp":{"status_code":2013,"status_msg":"invalid params"},"choices":null}',
        400,
        "invalid params",
    ),
    "no field and no code": (b'{"detail":"Malformed prompt: nothing to answer"}', 400, "Malformed prompt"),
    "a content filter": (
        b'{"error":{"code":"content_policy_violation","message":"flagged as potentially violating"}}',
        400,
        "flagged",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_with_status_200_fails_its_row_at_once_in_its_servers_words(tmp_path: Path, name: str) -> None:
    body, status, message = REFUSALS[name]
    with canned(body) as upstream, served(tmp_path, upstream.base_url) as sdk:
        end = run_batch(sdk, [row("a"), row("b")])
        assert len(upstream.bodies) == 2, "nothing is asked again"
    assert end.counts == (2, 0, 2)
    assert {line["response"]["status_code"] for line in end.errors} == {status}
    assert all(line["response"]["body"]["error"]["message"].startswith(message) for line in end.errors)


PASSING = {
    "a model that is loading": b'{"detail":"model m is not available yet, it is starting up"}',
    "an overload": b'{"error":{"message":"The model is currently overloaded. Please try again later."}}',
    "a worker": b'{"detail":"no worker is left"}',
    "an engine": b'{"error":{"message":"invalid response from engine 3"}}',
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", PASSING)
def test_words_about_a_state_that_passes_with_status_200_wait_for_its_end(tmp_path: Path, name: str) -> None:
    with canned(PASSING[name]) as upstream, served(tmp_path, upstream.base_url) as sdk:
        batch = create(sdk, [row(f"{number}") for number in range(20)])
        wait_until(lambda: len(upstream.bodies) >= 5)
        upstream.body = chat()
        assert ended(sdk, batch.id).counts == (20, 20, 0)
