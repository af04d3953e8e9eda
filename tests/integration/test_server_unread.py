"""Answers that wait for room in memory hold up their own tenant, and no other."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.in_process import ServerThread
from orchestrator.server.keys import KeyLimits, Keys
from orchestrator.server.settings import Settings
from tests.support.batchapi import Sdk, create, ended, retrieve, row, run_batch, sdk_at
from tests.support.canned import MODELS
from tests.support.process import wait_until

MB = 1024 * 1024
SLOTS = 4
MEMORY = 16 * MB
LONG = 7 * MB


class Withholding:
    """An upstream that begins every answer, and withholds the rest of long ones until `release`.

    A request's prompt says the length of its answer. `begun` are the users whose long answers have begun.
    """

    def __init__(self, *, chunked: bool) -> None:
        self.begun: Counter[str] = Counter()
        self.chunked = chunked
        self.release = threading.Event()
        self.base_url = ""


@contextmanager
def withholding(*, chunked: bool) -> Iterator[Withholding]:
    upstream = Withholding(chunked=chunked)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_GET(self) -> None:
            is_models = self.path == "/v1/models"
            self._head(200 if is_models else 404, len(MODELS))
            self.wfile.write(MODELS)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            size = int(body["messages"][0]["content"].split()[0])
            message = {"role": "assistant", "content": "x" * size}
            answer = json.dumps({"object": "chat.completion", "choices": [{"index": 0, "message": message}]}).encode()
            is_long = size > MB
            self._head(200, None if upstream.chunked else len(answer))
            first = answer[: 2 * MB] if is_long else answer
            self._piece(first)
            self.wfile.flush()
            if is_long:
                upstream.begun[body["user"]] += 1
                upstream.release.wait()
                self._piece(answer[2 * MB :])
            if upstream.chunked:
                self.wfile.write(b"0\r\n\r\n")

        def _head(self, status: int, length: int | None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if length is None:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Content-Length", str(length))
            self.end_headers()

        def _piece(self, content: bytes) -> None:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content) if upstream.chunked else content)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        upstream.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield upstream
        finally:
            upstream.release.set()
            server.shutdown()


def rows(tenant: str, number: int, answer: int, size: int = 0) -> list[dict[str, Any]]:
    return [row(f"{tenant}-{n}", f"{answer} " + "x" * size, user=tenant) for n in range(number)]


def ids(tenant: str, number: int) -> list[str]:
    return [f"{tenant}-{n}" for n in range(number)]


@pytest.mark.long
@pytest.mark.thinned(6)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize(
    ("heavy", "answer", "size"),
    [(1, 10, 0), (1, 300_000, 20_000), (2, 300_000, 20_000)],
    ids=["small", "middling", "middling beside two"],
)
def test_another_tenants_rows_are_done_while_long_answers_wait_for_room(
    tmp_path: Path, chunked: bool, heavy: int, answer: int, size: int
) -> None:
    with ExitStack() as stack:
        upstream = stack.enter_context(withholding(chunked=chunked))
        settings = Settings(
            upstreams=(upstream.base_url,), require_keys=True, max_concurrency=SLOTS, body_memory=MEMORY
        )
        server = stack.enter_context(ServerThread(tmp_path, settings))
        database = ServerDatabase(tmp_path / FILE_NAME)
        stack.callback(database.close)

        def tenant(name: str) -> Sdk:
            _, secret = Keys(database).add(name, KeyLimits())
            return stack.enter_context(sdk_at(server.socket, api_key=secret))

        batches = []
        for name in ids("heavy", heavy):
            sdk = tenant(name)
            batches.append((name, sdk, create(sdk, rows(name, SLOTS + 2, LONG)).id))
            # The first of them has all the room, and keeps one slot.
            wait_until(lambda name=name: upstream.begun[name] >= SLOTS - 1)
        light = tenant("light")
        ended(light, create(light, rows("light", 10, answer, size)).id).check(ids("light", 10))
        assert upstream.begun.total() <= heavy * SLOTS, "a tenant got more rows while its answers wait for room"
        assert [retrieve(sdk, batch).request_counts.completed for _, sdk, batch in batches] == [0] * heavy
        upstream.release.set()
        for name, sdk, batch in batches:
            ended(sdk, batch).check(ids(name, SLOTS + 2))


def test_the_bodies_of_sent_rows_leave_room_for_their_answers(tmp_path: Path) -> None:
    # All bodies together would fill the room of small ones, in which each answer needs a place.
    with withholding(chunked=True) as upstream:
        settings = Settings(upstreams=(upstream.base_url,), max_concurrency=64, body_memory=MEMORY // 4)
        with ServerThread(tmp_path, settings) as server, sdk_at(server.socket) as sdk:
            upstream.release.set()
            run_batch(sdk, rows("r", 100, 100_000, 60_000)).check(ids("r", 100))
