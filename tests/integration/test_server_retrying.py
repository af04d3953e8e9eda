"""What /health says of rows that an upstream refuses and that are tried again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeUpstream
from tests.integration.test_server_faults import served
from tests.support.batchapi import Sdk, create, health, retrieve, row, run_batch
from tests.support.canned import canned
from tests.support.process import Upstream, wait_until


def retrying(sdk: Sdk) -> list[dict[str, Any]]:
    return [group for upstream in health(sdk)["upstreams"] for group in upstream["retrying"]]


@pytest.mark.parametrize(
    ("fault", "code", "status", "reason", "most"),
    [
        ("status:529", "overload", 529, "overloaded (529)", 20),
        ("status:429", "overload", 429, "overloaded (429)", 20),
        ("status:500", "server_error", 500, "server error (500)", 5),
        ("cut", "cut", 0, "cut: ", 4),
        ("html", "garbled", 200, "garbled: ", 4),
    ],
)
def test_a_row_that_is_refused_again_and_again_is_said_with_its_tries(
    tmp_path: Path, upstream: Upstream, fault: str, code: str, status: int, reason: str, most: int
) -> None:
    with served(tmp_path, upstream.base_url, retry_delay=0.2) as sdk:
        batch = create(sdk, [row("a"), row("b", f"[[fault:{fault}]]")])
        [group] = wait_until(lambda: [each for each in retrying(sdk) if each["tries"] >= 2])
        assert (group["batch"], group["rows"]) == (batch.id, 1)
        assert (group["fault"], group["status"], group["most_tries"]) == (code, status, most)
        assert group["reason"].startswith(reason)
        assert 0 <= group["next_try_seconds"] <= 1
        assert retrieve(sdk, batch.id).status == "in_progress"


def test_rows_that_have_ended_are_no_longer_said(tmp_path: Path, upstream: Upstream) -> None:
    with served(tmp_path, upstream.base_url) as sdk:
        texts = ["[[fault:status:529:2]]", "[[fault:status:500]]", "[[fault:cut:1]]"]
        run_batch(sdk, [row(f"{number}", text) for number, text in enumerate(texts)])
        assert retrying(sdk) == []
    with served(tmp_path, upstream.base_url, retry_delay=30.0) as sdk:
        batch = create(sdk, [row("a", "[[fault:status:529]]")])
        wait_until(lambda: retrying(sdk))
        sdk(lambda api: api.batches.cancel(batch.id))
        wait_until(lambda: retrieve(sdk, batch.id).status == "cancelled")
        assert retrying(sdk) == []


def test_an_upstream_that_bills_is_asked_without_a_limit(tmp_path: Path) -> None:
    with canned(b"{}", 529) as upstream, served(tmp_path, upstream.base_url, paid=True, retry_delay=0.1) as sdk:
        create(sdk, [row(name) for name in "abc"])
        [group] = wait_until(lambda: [each for each in retrying(sdk) if each["rows"] == 3])
        assert (group["fault"], group["most_tries"]) == ("overload", None)


def test_strangers_are_not_told(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream()
    with served(tmp_path, upstream.base_url, retry_delay=30.0) as sdk:
        create(sdk, [row("a", "[[fault:status:529]]")])
        wait_until(lambda: retrying(sdk))
    with served(tmp_path, upstream.base_url, retry_delay=30.0, require_keys=True) as sdk:
        wait_until(lambda: health(sdk)["upstreams"][0]["problem"] is None)
        assert retrying(sdk) == []
