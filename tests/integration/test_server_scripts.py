"""Scripts written for another server: their model names, Azure's endpoints, and endpoints that take files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.server.dispatch.aliases import Aliases, read_alias
from tests.conftest import MakeUpstream
from tests.integration.test_server_faults import served
from tests.support.batchapi import CHAT, Sdk, create, ended, row, run_batch
from tests.support.canned import canned
from tests.support.process import Upstream, wait_until


def until_well(sdk: Sdk) -> None:
    wait_until(lambda: sdk.raw.get("/ready").status_code == 200)


ALIASES = {
    "a name": (("gpt-4o-mini", "served"),),
    "any name for a model": (("*", "served"),),
    "any name for the only model": (("*", "*"),),
    "a name for the only model": (("gpt-4o-mini", "*"),),
}


@pytest.mark.parametrize("kind", ALIASES)
def test_a_script_meets_a_model_under_its_own_name(tmp_path: Path, make_upstream: MakeUpstream, kind: str) -> None:
    upstream = make_upstream(model=["served"])
    with served(tmp_path, upstream.base_url, aliases=ALIASES[kind]) as sdk:
        until_well(sdk)
        end = run_batch(sdk, [row("a", model="gpt-4o-mini"), row("b", model="gpt-4o-mini")])
        assert end.counts == (2, 2, 0)
        assert {line["response"]["body"]["model"] for line in end.output} == {"served"}, "the model that answered"
        asked = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hello"}]}
        answer = sdk.raw.post(CHAT, json=asked)
        assert (answer.status_code, answer.json()["model"]) == (200, "served")
        assert run_batch(sdk, [row("c", model="served")]).counts == (1, 1, 0)
        models = [model["id"] for model in sdk.raw.get("/v1/models").json()["data"]]
        assert models == (["gpt-4o-mini", "served"] if kind.startswith("a name") else ["served"])
        assert sdk(lambda api: api.models.retrieve("gpt-4o-mini")).root == "served"


def test_an_alias_finds_the_upstream_that_serves_its_model(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    other, wanted = make_upstream(model=["other"]), make_upstream(model=["served"])
    aliases = (("gpt-4o-mini", "served"), ("other", "served"))
    with served(tmp_path, other.base_url, wanted.base_url, aliases=aliases) as sdk:
        until_well(sdk)
        wait_until(lambda: len(sdk.raw.get("/v1/models").json()["data"]) == 3)
        assert run_batch(sdk, [row("a", model="gpt-4o-mini")]).counts == (1, 1, 0)
        assert sdk.raw.post(CHAT, json=row("s", model="gpt-4o-mini")["body"]).json()["model"] == "served"
        end = run_batch(sdk, [row("b", model="other")])
        assert end.output[0]["response"]["body"]["model"] == "other", "a model that is served is not renamed"


def test_a_name_without_an_alias_is_sent_as_it_is(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(model=["served"])
    with served(tmp_path, upstream.base_url, aliases=(("gpt-4o-mini", "served"),)) as sdk:
        until_well(sdk)
        end = run_batch(sdk, [row("a", model="gpt-9")])
        assert end.errors[0]["response"]["status_code"] == 404


def test_any_name_stands_for_no_model_where_several_are_served() -> None:
    aliases = Aliases([("*", "*")])
    assert aliases.model_of("x", frozenset({"a"})) == "a"
    assert aliases.model_of("x", frozenset({"a", "b"})) is None
    assert aliases.model_of("a", frozenset({"a"})) is None


@pytest.mark.parametrize("text", ["", "=", "a=", "=b", "a"])
def test_what_is_no_alias_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="NAME=MODEL"):
        read_alias(text)
    assert read_alias("*") == ("*", "*")
    assert read_alias("a=b=c") == ("a", "b=c")


BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/completions": {"prompt": "hi"},
    "/embeddings": {"input": "hi"},
}


@pytest.mark.parametrize("create_short", [True, False])
@pytest.mark.parametrize("url", BODIES)
def test_azures_spelling_of_endpoints(tmp_path: Path, upstream: Upstream, url: str, create_short: bool) -> None:
    lines = [
        {"custom_id": name, "method": "POST", "url": spelled, "body": {"model": "m", "user": name, **BODIES[url]}}
        for name, spelled in (("a", url), ("b", f"/v1{url}"))
    ]
    with served(tmp_path, upstream.base_url) as sdk:
        batch = create(sdk, lines, endpoint=url if create_short else f"/v1{url}")
        assert batch.endpoint == f"/v1{url}"
        assert ended(sdk, batch.id).batch.request_counts.total == 2
    assert {entry["path"] for entry in upstream.requests()} == {f"/v1{url}"}


def test_azures_spelling_of_responses(tmp_path: Path) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/responses", "body": {"model": "m", "input": "hi"}}
    with (
        canned(b'{"object":"response","status":"completed"}') as upstream,
        served(tmp_path, upstream.base_url) as sdk,
    ):
        assert ended(sdk, create(sdk, [line], endpoint="/responses").id).counts == (1, 1, 0)


def test_lines_of_another_endpoint_are_refused_however_they_are_spelled(tmp_path: Path, upstream: Upstream) -> None:
    lines = [{"custom_id": "a", "method": "POST", "url": "/embeddings", "body": {"model": "m", "input": "x"}}]
    with served(tmp_path, upstream.base_url) as sdk:
        batch = create(sdk, lines)
        ended_batch = wait_until(lambda: (found := sdk(lambda api: api.batches.retrieve(batch.id))).errors and found)
    assert ended_batch.errors.data[0].code == "invalid_url"


@pytest.mark.parametrize(
    "endpoint", ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/audio/transcriptions"]
)
@pytest.mark.parametrize("is_allowed", [True, False])
def test_endpoints_that_take_files_are_refused_at_once(
    tmp_path: Path, upstream: Upstream, endpoint: str, is_allowed: bool
) -> None:
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": "m", "file_url": "http://x/a.mp3"}}
    with served(
        tmp_path, upstream.base_url, allow_endpoints=[endpoint] if is_allowed and endpoint.startswith("/v1") else []
    ) as sdk:
        error = sdk.refused(lambda api: create(sdk, [line], endpoint=endpoint))
    assert error.status_code == 400
    assert json.loads(error.response.content)["error"]["param"] == "endpoint"
    assert "no line of a batch can hold" in str(error)
    assert upstream.requests() == []
