"""The connections of the server's client: when one is used again, when it must not be, and what ends one."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from orchestrator.server.dispatch import http1
from orchestrator.server.dispatch.http1 import ConnectionCutError, ConnectionPool, NotConnectedError, NotHTTPError
from orchestrator.server.dispatch.payload import Payload
from orchestrator.server.memory_limits import Room, RoomShare

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as made:
        yield made


class Desk:
    """A server that answers each request by the next of its answers; an empty one closes the connection instead."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0)
                if not answer:
                    return
                writer.write(answer)
                await writer.drain()
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.ended.set()


def made(port: int, **options: Any) -> ConnectionPool:
    terms = {"timeout": 5.0, "connect_timeout": 1.0, "max_body": 1_000_000, **options}
    return ConnectionPool(f"http://127.0.0.1:{port}", {"authorization": "Bearer k"}, **terms)


def with_desk(
    runner: asyncio.Runner, answers: Sequence[bytes], use: Callable[[ConnectionPool, Desk], Any], **options: Any
) -> Desk:
    async def run() -> Desk:
        desk = Desk(answers)
        server = await asyncio.start_server(desk.serve, "127.0.0.1", 0)
        pool = made(server.sockets[0].getsockname()[1], **options)
        try:
            await use(pool, desk)
        finally:
            await pool.close()
            server.close()
            await server.wait_closed()
        return desk

    return runner.run(run())


async def three_in_turn(pool: ConnectionPool, desk: Desk) -> None:
    for number in range(3):
        answer = await pool.post("/v1/x", b"%d" % number)
        assert (answer.status, answer.body) == (200, b"{}")


def test_a_connection_is_used_again(runner: asyncio.Runner) -> None:
    desk = with_desk(runner, [ANSWER] * 3, three_in_turn)
    assert desk.connections == 1
    assert [request[-1:] for request in desk.requests] == [b"0", b"1", b"2"]


def test_what_is_sent(runner: asyncio.Runner) -> None:
    desk = with_desk(runner, [ANSWER] * 3, three_in_turn)
    line, *headers = desk.requests[0].partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert line == b"POST /v1/x HTTP/1.1"
    names = dict(header.split(b": ", 1) for header in headers)
    assert names.pop(b"host").startswith(b"127.0.0.1:")
    assert names == {b"content-type": b"application/json", b"authorization": b"Bearer k", b"content-length": b"1"}


def test_a_page_is_got_over_a_kept_connection(runner: asyncio.Runner) -> None:
    async def three_pages(pool: ConnectionPool, desk: Desk) -> None:
        for _ in range(3):
            answer = await pool.get("/v1/models?a=b")
            assert (answer.status, answer.body) == (200, b"{}")

    desk = with_desk(runner, [ANSWER] * 3, three_pages)
    assert desk.connections == 1
    line, *headers = desk.requests[0].partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert line == b"GET /v1/models?a=b HTTP/1.1"
    assert {header.partition(b":")[0] for header in headers} == {b"host", b"content-type", b"authorization"}


def test_a_page_is_asked_for_again_where_a_kept_connection_ends_and_a_row_is_not(runner: asyncio.Runner) -> None:
    async def across_an_end(pool: ConnectionPool, desk: Desk) -> None:
        await pool.get("/health")
        assert (await pool.get("/health")).body == b"{}"
        with pytest.raises(ConnectionCutError):
            await pool.post("/v1/x", b"1")

    desk = with_desk(runner, [ANSWER, b"", ANSWER, b""], across_an_end)
    assert [request.partition(b" ")[0] for request in desk.requests] == [b"GET", b"GET", b"GET", b"POST"]
    assert desk.connections == 2


def test_a_page_that_no_connection_gives_is_not_asked_for_without_end(runner: asyncio.Runner) -> None:
    async def cut(pool: ConnectionPool, desk: Desk) -> None:
        with pytest.raises(ConnectionCutError):
            await pool.get("/health")

    assert with_desk(runner, [b"", ANSWER], cut).connections == 1


ENDINGS = {
    "it says that it closes": b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    "more than was asked for": ANSWER + ANSWER,
    "more than an answer": ANSWER + b"?",
}


@pytest.mark.parametrize("answer", ENDINGS.values(), ids=ENDINGS)
def test_a_connection_is_not_used_again_where(runner: asyncio.Runner, answer: bytes) -> None:
    desk = with_desk(runner, [answer] * 3, three_in_turn)
    assert desk.connections == 3


def test_one_that_the_server_closes_is_told_and_not_used_again(runner: asyncio.Runner) -> None:
    """What was sent into a closing connection may have been read, so it is not sent again by itself."""

    async def use(pool: ConnectionPool, desk: Desk) -> None:
        await pool.post("/v1/x", b"")
        with pytest.raises(ConnectionCutError):
            await pool.post("/v1/x", b"")
        assert (await pool.post("/v1/x", b"")).status == 200

    assert with_desk(runner, [ANSWER, b"", ANSWER], use).connections == 2


PACKED_OTHERWISE = b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nab"


def test_one_whose_answer_cannot_be_read_is_closed(runner: asyncio.Runner) -> None:
    async def use(pool: ConnectionPool, desk: Desk) -> None:
        with pytest.raises(NotHTTPError):
            await pool.post("/v1/x", b"1")
        await asyncio.wait_for(desk.ended.wait(), 10)  # while the pool is still open

    assert with_desk(runner, [PACKED_OTHERWISE], use).connections == 1


