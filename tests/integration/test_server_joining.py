"""Upstreams that join and leave a server that runs: rows wait for theirs, and none is lost or asked for in vain."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.core.engines import ModelDemand
from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from tests.conftest import MakeUpstream
from tests.support.batchapi import Sdk, create, ended, health, retrieve, row, sdk_at
from tests.support.process import wait_until

IDS = [f"r{index}" for index in range(60)]


@contextmanager
def served(folder: Path, **settings: Any) -> Iterator[tuple[ServerThread, Sdk]]:
    given = {"retry_delay": 0.01, "expected_models": ("small", "large"), "most_upstreams": 2, **settings}
    with ServerThread(folder / "server", Settings(upstreams=(), **given)) as server, sdk_at(server.socket) as sdk:
        yield server, sdk


def rows(model: str) -> list[dict[str, Any]]:
    return [row(name, model=model) for name in IDS]


def the_only(demand: list[ModelDemand]) -> ModelDemand:
    (one,) = demand
    return one


def test_rows_wait_for_an_upstream_that_has_their_model(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    small, large = make_upstream(model=["small"]), make_upstream(model=["large"])
    with served(tmp_path) as (server, sdk):
        batch = create(sdk, rows("large"))
        wait_until(server.demand)
        one = the_only(server.demand())
        assert (one.model, one.rows, one.waiting) == ("large", 60, 60)
        server.join(small.base_url, ["small"])
        ended(sdk, create(sdk, rows("small")).id).check(IDS)
        assert retrieve(sdk, batch.id).request_counts.completed == 0
        server.join(large.base_url, ["large"])
        ended(sdk, batch.id).check(IDS)
        assert server.demand() == []
    assert len(small.requests()) == len(large.requests()) == 60


def test_a_model_that_is_not_expected_is_refused_at_once(tmp_path: Path) -> None:
    with served(tmp_path) as (_, sdk):
        batch = create(sdk, rows("huge"))
        wait_until(lambda: retrieve(sdk, batch.id).status == "failed")
        errors = retrieve(sdk, batch.id).errors
        assert errors is not None
        assert [(one.code, one.message) for one in errors.data] == [
            ("model_not_found", "The model 'huge' does not exist here; there are: large, small.")
        ]


def test_one_that_leaves_answers_what_it_has_and_takes_no_more(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    first, second = (make_upstream(model=["small"], slots=4, latency_ms=100) for _ in range(2))
    with served(tmp_path, max_concurrency=4) as (server, sdk):
        server.join(first.base_url, ["small"])
        batch = create(sdk, rows("small"))
        first.wait_for_requests(8)
        server.leave(first.base_url, 30)
        taken = len(first.requests())
        assert the_only(server.demand()).in_flight == 0
        assert health(sdk)["upstreams"] == []
        server.join(second.base_url, ["small"])
        ended(sdk, batch.id).check(IDS)
        assert len(first.requests()) == taken < 60
        assert taken + len(second.requests()) == 60


def test_rows_of_one_that_has_to_leave_at_once_go_elsewhere(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    slow, fast = make_upstream(model=["small"], latency_ms=60_000), make_upstream(model=["small"])
    with served(tmp_path, max_concurrency=4) as (server, sdk):
        server.join(slow.base_url, ["small"])
        batch = create(sdk, rows("small"))
        slow.wait_for_requests(4)
        leaving = threading.Thread(target=server.leave, args=(slow.base_url, 0.1))
        leaving.start()
        server.join(fast.base_url, ["small"])
        end = ended(sdk, batch.id)
        leaving.join()
        end.check(IDS)
        assert len(slow.requests()) == 4
        assert len(fast.requests()) == 60


def test_one_that_joined_twice_is_there_once_and_one_that_left_may_come_again(
    tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(model=["small"])
    with served(tmp_path) as (server, sdk):
        for _ in range(2):
            server.join(upstream.base_url, ["small"])
            server.join(upstream.base_url, ["small"])
            assert len(health(sdk)["upstreams"]) == 1
            ended(sdk, create(sdk, rows("small")).id).check(IDS)
            server.leave(upstream.base_url, 5)
            server.leave(upstream.base_url, 5)
            assert health(sdk)["upstreams"] == []
