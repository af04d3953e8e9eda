"""What an upstream's answer to /v1/models means, for the batch server and for `orch doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.cli.validate_and_doctor import _examine_upstream
from orchestrator.daemon.health import remedy, without_engine
from tests.integration.test_server_faults import served
from tests.support.batchapi import create, ended, health, row, run_batch
from tests.support.canned import MODELS, Canned, canned
from tests.support.process import Upstream, wait_until

GOOD = b'{"choices":[{"message":{"content":"yes"}}]}'
# status and body of the page, and how the problem is said
PAGES = {
    "400": (400, b'{"error":{"message":"No api key passed in.","code":"400"}}', "status 400: No api key passed in."),
    "500": (500, b'{"detail":"database is locked"}', "status 500: database is locked"),
    "html": (502, b"<html><body><h1>Bad Gateway</h1></body></html>", "status 502: Bad Gateway"),
    "401": (401, b'{"error":{"message":"no"}}', "upstream refuses the API key (401)"),
    "403": (403, b"no", "upstream refuses the API key (403)"),
    "no list": (200, b"<html><title>Welcome</title></html>", "OpenAI-compatible server: Welcome"),
}

# an address, with the port of a server without TLS, and what is to be done about it
WRONG = {
    "name": ("http://no-such-host.invalid/v1", "correct the name of its host in orch.toml"),
    "tls": ("https://127.0.0.1:{}/v1", "write http:// in orch.toml if it has no TLS; else name the authority of its "
            "certificate in SSL_CERT_FILE"),
}  # fmt: skip


@contextmanager
def with_page(upstream: Canned, status: int, body: bytes) -> Iterator[None]:
    """From here on the upstream answers /v1/models so, until somebody changes it."""
    upstream.pages["/v1/models"] = status, body
    yield


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_fails_is_said_with_its_status_and_words(tmp_path: Path, page: str) -> None:
    status, body, problem = PAGES[page]
    with canned(GOOD) as upstream, with_page(upstream, status, body), served(tmp_path, upstream.base_url) as sdk:
        batch = create(sdk, [row("a")])
        first = wait_until(lambda: next((u for u in health(sdk)["upstreams"] if u["answers"]), None))
        wait_until(lambda: problem in (health(sdk)["upstreams"][0]["problem"] or ""))
        assert "is vLLM running?" not in remedy(first, "local", None), "it runs"
        (what, is_well, found, code), models = _examine_upstream("local", upstream.base_url, None)
        assert (what, is_well, code, models) == (f"upstream {upstream.base_url}", False, 4, [])
        assert problem in found
        upstream.pages["/v1/models"] = 200, MODELS
        assert ended(sdk, batch.id).counts == (1, 1, 0)


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_without_the_page_is_well(tmp_path: Path, status: int) -> None:
    page = b"<html>what?</html>"
    with canned(GOOD) as upstream, with_page(upstream, status, page), served(tmp_path, upstream.base_url) as sdk:
        assert run_batch(sdk, [row("a")]).counts == (1, 1, 0)
        (_, is_well, found, _), models = _examine_upstream("local", upstream.base_url, None)
    assert (is_well, models) == (True, [])
    assert f"status {status}" in found


def test_a_server_that_is_not_there_is_to_be_started(tmp_path: Path, upstream: Upstream) -> None:
    upstream.stop()
    with served(tmp_path, upstream.base_url) as sdk:
        first = wait_until(
            lambda: next((u for u in health(sdk)["upstreams"] if u["problem"].startswith("unreachable")), None)
        )
    assert (first["answers"], remedy(first, "local", None)) == (False, "is vLLM running? see `orch doctor`")


@pytest.mark.parametrize("way", WRONG)
def test_a_wrong_address_is_to_be_corrected(tmp_path: Path, way: str) -> None:
    address, cure = WRONG[way]
    with canned(GOOD) as upstream:
        url = address.format(upstream.port)
        with served(tmp_path, url) as sdk:
            first = wait_until(
                lambda: next((u for u in health(sdk)["upstreams"] if u["problem"].startswith("unreachable")), None)
            )
        (_, is_well, found, _), _ = _examine_upstream("local", url, None)
        assert (is_well, first["answers"], first["unreached"]) == (False, False, way)
    assert remedy(first, "local", None) == f"{cure}; see `orch doctor`"
    assert found.endswith(f"; {cure}")


def test_an_engine_that_is_waited_for_is_named_with_its_time() -> None:
    starting = {"model": "qwen", "state": "starting", "problem": None, "seconds": 95.0}
    health = {"upstreams": [], "engines": [starting], "running_batches": 1}
    assert without_engine(health) == "qwen is starting, for 1 min 35 s so far"
    assert without_engine({**health, "running_batches": 0}) is None
