"""Strangers at the door, on real sockets: whatever they leave half done, whoever has a key is served."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from orchestrator.core.client_limits import ClientTimeouts
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.keys import KeyLimits, Keys
from orchestrator.server.settings import Settings
from tests.contract.conftest import over_tcp
from tests.support.batchapi import CHAT, Sdk, create, jsonl, row, sdk_at
from tests.support.process import Upstream, upstreams, wait_until
from tests.support.scripted import Answer, Asked, Scripted, scripted

MOST = 24
HASTY = ClientTimeouts(head=0.4, body=0.6, answer=0.8, least_rate=2000.0)
STEADY = ClientTimeouts(head=2.0, body=2.0, answer=2.0, least_rate=200.0)
"""For who moves all the time: with more of it, as a machine that is busy moves nothing for a while."""
SECONDS = 30.0
"""How long a test waits for what it says will happen."""


@dataclass(frozen=True)
class Door:
    """A server that asks for keys, one of them, and what strangers do to it."""

    url: str
    folder: Path
    secret: str

    def connection(self, sent: bytes = b"") -> socket.socket:
        parts = urlsplit(self.url)
        opened = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=SECONDS)
        opened.sendall(sent)
        return opened

    @contextmanager
    def sdk(self) -> Iterator[Sdk]:
        with sdk_at(self.url, api_key=self.secret) as sdk:
            sdk.client.max_retries = 0
            sdk.raw.headers["authorization"] = f"Bearer {self.secret}"
            yield sdk

    def head(self, first: str, *headers: str, key: bool = True) -> bytes:
        own = [f"Authorization: Bearer {self.secret}"] if key else []
        return "\r\n".join([f"{first} HTTP/1.1", "Host: x", *own, *headers, "", ""]).encode()

    def closed(self, reason: str) -> int:
        """How many connections the server has given up for a reason."""
        with self.sdk() as sdk:
            page = sdk.raw.get("/metrics").text
        found = re.search(rf'^orch_connections_closed_total{{reason="{reason}"}} (\S+)$', page, re.MULTILINE)
        return int(float(found[1])) if found else 0

    def serves(self) -> bool:
        """Whether who has a key is served, on a new connection."""
        with self.sdk() as sdk:
            return bool(sdk.raw.get("/v1/models").status_code == 200)


@contextmanager
def opened(folder: Path, upstream: Upstream | Scripted, **more: Any) -> Iterator[Door]:
    folder.mkdir(parents=True, exist_ok=True)
    database = ServerDatabase(folder / FILE_NAME)
    _, secret = Keys(database).add("tenant")
    database.close()
    limits = {"max_connections": MOST, "patience": HASTY, "require_keys": True, "max_calls": 6, **more}
    with over_tcp(folder, Settings(upstreams=(upstream.base_url,), **limits)) as url:
        door = Door(url, folder, secret)
        wait_until(lambda: door.serves() and ready(door))
        yield door


def ready(door: Door) -> bool:
    with door.sdk() as sdk:
        return bool(sdk.raw.get("/ready").status_code == 200)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with upstreams(tmp_path_factory.mktemp("up")) as make:
        yield make(model="test-model")


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Door]:
    with opened(tmp_path_factory.mktemp("door"), upstream) as found:
        yield found


def rest_of(connection: socket.socket) -> bytes:
    """All that comes until the other side ends the connection. TimeoutError where it does not."""
    parts = []
    with suppress(ConnectionError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def answered(connection: socket.socket) -> int:
    """Read one whole answer, in however many pieces it comes, and return its status."""
    with HTTPResponse(connection) as answer:
        answer.begin()
        answer.read()
        return answer.status


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])


@contextmanager
def trickling(connection: socket.socket, pieces: Callable[[], bytes], pause: float) -> Iterator[None]:
    """Send a piece each `pause` seconds while the block lasts, or until the other side has had enough."""
    over = threading.Event()

    def send() -> None:
        with suppress(OSError):
            while not over.wait(pause):
                connection.sendall(pieces())

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


HALVES = {
    "nothing": b"",
    "half a line": b"GET /v1/mo",
    "half a head": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthoriz",
    "a head without its end": b"GET /v1/models HTTP/1.1\r\nHost: x\r\n",
}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_a_head_that_does_not_come_ends_its_connection(door: Door, half: bytes) -> None:
    before = door.closed("head")
    with closing(door.connection(half)) as connection:
        assert rest_of(connection) == b""
    assert door.closed("head") > before


def test_a_head_that_trickles_has_no_more_time(door: Door) -> None:
    connection = door.connection(b"GET /v1/models HTTP/1.1\r\n")
    with closing(connection), trickling(connection, lambda: b"X-More: and more\r\n", 0.02):
        assert rest_of(connection) == b""


def test_half_a_head_behind_a_good_request_has_no_more_time(door: Door) -> None:
    with closing(door.connection(door.head("GET /v1/models"))) as connection:
        assert answered(connection) == 200
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost")
        assert b"HTTP/1.1" not in rest_of(connection)


def test_what_is_still_sent_behind_a_refusal_has_no_more_time(door: Door) -> None:
    """A body without end that nobody reads: the answer is there, the connection goes."""
    connection = door.connection(door.head("POST /v1/files", "Content-Length: 1000000000", key=False))
    with closing(connection), trickling(connection, lambda: b"x" * 1000, 0.02):
        assert status_of(rest_of(connection)) == 401


def test_idle_strangers_shut_nobody_out(door: Door) -> None:
    """Not those who were there before, and none who comes."""
    with ExitStack() as stack:
        mine = stack.enter_context(closing(door.connection(door.head("GET /v1/models"))))
        assert answered(mine) == 200
        crowd = [stack.enter_context(closing(door.connection())) for _ in range(5 * MOST)]
        assert door.serves()
        mine.sendall(door.head("GET /v1/models"))
        assert answered(mine) == 200
        # Those that waited longest made room for those behind them.
        assert rest_of(crowd[0]) == b""
        assert door.closed("replaced") > MOST


def test_strangers_that_were_answered_shut_nobody_out(door: Door) -> None:
    with ExitStack() as stack:
        for _ in range(3 * MOST):
            stranger = stack.enter_context(closing(door.connection(door.head("GET /v1/models", key=False))))
            assert answered(stranger) == 401
        assert door.serves()


def test_where_no_keys_are_asked_for_idle_clients_shut_nobody_out(tmp_path: Path, upstream: Upstream) -> None:
    patience = ClientTimeouts(head=60.0, body=60.0)
    with opened(tmp_path, upstream, require_keys=False, patience=patience) as door, ExitStack() as stack:
        for sent in (b"", b"GET /v1", door.head("POST /v1/files", "Content-Length: 5000") + b"x"):
            for _ in range(2 * MOST):
                stack.enter_context(closing(door.connection(sent)))
            assert door.serves()


def test_connections_with_a_key_that_have_no_request_make_room_for_one_that_has(
    tmp_path: Path, upstream: Upstream
) -> None:
    with opened(tmp_path, upstream, patience=ClientTimeouts(head=60.0)) as door, ExitStack() as stack:
        for _ in range(3 * MOST):
            mine = stack.enter_context(closing(door.connection(door.head("GET /v1/models"))))
            assert answered(mine) == 200
        assert door.serves()


def form(content: bytes, length: int | None = None) -> tuple[list[str], bytes]:
    """Headers and body of an upload; `length` is the one that is announced."""
    body = (
        b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n' + content + b"\r\n--B--\r\n"
    )
    size = len(body) if length is None else length
    return ["Content-Type: multipart/form-data; boundary=B", f"Content-Length: {size}"], body


REQUESTS = {
    "an upload": ("POST /v1/files", form(b"x", 5000)),
    "a batch": ("POST /v1/batches", (["Content-Length: 5000"], b'{"input_file_id":')),
    "a chat": (f"POST {CHAT}", (["Content-Length: 5000"], b'{"model":')),
    "a chat in chunks": (f"POST {CHAT}", (["Transfer-Encoding: chunked"], b"5\r\n12345\r\n")),
}


@pytest.mark.parametrize(("first", "more"), REQUESTS.values(), ids=REQUESTS)
def test_a_body_that_does_not_come_is_refused(door: Door, first: str, more: tuple[list[str], bytes]) -> None:
    before = sorted((door.folder / "files").iterdir())
    headers, body = more
    with closing(door.connection(door.head(first, *headers) + body)) as connection:
        answer = rest_of(connection)
    assert status_of(answer) == 408
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert sorted((door.folder / "files").iterdir()) == before
    wait_until(lambda: held_bytes(door) == 0)


def held_bytes(door: Door) -> float:
    with door.sdk() as sdk:
        found = re.search(r"^orch_body_bytes (\S+)$", sdk.raw.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("length", [0, 3, 5000])
def test_a_request_with_two_lengths_ends_its_connection(door: Door, length: int) -> None:
    """What follows it may be what a proxy took for a part of its body."""
    headers = ["Transfer-Encoding: chunked", f"Content-Length: {length}"]
    follows = door.head("GET /v1/models")
    with closing(door.connection(door.head("POST /v1/batches", *headers) + b"0\r\n\r\n" + follows)) as connection:
        answer = rest_of(connection)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()


@pytest.mark.slow
@pytest.mark.parametrize("digits", [20, 5000])
def test_a_length_beyond_every_number_is_refused(door: Door, digits: int) -> None:
    """Python reads no integer of more than 4,300 digits."""
    head = door.head("POST /v1/files", f"Content-Length: {'9' * digits}")
    with closing(door.connection(head + b"x")) as connection:
        assert status_of(rest_of(connection)) in (400, 408, 413)
    with door.sdk() as sdk:
        assert sdk.raw.get("/v1/models").status_code == 200


def test_a_body_that_trickles_is_refused(door: Door) -> None:
    headers, body = form(b"x", 50_000)
    connection = door.connection(door.head("POST /v1/files", *headers) + body[:150])
    with closing(connection), trickling(connection, lambda: b"x", 0.02):
        assert status_of(rest_of(connection)) == 408


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Door]:
    with opened(tmp_path_factory.mktemp("steady"), upstream, patience=STEADY) as found:
        yield found


@pytest.mark.slow
def test_a_body_that_is_slow_but_steady_is_taken(steady: Door) -> None:
    """It takes longer than any one wait may, at more than the least rate."""
    content = jsonl([row(f"r{number}", "x" * 500) for number in range(20)])
    headers, body = form(content)
    pieces = [body[start : start + 250] for start in range(0, len(body), 250)]
    with closing(steady.connection(steady.head("POST /v1/files", "Connection: close", *headers))) as connection:
        pause = threading.Event()
        for piece in pieces:
            connection.sendall(piece)
            pause.wait(1.3 * STEADY.body / len(pieces))
        answer = rest_of(connection)
    assert status_of(answer) == 200
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["bytes"] == len(content)


LARGE = 40 * 1024 * 1024
"""Bytes that no socket's buffers hold."""


