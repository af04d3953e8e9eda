"""Every way in which a request can end, as the server's client tells them apart, each from a real socket."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, TypeVar

import pytest
import uvloop

from orchestrator.server.dispatch.client import MAX_ANSWER_BYTES, MAX_RETRY_AFTER, Client, Reply
from orchestrator.server.dispatch.rate_limiter import AnnouncedRate, Standings
from orchestrator.server.dispatch.retry import End

Behaviour = Callable[[socket.socket], None]
Result = TypeVar("Result")


@contextmanager
def listening(behave: Behaviour) -> Iterator[str]:
    """A server that reads a request and then behaves so; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    behave(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def on_loop(work: Callable[[], Coroutine[Any, Any, Result]], loop: str = "uvloop") -> Result:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(work())


def post(url: str, timeout: float = 5.0, loop: str = "uvloop", body: bytes = b"{}", **options: bool) -> Reply:
    async def send() -> Reply:
        client = Client(url, {}, timeout, **options)
        try:
            return await client.post("/v1/chat/completions", body)
        finally:
            await client.close()

    return on_loop(send, loop)


def says(answer: bytes) -> Behaviour:
    def say(connection: socket.socket) -> None:
        with suppress(ConnectionError):  # who has had enough leaves
            connection.sendall(answer)

    return say


def http(body: bytes, status: bytes = b"200 OK", *headers: bytes) -> bytes:
    lines = (b"HTTP/1.1 " + status, b"content-length: %d" % len(body), *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def closes(connection: socket.socket) -> None:
    """Ends the connection in good form."""


def resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def waits(connection: socket.socket) -> None:
    connection.recv(1)  # until the client has had enough


def says_half(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc")
    waits(connection)


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ENDS = {
    "an answer": (says(http(b'{"a":1}')), End.ANSWERED, 200),
    "an error": (says(http(b'{"error":{}}', b"500 Oh")), End.ANSWERED, 500),
    "an error that is not JSON": (says(http(b"<html>", b"502 Bad")), End.ANSWERED, 502),
    "a redirect": (says(http(b"", b"302 There", b"location: http://127.0.0.1:1/")), End.ANSWERED, 302),
    "closed": (closes, End.CUT, 0),
    "reset": (resets, End.CUT, 0),
    "shorter than said": (says(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc"), End.CUT, 0),
    "a broken chunk": (says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n"), End.CUT, 0),
    "never answered": (waits, End.TIMED_OUT, 0),
    "half answered": (says_half, End.TIMED_OUT, 0),
    "no HTTP": (says(b"hello\r\n\r\n"), End.GARBLED, 0),
    "a length that is not a number": (says(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"), End.GARBLED, 0),
    "no JSON": (says(http(b"hello")), End.GARBLED, 200),
    "half a JSON": (says(http(b'{"a":')), End.GARBLED, 200),
    "a JSON list": (says(http(b"[1]")), End.GARBLED, 200),
    "no UTF-8": (says(http(b'{"a":"\xff"}')), End.GARBLED, 200),
    "nothing": (says(http(b"")), End.GARBLED, 200),
    "no content": (says(b"HTTP/1.1 204 No Content\r\n\r\n"), End.GARBLED, 204),
    "until it closes": (says(b"HTTP/1.1 200 OK\r\n\r\n{}"), End.ANSWERED, 200),
    "HTTP/1.0": (says(b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}"), End.ANSWERED, 200),
    "chunks": (says(CHUNKED + b"1\r\n{\r\n1;x=y\r\n}\r\n0\r\nx-trailer: 1\r\n\r\n"), End.ANSWERED, 200),
    "chunks without an end": (says(CHUNKED + b"2\r\n{}\r\n"), End.CUT, 0),
    "only a head": (says(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"), End.CUT, 0),
    "half a head": (says(b"HTTP/1.1 200 OK\r\ncontent-le"), End.CUT, 0),
    "continue, then an answer": (says(b"HTTP/1.1 100 Continue\r\n\r\n" + http(b"{}")), End.ANSWERED, 200),
    "hints, then an answer": (says(b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + http(b"{}")), End.ANSWERED, 200),
    "another protocol": (says(b"HTTP/1.1 101 No\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"), End.GARBLED, 0),
    "a head without an end": (says(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000), End.GARBLED, 0),
    "two lengths": (says(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"), End.GARBLED, 0),
    "compressed by another name": (says(http(b"{}", b"200 OK", b"content-encoding: zstd")), End.GARBLED, 0),
    "compressed in name only": (says(http(b"{}", b"200 OK", b"content-encoding: gzip")), End.GARBLED, 0),
    "half of it compressed": (
        says(http(gzip.compress(b"{}")[:-9], b"200 OK", b"content-encoding: gzip")),
        End.CUT,
        0,
    ),
}


def test_a_type_without_end_is_cut() -> None:
    with listening(says(http(b"hello", b"200 OK", b"content-type: " + b"x" * 100_000))) as url:
        reply = post(url)
    assert (reply.end, len(reply.detail) < 200) == (End.GARBLED, True)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("behave", "end", "status"), ENDS.values(), ids=ENDS.keys())
def test_how_a_request_ends(behave: Behaviour, end: End, status: int, loop: str) -> None:
    with listening(behave) as url:
        reply = post(url, timeout=0.3 if end is End.TIMED_OUT else 5.0, loop=loop)
    assert (reply.end, reply.status) == (end, status)
    assert bool(reply.detail) == (end is not End.ANSWERED)


NOBODY = ["http://127.0.0.1:1", "http://[::1]:1", "http://a..b"]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("url", NOBODY)
def test_who_is_not_there_has_not_been_sent_anything(url: str, loop: str) -> None:
    assert post(url, loop=loop).end is End.UNREACHABLE


def test_a_name_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # no test asks a name server
    reply = post("http://nobody.example", loop="asyncio")
    assert (reply.end, reply.detail) == (End.UNREACHABLE, "Name or service not known")


def test_an_upstream_that_takes_no_connection_is_given_up_in_time() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with ExitStack() as full:
            for _ in range(8):  # more than its queue holds: the kernel answers no further one
                waiting = full.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(listener.getsockname())
            reply = post(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.3)
    assert reply.end is End.UNREACHABLE


def too_long(fewer: int = 0) -> bytes:
    return b'{"a":"' + b"x" * (MAX_ANSWER_BYTES - fewer) + b'"}'


# Each is made where it is sent: together they are 300 MB, which every process that collects tests would hold.
LONG: dict[str, tuple[Callable[[], bytes], End]] = {
    "said before": (lambda: http(too_long()), End.TOO_LONG),
    "until it closes": (lambda: b"HTTP/1.1 200 OK\r\n\r\n" + too_long(), End.TOO_LONG),
    "an error": (lambda: http(too_long(), b"500 Oh"), End.TOO_LONG),
    "compressed to little": (
        lambda: http(gzip.compress(too_long(), 1), b"200 OK", b"content-encoding: gzip"), End.TOO_LONG,
    ),
    "just as long as it may be": (lambda: http(too_long(fewer=8)), End.ANSWERED),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("answer", "end"), LONG.values(), ids=LONG)
def test_an_answer_above_the_limit_is_given_up(answer: Callable[[], bytes], end: End) -> None:
    with listening(says(answer())) as url:
        reply = post(url, timeout=60.0)
    assert (reply.end, len(reply.body)) == (end, MAX_ANSWER_BYTES if end is End.ANSWERED else 0)


RETRY_AFTER = {"7": 7.0, "0.5": 0.5, "7200": 120.0, "-1": None, "soon": None, "nan": None}


@pytest.mark.parametrize(("text", "seconds"), RETRY_AFTER.items())
def test_retry_after(text: str, seconds: float | None) -> None:
    with listening(says(http(b"{}", b"503 Later", b"retry-after: " + text.encode()))) as url:
        assert post(url).retry_after == seconds


def test_a_compressed_answer_is_read() -> None:
    packed = gzip.compress(b'{"a":1}')
    with listening(says(http(packed, b"200 OK", b"content-encoding: gzip"))) as url:
        assert post(url).body == b'{"a":1}'


def retry_after(*headers: bytes) -> float | None:
    with listening(says(http(b"{}", b"429 Later", *headers))) as url:
        return post(url).retry_after


def test_retry_after_in_milliseconds_goes_first() -> None:
    assert retry_after(b"retry-after: 9", b"retry-after-ms: 250") == 0.25
    assert retry_after(b"retry-after: 9", b"retry-after-ms: soon") == 9.0
    assert retry_after(b"retry-after-ms: 99999999") == MAX_RETRY_AFTER


@pytest.mark.parametrize("zone", [True, False], ids=["GMT", "-0000"])
def test_retry_after_as_a_date(zone: bool) -> None:
    then = datetime.now(UTC) + timedelta(minutes=1)
    text = format_datetime(then, usegmt=True) if zone else format_datetime(then.replace(tzinfo=None))
    found = retry_after(b"retry-after: " + text.encode())
    assert found is not None
    assert 0 < found <= 60
    assert retry_after(b"retry-after: Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


@pytest.mark.parametrize("status", [b"200 OK", b"429 Later"], ids=["taken", "refused"])
def test_what_an_answer_says_of_the_rates(status: bytes) -> None:
    answer = http(b"{}", status, b"X-RateLimit-Limit-Requests: 500", b"x-ratelimit-reset-requests: 120ms")
    with listening(says(answer)) as url:
        assert post(url, reads_rates=True).standings == Standings(AnnouncedRate(500, None, 0.12), AnnouncedRate())
        assert post(url).standings is None
