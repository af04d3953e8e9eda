"""Synchronous requests through the server: the upstream's answers, chunk by chunk, and what there is without one."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from orchestrator.server.api.passthrough import MAX_BODY_BYTES
from orchestrator.server.settings import Settings
from tests.conftest import MakeUpstream
from tests.contract.conftest import Served, over_tcp
from tests.support.answers import echo
from tests.support.batchapi import CHAT, Sdk, health, sdk_at
from tests.support.process import Upstream, wait_until


def ask(api: Any, text: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    # What the SDK would try again by itself is to be seen here.
    once = api.with_options(max_retries=0)
    return once.chat.completions.create(**{"model": "test-model", "messages": messages, **fields})


def until_ready(sdk: Sdk) -> Sdk:
    """All of the server's upstreams are reached."""
    wait_until(lambda: all(upstream["problem"] is None for upstream in health(sdk)["upstreams"]))
    return sdk


@contextmanager
def serving(folder: Path, *upstreams: Upstream, **settings: Any) -> Iterator[Sdk]:
    """A client of a server over these upstreams, which it has reached."""
    urls = tuple(upstream.base_url for upstream in upstreams)
    with over_tcp(folder / "served", Settings(upstreams=urls, **settings)) as url, sdk_at(url) as sdk:
        yield until_ready(sdk)


@contextmanager
def posted(sdk: Sdk, path: str, body: bytes) -> Iterator[http.client.HTTPConnection]:
    """A request that was sent, byte for byte, on a connection of its own, and whose answer nobody awaits."""
    url = httpx2.URL(str(sdk.raw.base_url))
    connection = http.client.HTTPConnection(str(url.host), url.port, timeout=20)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        yield connection
    finally:
        connection.close()


def chat_body(text: str, **fields: Any) -> bytes:
    return json.dumps({"model": "test-model", "messages": [{"role": "user", "content": text}], **fields}).encode()


@pytest.fixture
def ready(sdk: Sdk) -> Sdk:
    return until_ready(sdk)


def test_a_chat(ready: Sdk) -> None:
    answer = ready(lambda api: ask(api, "hello", extra_headers={"X-Request-Id": "abc"}))
    assert answer.choices[0].message.content == echo("hello")
    assert answer.id == "chatcmpl-abc"
    assert answer._request_id.startswith("req_")


def test_other_endpoints(ready: Sdk) -> None:
    found = ready(lambda api: api.completions.create(model="test-model", prompt="one"))
    assert found.choices[0].text == echo("one")
    many = ready(lambda api: api.embeddings.create(model="test-model", input=["a", "b"]))
    assert [len(item.embedding) for item in many.data] == [8, 8]
    # The upstream has no moderations, and says so itself.
    refused = ready.refused(lambda api: api.moderations.create(input="x"))
    assert (refused.status_code, refused.body) == (404, {"detail": "Not Found"})


def test_a_stream(ready: Sdk) -> None:
    chunks = ready.every(lambda api: ask(api, "hello", stream=True, stream_options={"include_usage": True}))
    told = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(told) == echo("hello")
    assert len(told) > 5
    assert chunks[-1].usage.completion_tokens == 6


def test_a_stream_arrives_as_it_is_made_and_ends_with_its_client(served: Served, ready: Sdk) -> None:
    # This upstream sends the head of its answer, and then nothing: only what is not held back arrives.
    def aborted() -> float:
        return served.upstream.metrics()["vllm:request_success_total:abort"]

    before = aborted()
    with ready.raw.stream("POST", CHAT, content=chat_body("[[fault:hang]]", stream=True)) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["x-request-id"].startswith("req_")
        lines = answer.iter_lines()
        first = next(lines)
        assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
        assert aborted() == before
    wait_until(lambda: aborted() == before + 1)


def test_a_stream_that_breaks_is_seen_to_break(ready: Sdk) -> None:
    seen: list[bytes] = []
    with (
        pytest.raises(httpx2.RemoteProtocolError),
        ready.raw.stream("POST", CHAT, content=chat_body("[[fault:cut]]", stream=True)) as answer,
    ):
        seen.extend(answer.iter_raw())
    assert b"assistant" in b"".join(seen)
    with pytest.raises((openai.APIError, httpx2.RemoteProtocolError)):
        ready.every(lambda api: ask(api, "[[fault:reset]]", stream=True))


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("status:400", 400),
        ("status:422", 422),
        ("status:503:Retry-After=7", 503),
        ("context", 400),
    ],
)
def test_what_the_upstream_refuses_is_answered_as_it_says(ready: Sdk, fault: str, status: int) -> None:
    error = ready.refused(lambda api: ask(api, f"[[fault:{fault}]]"))
    assert (error.status_code, error.code) == (status, str(status))
    assert error.response.headers.get("retry-after") == ("7" if status == 503 else None)


