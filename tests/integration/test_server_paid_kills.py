"""kill -9 in front of an upstream that bills: every request that it got is a result, or booked as uncertain."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeUpstream
from tests.support.batchapi import CHAT, Ended, create, ended, health, retrieve, row, sdk_at
from tests.support.crashing import whole_lines
from tests.support.paidserver import MAX_CONCURRENCY, PaidServer
from tests.support.process import Upstream, wait_until

EMBEDDINGS = "/v1/embeddings"
PROVENANCE = {"extra_body": {"include_provenance": True}}


def uncertain(end: Ended) -> Counter[str]:
    return Counter({line["custom_id"]: line.get("orch", {}).get("uncertain", 0) for line in end.by_id.values()})


def unbooked(end: Ended, upstream: Upstream) -> dict[str, int]:
    """How often the upstream worked on a row beyond the one time that is its result, and what is uncertain of it."""
    worked = [entry for entry in upstream.requests() if not entry["outcome"].startswith("fault:status")]
    billed = Counter(entry["marker"] for entry in worked)
    known, results = uncertain(end), {line["custom_id"] for line in end.output}
    more = {name: times - known[name] - (name in results) for name, times in billed.items()}
    return {name: number for name, number in more.items() if number > 0}


def durable(server: PaidServer, batch_id: str) -> int:
    """How many rows have a whole line on the disk."""
    folder = server.folder / "batches" / batch_id
    return sum(1 for kind in ("output", "error") for _ in whole_lines(folder / f"{kind}.jsonl"))


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("seed", "upstream_dies"),
    [(1, False), pytest.param(2, False, marks=pytest.mark.slow), pytest.param(3, True, marks=pytest.mark.slow)],
    ids=["kills-1", "kills-2", "both-are-killed"],
)
def test_what_is_sent_and_lost_in_a_kill_is_booked(
    tmp_path: Path, make_upstream: MakeUpstream, seed: int, upstream_dies: bool
) -> None:
    dice = random.Random(seed)
    upstream = make_upstream(slots=8, latency_ms=15)
    ids = [f"r{number}" for number in range(200)]
    lines = [row(name, f"{name}[[fault:status:400]]" if n % 10 == 0 else None) for n, name in enumerate(ids)]
    in_flight = 0
    with PaidServer(tmp_path / "s", upstream.base_url) as server:
        with sdk_at(server.socket) as sdk:
            batch = create(sdk, lines, **PROVENANCE)
        for _ in range(4):
            upstream.wait_for_requests(min(190, len(upstream.requests()) + dice.randint(10, 50)))
            if upstream_dies:
                upstream.restart()
            server.kill()
            # What it got and has no line; what was noted and had not left; what died with the upstream.
            in_flight += MAX_CONCURRENCY * (1 + upstream_dies) + len(upstream.requests()) - durable(server, batch.id)
            server.start()
        with sdk_at(server.socket) as sdk:
            end = ended(sdk, batch.id)
    end.check(ids)
    assert end.counts == (200, 180, 20)
    assert unbooked(end, upstream) == {}
    assert 0 < uncertain(end).total() <= in_flight
    # Rows that no kill struck are as certain as ever.
    assert len([name for name, number in uncertain(end).items() if not number]) > 80


def test_kills_between_tries_leave_no_doubt(tmp_path: Path, upstream: Upstream) -> None:
    """Rows that wait after an answer that is not a result are in flight for nobody."""
    ids = [f"r{number}" for number in range(10)]
    lines = [row(name, f"{name}[[fault:status:503:Retry-After=60:1]]") for name in ids]
    with PaidServer(tmp_path / "s", upstream.base_url) as server:
        with sdk_at(server.socket) as sdk:
            batch = create(sdk, lines, **PROVENANCE)
            upstream.wait_for_requests(10)
            wait_until(lambda: health(sdk)["upstreams"][0]["in_flight"] == 0)
        server.kill()
        server.start()
        with sdk_at(server.socket) as sdk:
            end = ended(sdk, batch.id)
    end.check(ids)
    assert (upstream.counts().total(), uncertain(end).total()) == (20, 0)


@pytest.mark.parametrize("blow", ["kill", "stop"])
def test_rows_in_flight_at_the_end_are_in_doubt_also_where_the_batch_is_cancelled_behind_it(
    tmp_path: Path, upstream: Upstream, blow: str
) -> None:
    ids = [f"r{number}" for number in range(MAX_CONCURRENCY + 5)]
    lines = [row(name, f"{name}[[fault:hang]]") for name in ids]
    # However long it takes until the blow: none of them may be given up before.
    with PaidServer(tmp_path / "s", upstream.base_url, request_timeout=600.0) as server:
        with sdk_at(server.socket) as sdk:
            batch = create(sdk, lines, **PROVENANCE)
        upstream.wait_for_requests(MAX_CONCURRENCY)
        first = set(upstream.counts())
        # The server goes first: one that saw its upstream go would be about to send the next rows.
        getattr(server, blow)()
        upstream.kill()
        server.start()
        with sdk_at(server.socket) as sdk:
            sdk(lambda api: api.batches.cancel(batch.id))
            end = ended(sdk, batch.id)
    end.check(ids)
    assert {name for name, number in uncertain(end).items() if number} == first
    assert unbooked(end, upstream) == {}
    told = {line["custom_id"] for line in end.errors if "may be billed" in line["error"]["message"]}
    assert told == first


def embedding(name: str) -> dict[str, Any]:
    body = {"model": "test-model", "input": name}
    return {"custom_id": name, "method": "POST", "url": EMBEDDINGS, "body": body}


# Packed: more of them than go out at once, so that some still wait when others are taken back.
@pytest.mark.parametrize(
    ("make", "endpoint", "rows"),
    [(row, CHAT, 20), (embedding, EMBEDDINGS, 70 * MAX_CONCURRENCY)],
    ids=["alone", "packed"],
)
def test_a_row_that_cannot_be_noted_is_not_sent(
    tmp_path: Path, upstream: Upstream, make: Callable[[str], dict[str, Any]], endpoint: str, rows: int
) -> None:
    """The disk is full: no row leaves; once there is room again all goes on."""
    ids = [f"r{number}" for number in range(rows)]
    with PaidServer(tmp_path / "s", upstream.base_url) as server:
        upstream.kill()
        with sdk_at(server.socket) as sdk:
            batch = create(sdk, [make(name) for name in ids], endpoint=endpoint, **PROVENANCE)
            wait_until(lambda: retrieve(sdk, batch.id).status == "in_progress")
        server.kill()
        account = server.folder / "batches" / batch.id / "sent"
        account.write_bytes(bytes(1 << 20))  # of nobody: no rows, but no room either
        server.start(fsize=account.stat().st_size)
        upstream.start()
        with sdk_at(server.socket) as sdk:
            problem = wait_until(lambda: health(sdk)["problem"])
            assert "cannot be noted as sent" in problem
            assert upstream.requests() == []
            server.limit_files(-1)
            end = ended(sdk, batch.id)
    end.check(ids)
    assert uncertain(end).total() == 0
    assert set(upstream.counts().values()) == {1}


def test_an_account_that_cannot_be_opened_holds_its_batch_up(tmp_path: Path, upstream: Upstream) -> None:
    with PaidServer(tmp_path / "s", upstream.base_url) as server:
        upstream.kill()
        with sdk_at(server.socket) as sdk:
            batch = create(sdk, [row("a")])
            wait_until(lambda: retrieve(sdk, batch.id).status == "in_progress")
        server.kill()
        account = server.folder / "batches" / batch.id / "sent"
        account.unlink()
        account.mkdir()
        upstream.start()
        server.start()
        with sdk_at(server.socket) as sdk:
            wait_until(lambda: "Is a directory" in (health(sdk)["problem"] or ""))
            account.rmdir()
            ended(sdk, batch.id).check(["a"])
