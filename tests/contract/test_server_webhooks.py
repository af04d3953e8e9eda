"""Webhooks at a batch's end: what a real receiver gets, checked with the official SDK's `webhooks.unwrap`."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from orchestrator.core.errors import UsageError
from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from orchestrator.server.webhooks import LONGEST_DELAY, MAX_ATTEMPTS, delay_after
from tests.support.batchapi import Sdk, create, ended, health, row, run_batch, sdk_at
from tests.support.clock import HeldClock
from tests.support.process import Upstream, wait_until
from tests.support.receiver import PATH, SECRET, Receiver

REFUSED = "[[fault:status:503:Retry-After=60]]"  # such a row waits, so that nothing is in flight at the batch's end


@contextmanager
def serving(folder: Path, upstream: Upstream, url: str, secret: str = SECRET) -> Iterator[Sdk]:
    settings = Settings(upstreams=(upstream.base_url,), retry_delay=0.02, webhook_url=url, webhook_secret=secret)
    with ServerThread(folder, settings) as server, sdk_at(server.socket) as sdk:
        yield sdk


def nothing_waits(sdk: Sdk) -> bool:
    return bool(health(sdk)["webhooks"]["waiting"] == 0)


def end_of(sdk: Sdk, status: str, clock: HeldClock) -> Any:
    """A batch that ends so."""
    match status:
        case "completed":
            return run_batch(sdk, [row("a"), row("bad", "[[fault:status:400]]")]).batch
        case "failed":
            return run_batch(sdk, [row("a"), row("a")]).batch
        case "expired":
            batch = create(sdk, [row("a"), row("late", REFUSED)], "1s")
            clock.move(seconds=2)
            return ended(sdk, batch.id).batch
        case _:
            batch = create(sdk, [row("late", REFUSED)])
            sdk(lambda api: api.batches.cancel(batch.id))
            return ended(sdk, batch.id).batch


@pytest.mark.slow
@pytest.mark.parametrize("secret", [SECRET, "any text at all"])
def test_every_end_of_a_batch_is_told_once(
    tmp_path: Path, upstream: Upstream, held_clock: HeldClock, secret: str
) -> None:
    with Receiver() as receiver, serving(tmp_path / "s", upstream, receiver.url, secret) as sdk:
        batches = [end_of(sdk, status, held_clock) for status in ("completed", "failed", "expired", "cancelled")]
        wait_until(lambda: len(receiver.deliveries) == 4)
        wait_until(lambda: nothing_waits(sdk))
        by_batch = {event.data.id: event for event in receiver.events(secret)}
        assert len(receiver.deliveries) == 4
    for batch in batches:
        event = by_batch[batch.id]
        assert (event.object, event.type) == ("event", f"batch.{batch.status}")
        assert event.created_at == getattr(batch, f"{batch.status}_at")
    assert len({event.id for event in by_batch.values()}) == 4
    assert all(event.id.startswith("evt_") for event in by_batch.values())
    for delivery in receiver.deliveries:
        assert set(json.loads(delivery.body)) == {"id", "object", "type", "created_at", "data"}
        assert delivery.path.startswith(PATH)
        # Header names in lower case, whatever the library that reads them does.
        assert delivery.event(secret).id == {k.lower(): v for k, v in delivery.headers.items()}["webhook-id"]
        with pytest.raises(openai.InvalidWebhookSignatureError):
            delivery.event("whsec_YW5vdGhlciBzZWNyZXQ=")


@pytest.mark.long
def test_an_event_is_sent_until_it_is_taken(tmp_path: Path, upstream: Upstream) -> None:
    with Receiver(500, 307) as receiver, serving(tmp_path / "s", upstream, receiver.url) as sdk:
        batch = run_batch(sdk, [row("a")]).batch
        state = wait_until(lambda: (found := health(sdk)["webhooks"])["problem"] and found)
        assert state["waiting"] == 1
        # What a URL may hold of secrets is not shown.
        assert state["url"] == f"http://127.0.0.1:{receiver.port}"
        assert state["problem"].startswith(f"http://127.0.0.1:{receiver.port} answered with status ")
        wait_until(lambda: len(receiver.deliveries) == 3)
        wait_until(lambda: nothing_waits(sdk))
        assert health(sdk)["webhooks"]["problem"] is None
    (event,) = receiver.events()
    assert event.data.id == batch.id
    assert [delivery.status for delivery in receiver.deliveries] == [500, 307, 204]
    assert {delivery.body for delivery in receiver.deliveries} == {receiver.deliveries[0].body}
    assert all(delivery.path.startswith(PATH) for delivery in receiver.deliveries), "a redirect was followed"
    assert {delivery.event().id for delivery in receiver.deliveries} == {event.id}


@pytest.mark.long
def test_a_receiver_that_does_not_answer(tmp_path: Path, upstream: Upstream) -> None:
    with Receiver(None) as receiver, serving(tmp_path / "s", upstream, receiver.url) as sdk:
        batch = run_batch(sdk, [row("a")]).batch
        state = wait_until(lambda: (found := health(sdk)["webhooks"])["problem"] and found)
        assert state["problem"].endswith("did not answer within 10 s")
        wait_until(lambda: nothing_waits(sdk))
        assert [event.data.id for event in receiver.events()] == [batch.id]


@pytest.mark.slow
def test_events_outlive_the_server(tmp_path: Path, upstream: Upstream) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    with serving(tmp_path / "s", upstream, f"http://127.0.0.1:{port}{PATH}") as sdk:
        batches = [run_batch(sdk, [row("a")]).batch.id for _ in range(3)]
        wait_until(lambda: health(sdk)["webhooks"]["problem"])
        assert health(sdk)["webhooks"]["waiting"] == 3
    with Receiver(port=port) as receiver, serving(tmp_path / "s", upstream, receiver.url) as sdk:
        wait_until(lambda: nothing_waits(sdk))
        assert sorted(event.data.id for event in receiver.events()) == sorted(batches)
        assert len(receiver.deliveries) == 3


def test_without_a_webhook_nothing_is_kept_for_one(tmp_path: Path, upstream: Upstream) -> None:
    settings = Settings(upstreams=(upstream.base_url,))
    with ServerThread(tmp_path / "s", settings) as server, sdk_at(server.socket) as sdk:
        run_batch(sdk, [row("a")])
        assert health(sdk)["webhooks"] is None
    with Receiver() as receiver, serving(tmp_path / "s", upstream, receiver.url) as sdk:
        batch = run_batch(sdk, [row("b")]).batch
        wait_until(lambda: receiver.deliveries)
        wait_until(lambda: nothing_waits(sdk))
        assert [event.data.id for event in receiver.events()] == [batch.id]


@pytest.mark.parametrize(
    ("url", "secret", "message"),
    [
        ("http://receiver.test/hook", None, "needs a secret"),
        ("http://receiver.test/hook", "", "needs a secret"),
        ("http://receiver.test/hook", "whsec_", "is not base64"),
        ("http://receiver.test/hook", "whsec_top-secret!", "is not base64"),
        ("ftp://receiver.test/hook", SECRET, "http"),
        ("receiver.test/hook", SECRET, "http"),
        ("http://", SECRET, "http"),
        ("http://receiver.test:port/", SECRET, "http"),
    ],
)
def test_settings_that_cannot_be_meant(tmp_path: Path, url: str, secret: str | None, message: str) -> None:
    settings = Settings(upstreams=(), webhook_url=url, webhook_secret=secret)
    with pytest.raises(UsageError, match=message) as caught:
        ServerThread(tmp_path / "s", settings)
    assert "top-secret" not in str(caught.value)


def test_delays_grow_to_ten_minutes_and_end_after_some_three_days() -> None:
    delays = [delay_after(attempts) for attempts in range(1, MAX_ATTEMPTS)]
    assert delays[:4] == [1, 2, 4, 8]
    assert all(delay is not None and delay <= LONGEST_DELAY for delay in delays)
    assert delays[-1] == LONGEST_DELAY == 600
    assert 2.9 <= sum(delay for delay in delays if delay) / 86_400 <= 3.1
    assert delay_after(MAX_ATTEMPTS) is None