def uploaded(door: Door) -> str:
    """The id of a new file of so many bytes."""
    with door.sdk() as sdk:
        return str(sdk(lambda api: api.files.create(file=("a.jsonl", b"x" * LARGE), purpose="batch")).id)


@pytest.fixture(scope="module")
def large(door: Door) -> str:
    return uploaded(door)


def narrow(door: Door, request: bytes) -> socket.socket:
    """A connection of a client that can hold little of an answer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(SECONDS)
    parts = urlsplit(door.url)
    connection.connect((parts.hostname, parts.port))
    connection.sendall(request)
    return connection


@pytest.mark.slow
def test_a_download_that_is_not_read_ends(door: Door, large: str) -> None:
    before = door.closed("answer")
    with closing(narrow(door, door.head(f"GET /v1/files/{large}/content"))) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: door.closed("answer") == before + 1)
    # The file it read is closed, and its place among the calls is free.
    for _ in range(12):
        assert door.serves()


@pytest.mark.long
def test_a_download_that_is_read_slowly_but_steadily_goes_on(steady: Door) -> None:
    file_id, got = uploaded(steady), 0
    with closing(narrow(steady, steady.head(f"GET /v1/files/{file_id}/content"))) as connection:
        pause = threading.Event()
        for _ in range(40):
            got += len(connection.recv(50_000))
            pause.wait(1.3 * STEADY.answer / 40)
        while got < LARGE:
            part = connection.recv(1_000_000)
            assert part, "it was cut off"
            got += len(part)
    assert steady.closed("answer") == 0


def test_an_answer_that_is_not_read_is_not_waited_for_behind_its_end(door: Door, large: str) -> None:
    """The server is through with it, and its bytes lie where the client does not take them."""
    before = door.closed("answer")
    request = door.head(f"GET /v1/files/{large}/content", "Range: bytes=0-3000000", "Connection: close")
    with closing(narrow(door, request)):
        wait_until(lambda: door.closed("answer") == before + 1)


@pytest.mark.slow
def test_a_synchronous_answer_that_is_not_read_ends(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Answer:
        return Answer(b"x" * 30_000_000) if asked.method == "POST" else Answer({"data": [{"id": "m"}]})

    with scripted(answer) as upstream, opened(tmp_path, upstream) as door:
        request = door.head(f"POST {CHAT}", "Content-Length: 2") + b"{}"
        with closing(narrow(door, request)) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
            wait_until(lambda: door.closed("answer") == 1)
        assert len(upstream.posts(CHAT)) == 1
        for _ in range(12):
            assert door.serves()


def test_events_that_are_not_read_keep_nobody_out(door: Door) -> None:
    with door.sdk() as sdk:
        batch = create(sdk, [row("a", "[[fault:slow:3000]]")])
    with ExitStack() as stack:
        for _ in range(6):
            connection = stack.enter_context(
                closing(door.connection(door.head(f"GET /v1/batches/{batch.id}/events")))
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        # The key has as many calls under way as it may have; others' are not touched.
        with door.sdk() as sdk:
            error = sdk.refused(lambda api: api.models.list())
            assert (error.status_code, error.code) == (429, "rate_limit_exceeded")
            assert 0 < int(error.response.headers["retry-after"]) <= 120
        database = ServerDatabase(door.folder / FILE_NAME)
        _, other = Keys(database).add("other")
        _, few = Keys(database).add("few", KeyLimits(max_calls=1))
        database.close()
        with sdk_at(door.url, api_key=other) as sdk:
            assert sdk(lambda api: api.models.list()).data
        with sdk_at(door.url, api_key=few) as sdk:
            assert sdk(lambda api: api.models.list()).data
    wait_until(door.serves)


def test_a_key_that_is_refused_one_call_more_keeps_its_connection(tmp_path: Path, upstream: Upstream) -> None:
    with opened(tmp_path, upstream, max_calls=1) as door, door.sdk() as sdk:
        batch = create(sdk, [row("a", "[[fault:slow:5000]]")])
        with closing(door.connection(door.head(f"GET /v1/batches/{batch.id}/events"))) as events:
            assert events.recv(100).startswith(b"HTTP/1.1 200 ")
            with closing(door.connection(door.head("GET /v1/models"))) as mine:
                assert answered(mine) == 429
                events.close()

                def served() -> bool:
                    mine.sendall(door.head("GET /v1/models"))
                    return answered(mine) == 200

                wait_until(served)


def test_connections_are_counted(door: Door) -> None:
    with door.sdk() as sdk, closing(door.connection(door.head("GET /health", key=False))) as stranger:
        assert answered(stranger) == 200
        assert sdk.raw.get("/v1/models").status_code == 200
        page = sdk.raw.get("/metrics").text
        for kind in ("known", "stranger"):
            found = re.search(rf'^orch_connections{{kind="{kind}"}} (\S+)$', page, re.MULTILINE)
            assert found is not None
            assert float(found[1]) >= 1
