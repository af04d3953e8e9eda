"""A synchronous OpenAI-compatible server, as vLLM speaks it, fast enough never to be what a test waits for.

    python -m tests.support.upstream --port 0 --slots 256 --latency-ms 0 --log FILE

writes {"port": N} to stdout once it listens. It imports nothing of the package it tests. When stdin is a
pipe, its end is the server's end, so the server never outlives the test that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import stat
import sys
from pathlib import Path

from tests.support.connection import Connection
from tests.support.server import Server, Settings


def _settings(arguments: list[str] | None = None) -> tuple[Settings, str, int]:
    parser = argparse.ArgumentParser(prog="tests.support.upstream")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--slots", type=int, default=256, help="requests at once; the others wait in line")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="how long a request holds its slot")
    parser.add_argument("--piece-ms", type=float, default=0.0, help="the pause before each piece of a stream")
    parser.add_argument("--log", type=Path, help="append one JSON line for each POST received")
    parser.add_argument("--log-bodies", action="store_true", help="the request bodies too")
    parser.add_argument(
        "--max-queued", type=int, help="503 beyond so many in flight, as vLLM's --max-num-queued-reqs"
    )
    parser.add_argument("--api-key", help="asked for on /v1, as vLLM does")
    parser.add_argument("--model", action="append", help="models served; without it, any name is")
    parser.add_argument("--max-model-len", type=int, default=32768)
    parser.add_argument("--cache-blocks", type=int, default=65536, help="prefix cache, blocks of 16 tokens")
    parser.add_argument("--sleeps", choices=["well", "addled"], help="vLLM's sleep endpoints, and what waking does")
    parser.add_argument("--tires-after", type=int, help="requests, behind which each takes three times as long")
    given = parser.parse_args(arguments)
    settings = Settings(
        slots=given.slots,
        seconds=given.latency_ms / 1000,
        piece_seconds=given.piece_ms / 1000,
        log=given.log,
        log_bodies=given.log_bodies,
        max_queued=given.max_queued,
        api_key=given.api_key,
        models=tuple(given.model or ()),
        max_model_len=given.max_model_len,
        cache_blocks=given.cache_blocks,
        sleeps=given.sleeps,
        tires_after=given.tires_after,
    )
    return settings, given.host, given.port


def _read_stdin(over: asyncio.Event) -> None:
    if not os.read(0, 4096):
        over.set()


async def serve(settings: Settings, host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    server = Server(settings)
    listener = await loop.create_server(lambda: Connection(server), host, port, backlog=4096)
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        loop.add_reader(0, _read_stdin, over)
    sys.stdout.write(f'{{"port": {listener.sockets[0].getsockname()[1]}}}\n')
    sys.stdout.flush()
    await over.wait()
    # Hanging requests are part of the script: nothing is awaited and nothing is left to save.
    os._exit(0)


def main() -> None:
    # A test may open more connections than the usual soft limit of 1,024 files.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    settings, host, port = _settings()
    gc.freeze()
    asyncio.run(serve(settings, host, port))


if __name__ == "__main__":
    main()
