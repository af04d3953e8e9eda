"""What a tenant may reach at an upstream, whatever it has and however the path is written: the allow-list alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.batch_api import ENDPOINTS
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.endpoints import FORMS, KNOWN, OWN, Endpoints
from orchestrator.server.settings import Settings
from tests.contract.conftest import over_tcp
from tests.support.batchapi import Sdk, create, ended, health, retrieve, run_batch, sdk_at, upload
from tests.support.examples import ample
from tests.support.process import wait_until
from tests.support.scripted import Answer, Asked, Scripted, scripted

# What vLLM answers with VLLM_SERVER_DEV_MODE=1, with runtime LoRA updating, or for its router.
FORBIDDEN = [
    "/sleep",
    "/wake_up",
    "/pause",
    "/resume",
    "/abort_requests",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/collective_rpc",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/start_profile",
    "/stop_profile",
    "/init_weight_transfer_engine",
    "/update_weights",
    "/inference/v1/generate",
    "/invocations",
    "/ping",
    "/server_info",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/responses/resp_1/cancel",
    "/v1/fine_tuning/jobs",
    "/v1/files",
    "/v1/batches",
    "/",
    "/v1",
    "/v1/",
    "/anything/else",
]
DESCRIPTION = {"paths": {path: {"post": {}} for path in [*FORBIDDEN, *sorted(KNOWN)]}}
MODELS = {"object": "list", "data": [{"id": "m"}]}


def answer(asked: Asked) -> Answer:
    """An upstream that takes everything."""
    if asked.method == "GET":
        return Answer({"/v1/models": MODELS, "/openapi.json": DESCRIPTION}.get(asked.path, {}))
    return Answer({"done": asked.path})


@contextmanager
def serving(folder: Path, upstream: Scripted, **more: Any) -> Iterator[Sdk]:
    limits = Settings(upstreams=(upstream.base_url,), retry_delay=0.01, **more)
    with over_tcp(folder, limits) as url, sdk_at(url) as sdk:
        wait_until(lambda: health(sdk)["upstreams"][0]["problem"] is None)
        yield sdk


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sdk, Scripted]]:
    with scripted(answer) as upstream, serving(tmp_path_factory.mktemp("s"), upstream) as sdk:
        yield sdk, upstream


def reached(upstream: Scripted) -> list[str]:
    """The paths of the POSTs that came through, and forgets them."""
    paths = [asked.path for asked in upstream.asked if asked.method != "GET"]
    upstream.asked.clear()
    return paths


def line(path: str, name: str = "a") -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": path, "body": {"model": "m", "messages": ["x"]}}


@pytest.mark.parametrize("path", FORBIDDEN)
def test_no_batch_reaches_what_is_not_on_the_list(both: tuple[Sdk, Scripted], path: str) -> None:
    sdk, upstream = both
    error = sdk.refused(lambda api: create_at(sdk, path))
    assert (error.status_code, error.code, error.param) == (400, "invalid_value", "endpoint")
    # Nor by a row of a batch for another endpoint.
    end = run_batch(sdk, [line(path)])
    assert (end.batch.status, end.batch.errors.data[0].code) == ("failed", "invalid_url")
    assert reached(upstream) == []


def create_at(sdk: Sdk, path: str) -> Any:
    file_id = upload(sdk, [line(path)])
    return sdk(lambda api: api.batches.create(input_file_id=file_id, endpoint=path, completion_window="24h"))


@pytest.mark.parametrize("path", sorted(KNOWN))
def test_what_is_on_the_list_is_reached_by_a_batch_and_at_once(both: tuple[Sdk, Scripted], path: str) -> None:
    sdk, upstream = both
    upstream.asked.clear()
    if path in FORMS:
        assert sdk.refused(lambda api: create_at(sdk, path)).status_code == 400
    else:
        ended(sdk, create_at(sdk, path).id).check(["a"])
        assert reached(upstream) == [path]
    assert sdk.raw.post(path, json={"model": "m"}).json() == {"done": path}
    assert reached(upstream) == [path]


@pytest.mark.parametrize("path", FORBIDDEN[:-7])
@pytest.mark.parametrize("method", ["POST", "PUT", "GET", "DELETE", "PATCH", "OPTIONS"])
def test_no_request_reaches_what_is_not_on_the_list(both: tuple[Sdk, Scripted], path: str, method: str) -> None:
    sdk, upstream = both
    assert sdk.raw.request(method, path).status_code == 404
    assert reached(upstream) == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"])
def test_only_a_post_is_passed_on(both: tuple[Sdk, Scripted], method: str) -> None:
    sdk, upstream = both
    found = sdk.raw.request(method, "/v1/chat/completions")
    assert (found.status_code, found.headers["allow"]) == (405, "POST")
    assert reached(upstream) == []


def said(sdk: Sdk, first_line: str, *headers: str) -> int:
    """The status of the answer to a request that is written by hand."""
    parts = urlsplit(str(sdk.raw.base_url))
    lines = [first_line, "Host: x", "Content-Length: 2", "Connection: close", *headers, "", "{}"]
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.sendall("\r\n".join(lines).encode("latin-1"))
        return int(connection.makefile("rb").readline().split()[1])


TRICKS = [
    "/v1/chat/completions/../../sleep",
    "/v1/chat/completions/%2e%2e/%2e%2e/sleep",
    "/v1/chat/completions%2f..%2f..%2fsleep",
    "/v1/../sleep",
    "/v1/%2e%2e/sleep",
    "/v1/.%2e/sleep",
    "/v1//../sleep",
    "//sleep",
    "/v1//sleep",
    "//v1/chat/completions",
    "/v1/chat//completions",
    "/v1/chat/completions/",
    "/v1/chat/completions;/../sleep",
    "/v1/chat/completions;x=1",
    "/V1/chat/completions",
    "/v1/Chat/Completions",
    "/sleep?/v1/chat/completions",
    "/sleep#/v1/chat/completions",
    "/v1\\..\\sleep",
    "/v1/chat/completions%00",
    "/v1/chat/completions%0a",
    "/%76%31/../sleep",
    "http://upstream/sleep",
    "http://upstream/v1/chat/completions",
    "https://upstream:8000/v1/../sleep",
    "*",
    "@upstream/sleep",
    "/%2fsleep",
    "/.%2f/sleep",
]


def test_a_method_is_in_capitals(both: tuple[Sdk, Scripted]) -> None:
    sdk, upstream = both
    assert said(sdk, "post /v1/chat/completions HTTP/1.1") == 405
    assert reached(upstream) == []


@pytest.mark.parametrize("target", TRICKS)
def test_no_way_of_writing_a_path_leads_elsewhere(both: tuple[Sdk, Scripted], target: str) -> None:
    sdk, upstream = both
    status = said(sdk, f"POST {target} HTTP/1.1")
    # A route's pattern takes a newline at its end for none; what is passed on is the path of the list all the same.
    assert (status, reached(upstream)) == ((200, ["/v1/chat/completions"]) if target.endswith("%0a") else (404, []))


QUERIES = [
    "/../sleep",
    "x=/../../sleep",
    "#/../sleep",
    "a=b&c=%2e%2e/sleep",
    "@upstream/sleep",
    "\\..\\sleep",
    "?/sleep",
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_changes_no_path(both: tuple[Sdk, Scripted], query: str) -> None:
    sdk, upstream = both
    assert said(sdk, f"POST /v1/chat/completions?{query} HTTP/1.1") == 200
    assert reached(upstream) == ["/v1/chat/completions"]


OVERRIDES = ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "X-Original-URL", "X-Rewrite-URL"]


def test_no_header_makes_another_request_of_it(both: tuple[Sdk, Scripted]) -> None:
    sdk, upstream = both
    headers = [f"{name}: /sleep" for name in OVERRIDES]
    assert said(sdk, "POST /v1/chat/completions HTTP/1.1", *headers, "Host: other", "X-Kept: yes") in (200, 400)
    assert said(sdk, "POST /v1/chat/completions HTTP/1.1", *headers, "X-Kept: yes") == 200
    (asked,) = (one for one in upstream.asked if one.method == "POST")
    assert asked.headers["x-kept"] == "yes"
    assert [name for name in OVERRIDES if name.lower() in asked.headers] == []


@pytest.mark.slow
@settings(max_examples=ample(150))
@given(
    st.lists(st.sampled_from([*"/.;?#%\\~", "v1", "chat", "completions", "sleep", "..", "%2e", "%2f"]), max_size=12)
)
def test_whatever_is_written_the_list_alone_is_reached(both: tuple[Sdk, Scripted], parts: list[str]) -> None:
    sdk, upstream = both
    said(sdk, f"POST /{''.join(parts)} HTTP/1.1")
    assert set(reached(upstream)) <= KNOWN


def test_an_operator_adds_what_tenants_may_reach(tmp_path: Path) -> None:
    with scripted(answer) as upstream, serving(tmp_path, upstream, allow_endpoints=("/v1/embed", "/sleep")) as sdk:
        for path in ("/v1/embed", "/sleep"):
            ended(sdk, create_at(sdk, path).id).check(["a"])
            assert sdk.raw.post(path, json={}).status_code == 200
        assert sdk.raw.post("/wake_up").status_code == 404
        assert set(reached(upstream)) == {"/v1/embed", "/sleep"}
        assert {"/v1/embed", "/sleep"} <= set(sdk.raw.get("/openapi.json").json()["paths"])


def test_paths_are_asked_for_only_when_a_batch_names_one_that_not_every_upstream_has(tmp_path: Path) -> None:
    """LiteLLM makes its description in eight seconds, and answers nothing else meanwhile."""
    with scripted(answer) as upstream, serving(tmp_path, upstream) as sdk:
        ended(sdk, create_at(sdk, "/v1/chat/completions").id).check(["a"])
        assert sdk.refused(lambda api: create_at(sdk, "/sleep")).status_code == 400
        assert "/openapi.json" not in [asked.path for asked in upstream.asked]
        ended(sdk, create_at(sdk, "/score").id).check(["a"])
        assert "/openapi.json" in [asked.path for asked in upstream.asked]


@pytest.mark.long
@pytest.mark.parametrize("status", [500, 503])
def test_a_path_that_is_not_known_now_is_a_503_until_the_upstream_says(tmp_path: Path, status: int) -> None:
    refusals = [Answer({}, status)] * 2

    def late(asked: Asked) -> Answer:
        return refusals.pop() if asked.path == "/openapi.json" and refusals else answer(asked)

    with scripted(late) as upstream, serving(tmp_path, upstream) as sdk:
        body = {"input_file_id": "file-1", "endpoint": "/rerank", "completion_window": "24h"}
        refused = sdk.raw.post("/v1/batches", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["error"]["code"] == "endpoint_unknown"
        # OpenAI's client asks again by itself.
        ended(sdk, create_at(sdk, "/rerank").id).check(["a"])
        assert refusals == []


NO_DESCRIPTIONS = {
    "no UTF-8": b'{"paths":{"/v1/\xff":{}}}',
    "no objects": b'{"paths": {"/score": 5, "": {"post": {}}}}',
    "too deep": b'{"paths":{"/score":{"post":' + b"[" * 5000 + b"]" * 5000 + b"}}}",
    "HTML": b"<html>",
}


@pytest.mark.parametrize("page", NO_DESCRIPTIONS.values(), ids=NO_DESCRIPTIONS)
def test_a_description_that_makes_no_sense_offers_nothing(tmp_path: Path, page: bytes) -> None:
    with (
        scripted(lambda asked: Answer(page) if asked.path == "/openapi.json" else answer(asked)) as upstream,
        serving(tmp_path, upstream) as sdk,
    ):
        error = sdk.refused(lambda api: create_at(sdk, "/score"))
        assert (error.status_code, error.code) == (400, "invalid_value")
        ended(sdk, create_at(sdk, "/v1/chat/completions").id).check(["a"])


@pytest.mark.parametrize("endpoint", [5, ["/score"], {"/score": 1}, None, ""])
def test_an_endpoint_that_is_no_path_is_refused(both: tuple[Sdk, Scripted], endpoint: Any) -> None:
    sdk, _ = both
    body = {"input_file_id": "file-1", "endpoint": endpoint, "completion_window": "24h"}
    assert sdk.raw.post("/v1/batches", json=body).status_code == 400


def test_a_batch_names_openais_endpoints_and_what_an_upstream_offers_of_the_others() -> None:
    endpoints = Endpoints(["/v1/embed", "/v1/embeddings"])
    assert endpoints.for_batches(["/score", "/sleep", "/v1/embed"]) == (*ENDPOINTS, "/v1/embed", "/score")
    assert endpoints.for_batches([]) == (*ENDPOINTS, "/v1/embed")


NOT_PATHS = [
    "", "v1/x", "/v1/x/", "//x", "/v1/../x", "/v1/.x", "/v1/x?y", "/v1/x#y", "/v1/{x}", "/v1/x y", "/v1/%2e", "http://x/y",
    "/v1/x\n", *OWN, *(f"{path}/x" for path in OWN),
]  # fmt: skip


@pytest.mark.parametrize("path", NOT_PATHS)
def test_what_cannot_be_added(path: str) -> None:
    with pytest.raises(ValueError, match=r"an endpoint is a path|answers that path itself"):
        Endpoints([path])


def test_a_batch_of_a_former_version_goes_on_only_where_it_is_allowed(tmp_path: Path) -> None:
    """It waits, says what to do, and can be cancelled; nothing of it is sent."""

    def rename(before: str, after: str) -> None:
        database = ServerDatabase(tmp_path / FILE_NAME)
        database.execute("UPDATE batches SET object = replace(CAST(object AS TEXT), ?, ?)", (before, after))
        database.close()
        (path,) = (tmp_path / "files").iterdir()
        path.write_bytes(path.read_bytes().replace(before.encode(), after.encode()))

    def later(asked: Asked) -> Answer:
        busy = Answer({"error": {"message": "later"}}, 503, {"Retry-After": "60"})
        return busy if asked.method == "POST" else answer(asked)

    with scripted(later) as away, serving(tmp_path, away) as sdk:
        batch_id = create(sdk, [line("/v1/chat/completions")]).id
        wait_until(lambda: away.posts("/v1/chat/completions"))
    rename("/v1/chat/completions", "/reset_prefix_cache")
    with scripted(answer) as upstream:
        with serving(tmp_path, upstream) as sdk:
            assert "--allow-endpoint /reset_prefix_cache" in wait_until(lambda: health(sdk)["problem"])
            assert (retrieve(sdk, batch_id).status, sdk.raw.get("/ready").status_code) == ("in_progress", 200)
        assert reached(upstream) == []
        with serving(tmp_path, upstream, allow_endpoints=("/reset_prefix_cache",)) as sdk:
            ended(sdk, batch_id).check(["a"])
        assert reached(upstream) == ["/reset_prefix_cache"]
        with serving(tmp_path, upstream) as sdk:
            error = sdk.raw.post(f"/v1/batches/{batch_id}/retry")
            assert error.status_code == 400
