"""An engine that is away behind a gateway, which answers every row with an error, costs no row its tries."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_server_faults import served
from tests.support.batchapi import CHAT, Sdk, create, ended, health, retrieve, row, run_batch
from tests.support.gateway import gateway
from tests.support.process import Upstream, wait_until


def upstream_of(sdk: Sdk) -> dict[str, Any]:
    found: dict[str, Any] = health(sdk)["upstreams"][0]
    return found


def fails_all(sdk: Sdk) -> bool:
    return "failed: server error" in (upstream_of(sdk)["problem"] or "")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("status", [500, 502, 504, 599])
def test_an_engine_that_restarts_behind_its_gateway_costs_no_row(tmp_path: Path, status: int) -> None:
    ids = [f"r{number}" for number in range(200)]
    with gateway() as upstream, served(tmp_path, upstream.base_url, max_concurrency=16) as sdk:
        upstream.status = status
        batch = create(sdk, [row(name) for name in ids])
        wait_until(lambda: len(upstream.answered) > 40)
        upstream.is_away = True
        wait_until(lambda: upstream_of(sdk)["problem"] == f"10 rows in a row failed: server error ({status})")
        sent = upstream.sent.total()
        first = upstream_of(sdk)["problem_seconds"]
        # Many more attempts than a row has tries: each of them is one row's, after a pause.
        wait_until(lambda: upstream.sent.total() >= sent + 4)
        assert upstream_of(sdk)["problem_seconds"] > first, "the outage is as old as its beginning"
        assert retrieve(sdk, batch.id).request_counts.failed == 0
        upstream.is_away = False
        end = ended(sdk, batch.id)
        assert upstream_of(sdk)["problem"] is None
    end.check(ids)
    assert end.counts == (200, 200, 0)


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("rows", [1, 2, 30])
def test_an_engine_that_never_answers_burns_no_rows(tmp_path: Path, rows: int) -> None:
    ids = [f"r{number}" for number in range(rows)]
    with gateway() as upstream, served(tmp_path, upstream.base_url) as sdk:
        upstream.is_away = True
        began = time.monotonic()
        batch = create(sdk, [row(name) for name in ids])
        count = {1: "1 row", 2: "2 rows in a row", 30: "10 rows in a row"}[rows]
        wait_until(lambda: upstream_of(sdk)["problem"] == f"{count} failed: server error (500)")
        sent = upstream.sent.total()
        wait_until(lambda: upstream.sent.total() >= sent + 4)
        assert retrieve(sdk, batch.id).request_counts.failed == 0
        assert 0 < upstream_of(sdk)["problem_seconds"] <= time.monotonic() - began
        assert sdk.raw.get("/ready").status_code == 503
        upstream.is_away = False
        end = ended(sdk, batch.id)
    assert end.counts == (rows, rows, 0)


def test_rows_that_always_fail_do_so_while_others_succeed(tmp_path: Path) -> None:
    """Among the others, and at the end of the batch, where no other row is left to show that the upstream works."""
    ids = [f"r{number:03d}" for number in range(120)]
    with gateway() as upstream, served(tmp_path, upstream.base_url, max_concurrency=8) as sdk:
        upstream.poison = frozenset({"r007", "r050", "r051", "r117", "r119"})
        end = run_batch(sdk, [row(name) for name in ids])
        assert upstream_of(sdk)["problem"] is None
    end.check(ids)
    assert {line["custom_id"] for line in end.errors} == upstream.poison
    assert {line["response"]["status_code"] for line in end.errors} == {500}


def test_an_outage_ends_with_the_first_request_that_is_passed_through(tmp_path: Path) -> None:
    with gateway() as upstream, served(tmp_path, upstream.base_url) as sdk:
        upstream.is_away = True
        batch = create(sdk, [row("bad")])
        wait_until(lambda: fails_all(sdk))
        upstream.is_away, upstream.poison = False, frozenset({"bad"})
        assert sdk.raw.post(CHAT, json=row("good")["body"]).status_code == 200
        assert ended(sdk, batch.id).counts == (1, 0, 1), "now it is the row that fails"


def test_an_outage_is_over_once_nobody_waits(tmp_path: Path) -> None:
    with gateway() as upstream, served(tmp_path, upstream.base_url) as sdk:
        upstream.is_away = True
        batch = create(sdk, [row("a")])
        wait_until(lambda: fails_all(sdk))
        sdk(lambda api: api.batches.cancel(batch.id))
        wait_until(lambda: upstream_of(sdk)["problem"] is None)


def test_the_upstream_that_works_takes_the_rows_of_the_one_that_does_not(tmp_path: Path) -> None:
    ids = [f"r{number}" for number in range(100)]
    with gateway() as well, gateway() as away, served(tmp_path, away.base_url, well.base_url) as sdk:
        away.is_away = True
        end = run_batch(sdk, [row(name) for name in ids])
        assert upstream_of(sdk)["problem"] == "10 rows in a row failed: server error (500)"
    assert end.counts == (100, 100, 0)


def test_an_engine_that_is_there_fails_a_lone_row_by_itself(tmp_path: Path, upstream: Upstream) -> None:
    """vLLM shows its gauges: it is no gateway, and is there if it answers. So a second run of a bad row ends too."""
    ids = ["a", "b", "c"]
    with served(tmp_path, upstream.base_url) as sdk:
        end = run_batch(sdk, [row(name, f"{name}[[fault:status:500]]") for name in ids])
    assert end.counts == (3, 0, 3)
    assert {upstream.counts()[name] for name in ids} == {5}
