"""What a server that asks for keys tells who has none: that it is there and how busy, and no name of anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from orchestrator import __version__
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.keys import Keys
from orchestrator.server.settings import Settings
from tests.conftest import MakeUpstream
from tests.contract.conftest import over_tcp
from tests.support.batchapi import CHAT, Sdk, create, row, run_batch, sdk_at
from tests.support.process import Upstream, wait_until
from tests.support.receiver import SECRET

TENANT = "the-tenants-name"
TOKEN = "the-query-of-the-upstream"
OPEN = ("/health", "/ready", "/metrics")


@contextmanager
def serving(
    folder: Path, upstream: Upstream, *, keys: bool = True, free: int = 1
) -> Iterator[tuple[Sdk, httpx2.Client]]:
    """A server in front of an upstream whose URL has a query; a client with a key, and a stranger."""
    folder.mkdir(exist_ok=True)
    database = ServerDatabase(folder / FILE_NAME)
    _, secret = Keys(database).add(TENANT)
    database.close()
    limits = Settings(
        upstreams=(f"{upstream.base_url}?token={TOKEN}",),
        retry_delay=0.02,
        require_keys=keys,
        webhook_url="http://127.0.0.1:9/the-path-of-the-webhook",
        webhook_secret=SECRET,
        min_free_bytes=free,
    )
    with over_tcp(folder, limits) as url, sdk_at(url, api_key=secret) as sdk, httpx2.Client(base_url=url) as stranger:
        sdk.raw.headers["authorization"] = f"Bearer {secret}"
        yield sdk, stranger


def names(folder: Path, upstream: Upstream) -> list[str]:
    """What nobody without a key is to read."""
    return [TENANT, TOKEN, str(folder), f":{upstream.port}", "127.0.0.1", "test-model", "the-path", __version__]


def told(stranger: httpx2.Client, method: str = "GET", path: str = "/health") -> str:
    answer = stranger.request(method, path)
    return f"{answer.status_code} {dict(answer.headers)} {answer.text}"


ASKED = [
    *(("GET", path) for path in OPEN),
    ("GET", "/"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/models"),
    ("GET", "/v1/files"),
    ("GET", "/v1/batches"),
    ("GET", "/nothing/like/it"),
    ("POST", CHAT),
    ("POST", "/v1/batches"),
    ("POST", "/health"),
    ("DELETE", "/v1/files/file-x"),
    ("OPTIONS", "/v1/files"),
    ("HEAD", "/health"),
]


@pytest.mark.parametrize("state", ["well", "away"])
def test_strangers_are_told_no_name(make_upstream: MakeUpstream, tmp_path: Path, state: str) -> None:
    upstream = make_upstream(model=["test-model"])
    with serving(tmp_path / "s", upstream) as (sdk, stranger):
        wait_until(lambda: stranger.get("/ready").status_code == 200)
        batch_id = run_batch(sdk, [row("a")]).batch.id
        if state == "away":
            upstream.kill()
            create(sdk, [row("b")])
            wait_until(lambda: stranger.get("/ready").status_code == 503)
            assert stranger.get("/ready").json()["reasons"] == ["no upstream is healthy"]
        for method, path in ASKED:
            found = told(stranger, method, path)
            assert [name for name in [*names(tmp_path, upstream), batch_id] if name in found] == [], path
        assert re.search(
            r'^orch_rows_total\{result="succeeded",upstream="1"\} 1\.0$', told_page(stranger), re.MULTILINE
        )


def told_page(stranger: httpx2.Client) -> str:
    return stranger.get("/metrics").text


def test_strangers_are_told_that_there_is_no_room_and_not_how_much(upstream: Upstream, tmp_path: Path) -> None:
    with serving(tmp_path / "s", upstream, free=1 << 60) as (sdk, stranger):
        wait_until(lambda: stranger.get("/ready").json()["reasons"] == ["the disk is short of room"])
        assert "must stay free" in sdk.raw.get("/ready").json()["reasons"][0]


def test_who_has_a_key_is_told_which_upstream_it_is(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    upstream = make_upstream(model=["test-model"])
    with serving(tmp_path / "s", upstream) as (sdk, stranger):
        wait_until(lambda: stranger.get("/ready").status_code == 200)
        (found,) = sdk.raw.get("/health").json()["upstreams"]
        assert (found["number"], found["url"], found["models"]) == (1, upstream.base_url, ["test-model"])
        assert f'upstream="{upstream.base_url}"' in sdk.raw.get("/metrics").text
        upstream.kill()
        create(sdk, [row("b")])
        wait_until(lambda: stranger.get("/ready").status_code == 503)
        assert "Connection refused" in sdk.raw.get("/ready").json()["reasons"][0]
        (unknown,) = stranger.get("/health").json()["upstreams"]
        assert (unknown["number"], unknown["url"], unknown["problem"]) == (1, None, "down")
        # A key that is none tells no more than no key.
        wrong = stranger.get("/health", headers={"authorization": "Bearer orch-x"}).json()
        assert wrong["upstreams"][0]["url"] is None


@pytest.mark.parametrize("keys", [True, False], ids=["keys", "no keys"])
def test_the_query_of_an_upstream_is_told_nobody_and_sent_to_it_alone(
    make_upstream: MakeUpstream, tmp_path: Path, keys: bool
) -> None:
    upstream = make_upstream(model=["test-model"])
    with serving(tmp_path / "s", upstream, keys=keys) as (sdk, _):
        wait_until(lambda: sdk.raw.get("/ready").status_code == 200)
        end = run_batch(sdk, [row("a")], extra_body={"include_provenance": True})
        end.check(["a"])
        assert end.output[0]["orch"]["upstream"] == upstream.base_url
        assert sdk.raw.post(CHAT, json=row("b")["body"]).status_code == 200
        for path in (*OPEN, "/openapi.json", "/v1/models", f"/v1/batches/{end.batch.id}"):
            assert TOKEN not in sdk.raw.get(path).text
