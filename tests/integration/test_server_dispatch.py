"""Which row goes where and when, as upstreams see it: several of them, packs, order, priority, turns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from tests.conftest import MakeUpstream
from tests.support.batchapi import Sdk, create, ended, health, read_rows, retrieve, row, sdk_at
from tests.support.canned import MODELS, canned
from tests.support.inthread import serving
from tests.support.process import Upstream, wait_until

EMBEDDINGS = "/v1/embeddings"
FAST = {"retry_delay": 0.01, "request_timeout": 60.0}


@contextmanager
def served(folder: Path, *urls: str, **settings: Any) -> Iterator[Sdk]:
    with (
        ServerThread(folder / "server", Settings(upstreams=urls, **{**FAST, **settings})) as server,
        sdk_at(server.socket) as sdk,
    ):
        wait_until(lambda: all(upstream["problem"] != "not reached yet" for upstream in health(sdk)["upstreams"]))
        yield sdk


def ids(number: int, name: str = "r") -> list[str]:
    return [f"{name}{index}" for index in range(number)]


def bodies(upstream: Upstream) -> list[dict[str, Any]]:
    return [json.loads(entry["body"]) for entry in upstream.requests()]


def order_of(upstream: Upstream) -> list[str]:
    return [str(body["user"]) for body in bodies(upstream)]


def test_upstreams_share_the_rows(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    # Long enough that how the machine shares its cores among them does not decide it.
    first, second = make_upstream(latency_ms=20), make_upstream(latency_ms=20)
    with served(tmp_path, first.base_url, second.base_url) as sdk:
        ended(sdk, create(sdk, [row(name) for name in ids(400)]).id).check(ids(400))
    shares = [len(upstream.requests()) for upstream in (first, second)]
    assert sum(shares) == 400
    assert min(shares) > 100


@pytest.mark.long
def test_a_slow_upstream_does_its_part_and_costs_no_row(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    slow, fast = make_upstream(slots=1, latency_ms=400), make_upstream(latency_ms=5)
    # What waits too long for the slow one goes to the other.
    with served(tmp_path, slow.base_url, fast.base_url, request_timeout=5.0) as sdk:
        ended(sdk, create(sdk, [row(name) for name in ids(300)]).id).check(ids(300))
    assert len(fast.requests()) > 250


def test_an_upstream_that_dies_costs_no_row(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    dies, stays = make_upstream(latency_ms=30), make_upstream(latency_ms=30)
    with served(tmp_path, dies.base_url, stays.base_url) as sdk:
        batch = create(sdk, [row(name) for name in ids(600)])
        dies.wait_for_requests(40)
        dies.kill()
        end = ended(sdk, batch.id)
    end.check(ids(600))
    assert end.counts == (600, 600, 0)


def test_an_upstream_that_answers_500_to_everything_costs_no_row(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    good = make_upstream(latency_ms=20, model=["m"])
    with (
        canned(b'{"error":{"message":"CUDA error"}}', 500) as broken,
        served(tmp_path, broken.base_url, good.base_url, max_concurrency=16) as sdk,
    ):
        batch = create(sdk, [row(name, model="m") for name in ids(300)])
        told = wait_until(lambda: health(sdk)["upstreams"][0]["problem"])
        end = ended(sdk, batch.id)
    end.check(ids(300))
    assert end.counts == (300, 300, 0)
    assert "rows in a row failed: server error (500)" in told


def test_rows_go_where_their_model_is(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    one, two = make_upstream(model=["one"]), make_upstream(model=["two"])
    with served(tmp_path, one.base_url, two.base_url) as sdk:
        for name in ("one", "two"):
            end = ended(sdk, create(sdk, [row(custom_id, model=name) for custom_id in ids(20, name)]).id)
            assert end.counts == (20, 20, 0)
    assert [len(upstream.requests()) for upstream in (one, two)] == [20, 20]


def embedding(custom_id: str, text: str, **body: Any) -> dict[str, Any]:
    fields = {"model": "test-model", "input": text, **body}
    return {"custom_id": custom_id, "method": "POST", "url": EMBEDDINGS, "body": fields}


def alone(sdk: Sdk, text: str) -> dict[str, Any]:
    """The answer to one synchronous request."""
    answer: dict[str, Any] = sdk.raw.post(EMBEDDINGS, json={"model": "test-model", "input": text}).json()
    return answer


def test_embeddings_are_packed_and_every_row_has_its_own(tmp_path: Path, upstream: Upstream) -> None:
    texts = {name: f"text number {name} " * (index % 7 + 1) for index, name in enumerate(ids(300))}
    with served(tmp_path, upstream.base_url) as sdk:
        lines = [embedding(name, text) for name, text in texts.items()]
        end = ended(sdk, create(sdk, lines, endpoint=EMBEDDINGS).id)
        sent = len(upstream.requests())
        single = {name: alone(sdk, texts[name]) for name in ids(300)[::50]}
    end.check(ids(300))
    assert sent < 60
    for name, answer in single.items():
        body = end.by_id[name]["response"]["body"]
        assert (body["data"], body["usage"]) == (answer["data"], answer["usage"])
    tokens = sum(line["response"]["body"]["usage"]["prompt_tokens"] for line in end.output)
    assert end.batch.usage.input_tokens == tokens


def test_a_bad_row_in_a_pack_fails_alone(tmp_path: Path, upstream: Upstream) -> None:
    lines = [embedding(name, f"text {name}") for name in ids(30)]
    lines[7] = embedding("r7", "[[fault:status:400]] no")
    with served(tmp_path, upstream.base_url) as sdk:
        end = ended(sdk, create(sdk, lines, endpoint=EMBEDDINGS).id)
    end.check(ids(30))
    assert [line["custom_id"] for line in end.errors] == ["r7"]


DOCUMENTS = {name: f"{name}: " + f"the whole of document {name} " * 60 for name in ids(12, "d")}


def scattered() -> list[dict[str, Any]]:
    """Three questions on each document, those of one document far apart."""
    return [
        row(f"{name}-{question}", text=f"{DOCUMENTS[name]}\n\n{question}")
        for question in ("who", "what", "when")
        for name in DOCUMENTS
    ]


def neighbours(order: Sequence[str]) -> int:
    """How often a row follows one of its own document."""
    return sum(one.split("-")[0] == other.split("-")[0] for one, other in pairwise(order))


def test_rows_that_share_a_document_go_out_side_by_side(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(log_bodies=True, cache_blocks=64)
    with served(tmp_path, upstream.base_url, max_concurrency=1) as sdk:
        with upstream.held():  # the order is told of a batch that runs
            batch = create(sdk, scattered())
            told = wait_until(lambda: getattr(retrieve(sdk, batch.id), "row_order", None))
        ended(sdk, batch.id).check([line["custom_id"] for line in scattered()])
    assert neighbours(order_of(upstream)) == 24
    assert "share" in told


def test_rows_keep_the_order_of_the_file_where_it_is_asked_for(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(log_bodies=True, cache_blocks=64)
    with served(tmp_path, upstream.base_url, max_concurrency=1) as sdk:
        ended(sdk, create(sdk, scattered(), extra_body={"order": "input"}).id)
    assert order_of(upstream) == [line["custom_id"] for line in scattered()]


def test_a_document_stays_on_one_upstream(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    both = [make_upstream(log_bodies=True, cache_blocks=64, latency_ms=20) for _ in range(2)]
    with served(tmp_path, *(upstream.base_url for upstream in both), max_concurrency=2) as sdk:
        ended(sdk, create(sdk, scattered()).id)
    where = [Counter(name.split("-")[0] for name in order_of(upstream)) for upstream in both]
    assert sum(map(sum, (counts.values() for counts in where))) == 36
    assert len(where[0].keys() & where[1].keys()) <= 2  # one that was taken over at the end, perhaps two


def test_batch_rows_stand_behind_people_where_vllm_schedules_by_priority(
    tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(log_bodies=True)
    with served(tmp_path, upstream.base_url) as sdk:
        ended(sdk, create(sdk, [row("mine", priority=7), row("plain")]).id)
        sdk.raw.post("/v1/chat/completions", json=row("person")["body"])
    sent = {body["user"]: body.get("priority") for body in bodies(upstream)}
    assert sent == {"mine": 7, "plain": 100, "person": None}


def test_other_servers_than_vllm_get_the_body_as_it_is(tmp_path: Path) -> None:
    answer = (
        b'{"object":"chat.completion","model":"m","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
    )
    line = row("a", model="m", guided_json={"type": "object"})
    with canned(answer) as upstream, served(tmp_path, upstream.base_url) as sdk:
        ended(sdk, create(sdk, [line]).id)
        assert [json.loads(body) for body in upstream.bodies] == [line["body"]]


def test_fields_that_vllm_has_removed_are_rewritten_or_refused(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(log_bodies=True)
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    lines = [row("json", guided_json=schema), row("both", guided_json=schema, guided_regex="a+")]
    with served(tmp_path, upstream.base_url) as sdk:
        end = ended(sdk, create(sdk, lines).id)
    (sent,) = bodies(upstream)
    assert (sent["structured_outputs"], "guided_json" in sent) == ({"json": schema}, False)
    error = end.by_id["both"]["error"]
    assert error["code"] == "invalid_request"
    assert "guided_json" in error["message"]


def test_a_batch_that_is_due_sooner_ends_while_a_long_one_runs(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(slots=4, latency_ms=20)
    with served(tmp_path, upstream.base_url, max_concurrency=4) as sdk:
        long = create(sdk, [row(name) for name in ids(1500)])
        upstream.wait_for_requests(20)
        ended(sdk, create(sdk, [row(name) for name in ids(20, "short")], "1h").id).check(ids(20, "short"))
        rows_done = retrieve(sdk, long.id).request_counts.completed
        assert rows_done < 500
        sdk(lambda api: api.batches.cancel(long.id))
        ended(sdk, long.id)


@pytest.mark.long
def test_one_row_that_takes_long_holds_no_other(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(slots=4)
    with served(tmp_path, upstream.base_url, max_concurrency=4, request_timeout=60.0) as sdk:
        batch = create(sdk, [row("long", "[[fault:slow:4000]]"), *(row(name) for name in ids(200))])
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 200)
        partial = sdk.raw.get(f"/v1/batches/{batch.id}/output").text.splitlines()
        assert {json.loads(line)["custom_id"] for line in partial} == set(ids(200))
        ended(sdk, batch.id).check(["long", *ids(200)])


@pytest.mark.long
def test_the_sooner_batch_goes_first(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(slots=2, latency_ms=10)
    with served(tmp_path, upstream.base_url, max_concurrency=2) as sdk:
        late = create(sdk, [row(name) for name in ids(600, "late")], "7d")
        upstream.wait_for_requests(10)
        soon = create(sdk, [row(name) for name in ids(200, "soon")], "1h")
        ended(sdk, soon.id)
        assert retrieve(sdk, late.id).request_counts.completed < 200
        sdk(lambda api: api.batches.cancel(late.id))
        rows = read_rows(sdk, ended(sdk, late.id).batch.output_file_id)
    assert rows


@pytest.mark.parametrize("path", ["/v1/score", "/v1/rerank"])
def test_an_endpoint_that_only_the_upstream_has(tmp_path: Path, upstream: Upstream, path: str) -> None:
    with served(tmp_path, upstream.base_url) as sdk:
        refused = sdk.refused(
            lambda api: api.batches.create(input_file_id="file-x", endpoint=path, completion_window="24h")
        )
    assert (refused.status_code, refused.param) == (400, "endpoint")


@pytest.mark.parametrize("cuts", [2, 3])
def test_a_row_that_was_cut_off_goes_only_where_its_model_is(
    tmp_path: Path, make_upstream: MakeUpstream, cuts: int
) -> None:
    one, two = make_upstream(model=["one"]), make_upstream(model=["two"])
    with served(tmp_path, one.base_url, two.base_url) as sdk:
        end = ended(sdk, create(sdk, [row("a", f"[[fault:cut:{cuts}]]", model="two")]).id)
    assert end.counts == (1, 1, 0)
    assert one.requests() == []


@pytest.mark.long
def test_an_upstream_that_refuses_everything_is_not_asked_with_every_row(
    tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream()
    with served(tmp_path, upstream.base_url, retry_delay=1.0) as sdk:
        create(sdk, [row(name, f"{name}[[fault:status:503]]") for name in ids(2000)])
        wait_until(lambda: max(upstream.counts().values(), default=0) >= 2)
        assert len(upstream.counts()) < 400


def test_a_batch_that_runs_is_not_held_to_a_limit_that_came_later(
    tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(slots=2, latency_ms=20)
    with served(tmp_path, upstream.base_url) as sdk:
        batch = create(sdk, [row(name) for name in ids(100)])
        upstream.wait_for_requests(10)
    with served(tmp_path, upstream.base_url, max_rows=50) as sdk:
        ended(sdk, batch.id).check(ids(100))


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("endpoint", ["chat", "embeddings"])
def test_rows_that_cannot_be_read_wait_until_they_can(
    tmp_path: Path, make_upstream: MakeUpstream, endpoint: str
) -> None:
    upstream = make_upstream(slots=1, latency_ms=20)
    chat = endpoint == "chat"
    # Rows are read some at a time: these take several reads.
    long = {name: f"text {name} " * 600 for name in ids(60)}
    lines = [row(name, text) if chat else embedding(name, text) for name, text in long.items()]
    with served(tmp_path, upstream.base_url, max_concurrency=1) as sdk:
        batch = create(sdk, lines, **({} if chat else {"endpoint": EMBEDDINGS}))
        other = create(sdk, [row(name) for name in ids(60, "other")])
        upstream.wait_for_requests(3)
        path = tmp_path / "server" / "files" / batch.input_file_id
        content = path.read_bytes()
        with path.open("rb+") as file:
            file.write(bytes(len(content)))
        problem = wait_until(lambda: health(sdk)["problem"])
        ended(sdk, other.id).check(ids(60, "other"))
        with path.open("rb+") as file:
            file.write(content)
        ended(sdk, batch.id).check(ids(60))
        wait_until(lambda: health(sdk)["problem"] is None)
    assert batch.id in problem


BAD_PAGES = {
    "models-without-end": ("/v1/models", b'{"data":[{"id":' + b"[" * 100_000),
    "models-of-no-utf8": ("/v1/models", b'{"data":[{"id":"\xff"}]}'),
    "gauges-of-no-number": ("/metrics", b"vllm:num_requests_running 1.2.3\n"),
    "gauges-without-end": ("/metrics", b"vllm:num_requests_running 1e999\n"),
}


@pytest.mark.parametrize(("path", "content"), BAD_PAGES.values(), ids=BAD_PAGES)
def test_a_page_that_makes_no_sense_is_read_again(tmp_path: Path, path: str, content: bytes) -> None:
    with canned(b"{}") as upstream:
        upstream.pages[path] = (200, content)
        with served(tmp_path, upstream.base_url) as sdk:
            wait_until(lambda: path in upstream.asked)
            upstream.pages = {"/v1/models": (200, MODELS)}
            ended(sdk, create(sdk, [row("a", model="m")]).id).check(["a"])
            wait_until(lambda: health(sdk)["upstreams"][0]["models"] == ["m"])


def test_a_gateway_that_stumbles_once_is_not_taken_for_a_server_without_gauges(tmp_path: Path) -> None:
    with canned(b"{}") as upstream:
        upstream.pages["/metrics"] = (502, b"<html>Bad Gateway</html>")
        with served(tmp_path, upstream.base_url) as sdk:
            wait_until(lambda: "/metrics" in upstream.asked)
            upstream.pages["/metrics"] = (200, b"vllm:num_requests_running 0\n")
            upstream.asked.clear()
            # The first look may have been answered before; the next begins when that one has been read.
            wait_until(lambda: upstream.asked.count("/metrics") >= 2)
            ended(sdk, create(sdk, [row("a", model="m")]).id).check(["a"])
    assert [json.loads(body)["priority"] for body in upstream.bodies] == [100]


def test_an_engine_that_came_back_with_another_model_while_nothing_ran(
    tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    first = make_upstream(model=["old"])
    with served(tmp_path, first.base_url) as sdk:
        first.kill()
        wait_until(lambda: (health(sdk)["upstreams"][0]["problem"] or "").startswith("unreachable"))
        second = make_upstream(model=["new"], port=first.port)
        wait_until(lambda: health(sdk)["upstreams"][0]["models"] == ["new"])
        end = ended(sdk, create(sdk, [row("a", model="default")]).id)
    assert end.counts == (1, 1, 0)
    assert len(second.requests()) == 1


def test_what_fastapi_says_of_a_row_is_passed_on(tmp_path: Path) -> None:
    with canned(b'{"detail":"Not Found"}', 404) as upstream, served(tmp_path, upstream.base_url) as sdk:
        end = ended(sdk, create(sdk, [row("a", model="m")]).id)
    error = end.by_id["a"]["response"]["body"]["error"]
    assert (error["message"], error["code"]) == ("Not Found", None)


def test_a_suspect_that_is_refused_before_it_goes_out_holds_up_no_other(
    tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    """Rows that one upstream cut off twice go out one at a time, on to the next even where one cannot be sent."""
    vllm = make_upstream(model=["m"])
    vllm.kill()
    lines = [row("both", model="m", guided_json={}, guided_regex="a"), *(row(name, model="m") for name in ids(3))]
    with (
        cutting() as (other, posts),
        served(tmp_path, other, vllm.base_url, retry_delay=0.3) as sdk,
    ):
        batch = create(sdk, lines)
        wait_until(lambda: len(posts) >= 8)
        vllm.start()
        end = ended(sdk, batch.id)
    end.check(["both", *ids(3)])
    assert [line["custom_id"] for line in end.errors] == ["both"]


@contextmanager
def cutting() -> Iterator[tuple[str, list[str]]]:
    """The base URL of an upstream without gauges that cuts off what is posted, and the paths of the first 8 POSTs.

    Then it is gone.
    """
    posts: list[str] = []

    class Cutting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if len(posts) >= 8 else 200 if self.path == "/v1/models" else 404)
            self.send_header("Content-Length", str(len(MODELS)))
            self.end_headers()
            self.wfile.write(MODELS)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            posts.append(self.path)
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            """Tests read what they need from `posts`."""

    with serving(Cutting) as port:
        yield f"http://127.0.0.1:{port}/v1", posts
