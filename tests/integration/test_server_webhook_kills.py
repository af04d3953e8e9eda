"""The server is killed around a batch's end and amid a retry: each end is told under one id, and no batch is half."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import defaultdict
from pathlib import Path

import httpx2
import pytest

from tests.conftest import MakeUpstream
from tests.support.batchapi import Sdk, create, ended, health, retrieve, row, run_batch, sdk_at
from tests.support.batchserver import BatchServer
from tests.support.process import Upstream, wait_until
from tests.support.receiver import Delivery, Receiver


def test_a_kill_before_the_answer_sends_the_same_event_again(tmp_path: Path, upstream: Upstream) -> None:
    with Receiver() as receiver, BatchServer(tmp_path / "s", upstream.base_url, receiver.url) as server:

        def kill(_: Delivery) -> None:
            receiver.before_answer = None
            server.kill()

        receiver.before_answer = kill
        with sdk_at(server.socket) as sdk:
            batch = create(sdk, [row("a")])
        wait_until(lambda: receiver.deliveries)
        server.start()
        with sdk_at(server.socket) as sdk:
            wait_until(lambda: health(sdk)["webhooks"]["waiting"] == 0)
            # Whoever is told of an end finds it.
            assert retrieve(sdk, batch.id).status == "completed"
        first, second = receiver.events()
        assert (first.id, first.data.id, first.type) == (second.id, batch.id, "batch.completed")
        assert first == second


@pytest.mark.parametrize("seed", [1, 2])
def test_every_end_is_told_whenever_the_server_is_killed(
    tmp_path: Path, make_upstream: MakeUpstream, seed: int
) -> None:
    dice = random.Random(seed)
    upstream = make_upstream(slots=4, latency_ms=3)
    with Receiver() as receiver, BatchServer(tmp_path / "s", upstream.base_url, receiver.url) as server:
        with sdk_at(server.socket) as sdk:
            lines = [[row(f"b{n}-r{m}") for m in range(20)] for n in range(8)]
            lines.append([row("twice"), row("twice")])
            batches = [create(sdk, some) for some in lines]
        for _ in range(6):
            # Near the ends: there it is decided whether an event is lost or doubled.
            told = len(receiver.deliveries) + 1
            wait_until(lambda told=told: len(receiver.deliveries) >= told or len(receiver.deliveries) >= len(batches))
            time.sleep(dice.uniform(0, 0.05))
            server.kill()
            server.start()
        with sdk_at(server.socket) as sdk:
            ends = {batch.id: ended(sdk, batch.id).batch for batch in batches}
            wait_until(lambda: health(sdk)["webhooks"]["waiting"] == 0)
        events = defaultdict(set)
        for event in receiver.events():
            events[event.data.id].add((event.id, event.type, event.created_at))
    assert events == {
        batch_id: {(f"evt_{batch_id.removeprefix('batch_')}", f"batch.{batch.status}", ended_at(batch))}
        for batch_id, batch in ends.items()
    }


def ended_at(batch: object) -> int:
    found: int = getattr(batch, f"{batch.status}_at")  # type: ignore[attr-defined]
    return found


# A client whose server is killed while it connects leaves the socket to the collector.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:unclosed <socket", "ignore:Exception ignored in. <socket")
def test_a_retry_that_is_killed_leaves_a_whole_batch_or_none(tmp_path: Path, upstream: Upstream) -> None:
    dice = random.Random(3)
    ids = [f"r{number}" for number in range(3000)]
    with BatchServer(tmp_path / "s", upstream.base_url) as server:
        with sdk_at(server.socket) as sdk:
            old = run_batch(sdk, [row(custom_id, f"{custom_id}[[fault:status:400:1]]") for custom_id in ids]).batch
            assert old.request_counts.failed == len(ids)

        taken = 0

        def ask(sdk: Sdk) -> None:
            nonlocal taken
            with contextlib.suppress(httpx2.TransportError):
                while True:
                    assert sdk.raw.post(f"/v1/batches/{old.id}/retry").status_code == 200
                    taken += 1

        for _ in range(5):
            with sdk_at(server.socket) as sdk:
                before = taken
                asking = threading.Thread(target=ask, args=(sdk,))
                asking.start()
                wait_until(lambda before=before: taken > before)
                time.sleep(dice.uniform(0, 0.1))
                server.kill()
                asking.join()
            server.start()
        with sdk_at(server.socket) as sdk:
            batches = [batch for batch in sdk.every(lambda api: api.batches.list(limit=100)) if batch.id != old.id]
            # A retry that was cut off may have been taken too.
            assert taken <= len(batches) <= taken + 5
            for batch in batches:
                ended(sdk, batch.id).check(ids)