def test_one_that_idled_for_long_is_not_used_again(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "IDLE_SECONDS", 0.0)
    assert with_desk(runner, [ANSWER] * 3, three_in_turn).connections == 3


def test_many_at_once_have_a_connection_each(runner: asyncio.Runner) -> None:
    async def use(pool: ConnectionPool, desk: Desk) -> None:
        for _ in range(2):
            answers = await asyncio.gather(*(pool.post("/v1/x", b"%d" % number) for number in range(20)))
            assert {answer.status for answer in answers} == {200}

    assert with_desk(runner, [ANSWER] * 40, use).connections == 20


def test_a_long_body_arrives_whole_and_one_answered_early_is_answered(runner: asyncio.Runner) -> None:
    body = bytes(range(256)) * 40_000

    async def use(pool: ConnectionPool, desk: Desk) -> None:
        assert (await pool.post("/v1/x", body)).status == 200

    assert with_desk(runner, [ANSWER], use).requests[0].endswith(b"\r\n\r\n" + body)


def test_who_stops_waiting_ends_the_request(runner: asyncio.Runner) -> None:
    async def use(pool: ConnectionPool, desk: Desk) -> None:
        task = asyncio.create_task(pool.post("/v1/x", b""))
        while not desk.requests:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await desk.ended.wait()
        desk.answers.append(ANSWER)
        assert (await pool.post("/v1/x", b"")).status == 200

    slow = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{"
    assert with_desk(runner, [slow], use).connections == 2


def test_closing_ends_what_is_out(runner: asyncio.Runner) -> None:
    async def use(pool: ConnectionPool, desk: Desk) -> None:
        task = asyncio.create_task(pool.post("/v1/x", b""))
        while not desk.requests:
            await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(ConnectionCutError):
            await task

    with_desk(runner, [b"HTTP/1.1 200 OK\r\n"], use)


@pytest.mark.parametrize("path", ["/v1/a b", "/v1/\r\nx: y", "/v1/é", "/v1/\x00"])
def test_a_path_that_http_cannot_carry_is_not_sent(runner: asyncio.Runner, path: str) -> None:
    async def use(pool: ConnectionPool, desk: Desk) -> None:
        with pytest.raises(NotConnectedError):
            await pool.post(path, b"")

    assert with_desk(runner, [ANSWER], use).requests == []


def test_a_name_with_several_addresses_is_tried_at_each(runner: asyncio.Runner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(ANSWER)

        thread = threading.Thread(target=answer)
        thread.start()
        port = listener.getsockname()[1]

        async def use() -> int:
            pool = ConnectionPool(f"http://localhost:{port}", {}, timeout=5.0, connect_timeout=5.0, max_body=100)
            pool._addresses, pool._addresses_until = ["127.0.0.9", "127.0.0.1"], float("inf")
            try:
                return (await pool.post("/", b"")).status
            finally:
                await pool.close()

        assert runner.run(use()) == 200
        thread.join()


# --- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with: apt-get install openssl")
    return cert, key


@contextmanager
def tls_desk(certificate: tuple[Path, Path]) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    raw, _ = listener.accept()
                except OSError:
                    return
                try:
                    with context.wrap_socket(raw, server_side=True) as connection:
                        for _ in range(2):
                            connection.recv(65_536)
                            connection.sendall(ANSWER)
                except OSError:
                    raw.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def tls_posts(runner: asyncio.Runner, url: str) -> list[int]:
    async def use() -> list[int]:
        pool = ConnectionPool(url, {}, timeout=5.0, connect_timeout=5.0, max_body=100)
        try:
            return [(await pool.post("/", b"{}")).status for _ in range(2)]
        finally:
            await pool.close()

    return runner.run(use())


@pytest.mark.long
def test_https(runner: asyncio.Runner, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with tls_desk(certificate) as port:
        with pytest.raises(NotConnectedError, match=r"TLS|certificate"):
            tls_posts(runner, f"https://localhost:{port}")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert tls_posts(runner, f"https://localhost:{port}") == [200, 200]
        with pytest.raises(NotConnectedError):
            tls_posts(runner, f"https://127.0.0.1:{port}")  # the certificate is of another name


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
def test_a_long_answer_is_read_once_there_is_room_for_it(runner: asyncio.Runner, chunked: bool, leaves: bool) -> None:
    body = b"x" * 3_000_000
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 3000000"
    answer = b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % length
    answer += b"2dc6c0\r\n%b\r\n0\r\n\r\n" % body if chunked else body
    sent: list[int] = []
    room = Room(8_000_000)

    class Counted(Payload):
        def sent(self) -> None:
            sent.append(1)

        def ask(self, size: int) -> asyncio.Future[RoomShare]:
            return room.ask("me", size)

    async def use(pool: ConnectionPool, desk: Desk) -> None:
        held = await room.take("other", 8_000_000)
        payload = Counted(b"y" * 1_000_000)
        task = asyncio.create_task(pool.post("/v1/x", payload))
        async with asyncio.timeout(20):
            while not room.is_crowded:
                await asyncio.sleep(0.01)
            await asyncio.sleep(1.5)  # longer than a request may take: what is not read is not late
        assert (task.done(), payload.content) == (False, b"")
        if leaves:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        held.give_back()
        if not leaves:
            got = await task
            assert got.body == body
            assert got.place is not None
            assert room.taken == len(body)
            got.place.give_back()
        assert (room.taken, room.is_crowded) == (0, False)

    with_desk(runner, [answer], use, timeout=1.0, max_body=4_000_000)
    assert sent == [1]
