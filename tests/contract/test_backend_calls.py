"""Calls that never end by themselves, and those that are sent elsewhere: before an emulated provider that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import httpcore2
import httpx2
import openai
import pytest

from orchestrator.backends import BatchOrder, call_limits
from orchestrator.backends.anthropic.settings import AnthropicBackend
from orchestrator.backends.batches import ApiBatches
from orchestrator.backends.open import open_backend
from orchestrator.backends.openai.settings import OpenAIBackend
from orchestrator.core.errors import BackendError, NotSent, Uncertain
from tests.emulator.client import Emulator
from tests.support.batchapi import CHAT, jsonl, row
from tests.support.scripted import Answer, Asked, scripted

KEY = "sk-calls-0123456789"
SHARD = "letters-1.001"


@pytest.fixture
def client(emulator: Emulator) -> Iterator[httpx2.Client]:
    emulator.reset()
    headers = {"authorization": f"Bearer {KEY}"}
    client = openai.DefaultHttpxClient(base_url=emulator.url_openai, headers=headers, timeout=30)
    with call_limits.bounded(client) as found:
        yield found


@pytest.mark.parametrize("fault", ["drip_head", "drip_body"])
@pytest.mark.parametrize(
    "pace",
    [lambda: call_limits.control(0.4), lambda: call_limits.transfer(slow_seconds=0.2, slow_bytes=10_000)],
    ids=["control", "transfer"],
)
def test_an_answer_that_drips_in_for_ever_is_given_up(
    emulator: Emulator, client: httpx2.Client, fault: str, pace: Callable[[], Any]
) -> None:
    """Each byte comes in time: no time-out for silence ever ends it."""
    emulator.script({"do": fault, "pause": 0.02, "match": {"verb": "models"}})
    with pytest.raises(httpx2.ReadTimeout), pace():
        client.get("models")
    assert client.get("models").status_code == 200, "and the next call is as any other"


class Clock:
    """The clock of `calls`. Each read of the stream takes a while by it, and brings a byte."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now, self.seconds = 1000.0, seconds
        monkeypatch.setattr(call_limits.time, "monotonic", lambda: self.now)
        self.stream = call_limits._Stream(cast("httpcore2.NetworkStream", self))

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.now += self.seconds
        return b"x"

    def reads(self, pace: AbstractContextManager[None], times: int) -> bytes:
        with pace:
            return b"".join(self.stream.read(100, timeout=30.0) for _ in range(times))


PACES = [lambda: call_limits.control(60.0), lambda: call_limits.transfer(60.0, 10)]


@pytest.mark.parametrize("pace", PACES, ids=["control", "transfer"])
def test_what_came_while_the_machine_slept_is_read(
    monkeypatch: pytest.MonkeyPatch, pace: Callable[[], AbstractContextManager[None]]
) -> None:
    """The process stood still in a read, or between two: no time of it was the provider's."""
    clock = Clock(monkeypatch, 0.1)
    with pace():
        assert clock.stream.read(100, timeout=30.0)
        clock.now += 36_000
        assert clock.stream.read(100, timeout=30.0)
        clock.seconds = 36_000
        assert clock.stream.read(100, timeout=30.0)
        clock.seconds = 0.1
        assert clock.stream.read(100, timeout=30.0)


@pytest.mark.parametrize("pace", PACES, ids=["control", "transfer"])
def test_the_time_that_reads_wait_has_an_end(
    monkeypatch: pytest.MonkeyPatch, pace: Callable[[], AbstractContextManager[None]]
) -> None:
    clock = Clock(monkeypatch, 10.0)
    assert clock.reads(pace(), 6) == b"xxxxxx"
    with pytest.raises(httpcore2.ReadTimeout):
        clock.reads(pace(), 9)


def test_a_transfer_goes_on_as_long_as_its_bytes_flow(emulator: Emulator, client: httpx2.Client) -> None:
    content = jsonl([row(f"r{number}", "word " * 200) for number in range(200)])
    made = client.post("files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)}).json()
    with call_limits.transfer(slow_seconds=0.0, slow_bytes=1):
        assert client.get(f"files/{made['id']}/content").content == content


@pytest.fixture
def backend(emulator: Emulator, tmp_path: Path) -> Iterator[ApiBatches]:
    emulator.reset()
    settings = OpenAIBackend(kind="openai", base_url=emulator.url_openai, profile="openai", api_key_env="KEY")
    found = open_backend("cloud", settings, {"KEY": KEY})
    assert isinstance(found, ApiBatches)
    yield found
    found.close()


def order(backend: ApiBatches, folder: Path) -> BatchOrder:
    path = folder / "in.jsonl"
    path.write_bytes(jsonl([row("a")]))
    return BatchOrder(SHARD, backend.upload(path, f"{SHARD}.jsonl"), CHAT, 86_400, 1)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("to", ["itself", "nowhere"])
def test_a_create_that_is_redirected_is_not_sent_a_second_time(
    emulator: Emulator, backend: ApiBatches, tmp_path: Path, status: int, to: str
) -> None:
    wanted = order(backend, tmp_path)
    emulator.script({"do": "redirect", "status": status, "to": to, "match": {"verb": "create"}})
    with pytest.raises(Uncertain, match="redirects the call"):
        backend.create(wanted)
    assert sum(emulator.calls("create").values()) == 1


def test_what_only_reads_follows_a_redirect(emulator: Emulator, backend: ApiBatches, tmp_path: Path) -> None:
    batch = backend.create(order(backend, tmp_path))
    emulator.script({"do": "redirect", "match": {"verb": "retrieve"}})
    found = backend.retrieve(batch.id)
    assert found is not None
    assert found.id == batch.id
    emulator.script({"do": "redirect", "to": "nowhere", "match": {"verb": "retrieve"}})
    with pytest.raises(NotSent):
        backend.retrieve(batch.id)


def test_no_key_goes_along_to_another_host() -> None:
    """A bearer's header stays behind by itself; Anthropic's has a name of its own."""
    with scripted(lambda _: Answer({})) as elsewhere:
        there = elsewhere.base_url.replace("127.0.0.1", "localhost")
        answer = Answer(b"", 307, {"Location": f"{there}/taken"})

        def away(asked: Asked) -> Answer:
            return answer

        with scripted(away) as provider:
            claude = open_backend(
                "claude",
                AnthropicBackend(kind="anthropic", base_url=provider.base_url, api_key_env="KEY"),
                {"KEY": KEY},
            )
            cloud = open_backend(
                "cloud",
                OpenAIBackend(kind="openai", base_url=provider.base_url, api_key_env="KEY"),
                {"KEY": KEY},
            )
            for api in (claude, cloud):
                with pytest.raises(BackendError):
                    api.retrieve("batch_1")
                api.close()
        assert all(KEY not in str(asked.headers) for asked in elsewhere.asked)
        assert [asked.path for asked in elsewhere.asked] == ["/v1/taken"], "a reading call of the other one"