def test_a_page_that_is_no_json_is_passed_on(ready: Sdk) -> None:
    answer = ready.raw.post(CHAT, content=chat_body("[[fault:html:502]]"))
    assert (answer.status_code, answer.headers["content-type"]) == (502, "text/html; charset=utf-8")
    assert answer.content.startswith(b"<html>")


@pytest.mark.parametrize(
    "path", ["files/x", "batches/x", "uploads/x", "models", "load_lora_adapter", "x/%2e%2e/y", "x//y"]
)
def test_what_is_never_passed_on(served: Served, ready: Sdk, path: str) -> None:
    answer = ready.raw.post(f"/v1/{path}", content=b'{"user": "stranger"}')
    assert answer.status_code in (404, 405)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "stranger" not in served.upstream.counts()


def test_a_body_that_is_too_large(ready: Sdk) -> None:
    answer = ready.raw.post(CHAT, content=b" " * (MAX_BODY_BYTES + 1))
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "invalid_request_error")


def test_a_client_that_leaves_before_the_answer_cancels_it(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    upstream = make_upstream(slots=1)
    with serving(tmp_path, upstream) as sdk:
        with posted(sdk, CHAT, chat_body("[[fault:hang]]")):
            upstream.wait_for_requests(1)
        wait_until(lambda: upstream.metrics()["vllm:request_success_total:abort"] == 1)
        assert sdk(lambda api: ask(api, "next")).choices[0].message.content == echo("next")


def test_the_upstream_gets_its_own_key_and_no_other(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    upstream = make_upstream(api_key="the-upstreams")
    with serving(tmp_path, upstream, api_key="the-upstreams") as sdk:
        assert sdk(lambda api: ask(api, "hello")).choices[0].message.content == echo("hello")
        for header in ("api-key", "x-api-key", "cookie"):
            sent = {header: "the-clients"}
            assert sdk.raw.post(CHAT, content=chat_body("hello"), headers=sent).status_code == 200


def test_each_model_is_asked_for_where_it_is(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    one, two = make_upstream(model="one"), make_upstream(model="two")
    with serving(tmp_path, one, two) as sdk:
        for text, model in (("a", "two"), ("b", "one"), ("c", "two")):
            assert sdk(lambda api, text=text, model=model: ask(api, text, model=model, user=text)).model == model
        unknown = sdk.refused(lambda api: ask(api, "d", model="three"))
        assert unknown.status_code == 404
        assert unknown.message.endswith("The model `three` does not exist.")
        two.kill()
        away = sdk.refused(lambda api: ask(api, "e", model="two"))
        assert (away.status_code, away.code) == (503, "no_upstream")
        assert sdk(lambda api: ask(api, "f", model="one", user="f")).model == "one"
    assert set(two.counts()) == {"a", "c"}


def test_the_upstream_with_more_room_is_asked(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    upstreams = make_upstream(), make_upstream()
    with serving(tmp_path, *upstreams) as sdk, posted(sdk, CHAT, chat_body("[[fault:hang]]", user="first")):
        busy = wait_until(lambda: next((one for one in upstreams if one.counts()), None))
        for number in range(3):
            sdk(lambda api, number=number: ask(api, "hello", user=f"after-{number}"))
        assert list(busy.counts()) == ["first"]


@pytest.mark.long
def test_an_upstream_that_is_gone_costs_nothing_while_there_is_another(
    make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    gone, there = make_upstream(), make_upstream()
    with serving(tmp_path, gone, there) as sdk:
        gone.kill()
        for _ in range(2):
            assert sdk(lambda api: ask(api, "hello")).choices[0].message.content == echo("hello")
        assert [upstream["problem"] is None for upstream in health(sdk)["upstreams"]] == [False, True]


def test_what_may_have_killed_an_upstream_is_not_sent_to_the_next(
    make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    upstreams = make_upstream(), make_upstream()
    with serving(tmp_path, *upstreams) as sdk:
        error = sdk.refused(lambda api: ask(api, "[[fault:cut]]"))
        assert (error.status_code, error.code, error.type) == (502, "upstream_error", "server_error")
        assert sum(len(upstream.requests()) for upstream in upstreams) == 1


def test_no_answer_in_time(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    with serving(tmp_path, make_upstream(), request_timeout=0.2) as sdk:
        error = sdk.refused(lambda api: ask(api, "[[fault:hang]]"))
        assert (error.status_code, error.code) == (504, "upstream_timeout")


def test_without_an_upstream(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    upstream = make_upstream()
    with serving(tmp_path, upstream) as sdk:
        upstream.kill()
        for _ in range(2):
            error = sdk.refused(lambda api: ask(api, "hello"))
            assert (error.status_code, error.code, error.type) == (503, "no_upstream", "server_error")
            assert 0 < int(error.response.headers["retry-after"]) <= 120
        upstream.start()
        until_ready(sdk)
        assert sdk(lambda api: ask(api, "again")).choices[0].message.content == echo("again")
