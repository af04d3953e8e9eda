"""`python -m tests.emulator --port 0 --folder DIR [OPTION]...` writes {"port": N} when it listens.

When stdin is a pipe, its end is the emulator's end: it never outlives the test that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import socket
import stat
import sys
from pathlib import Path

import uvicorn

from tests.emulator.app import App
from tests.emulator.clock import Clock
from tests.emulator.control import control
from tests.emulator.errors import Refusal
from tests.emulator.wire import Wire
from tests.emulator.world import World

BACKLOG = 2048
KEEP_ALIVE_SECONDS = 120


def _read_stdin() -> None:
    if not os.read(0, 4096):
        # Hanging calls are part of the script: nothing is awaited, and nothing is left to save.
        os._exit(0)


def config_of(world: World) -> uvicorn.Config:
    return uvicorn.Config(
        App(world),
        http=Wire,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )


async def serve(config: uvicorn.Config, port: int) -> None:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # An answer is written in two pieces: without this the second one waits 40 ms for the first one's receipt.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bound.bind(("127.0.0.1", port))
    bound.listen(BACKLOG)
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        asyncio.get_running_loop().add_reader(0, _read_stdin)
    sys.stdout.write(f'{{"port": {bound.getsockname()[1]}}}\n')
    sys.stdout.flush()
    await uvicorn.Server(config).serve([bound])


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.emulator")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="where uploads lie; it must be empty")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clock", type=Path, help="a JSON file that says what time it is")
    parser.add_argument("--settings", metavar="JSON", help="an object, as POST /_emulator/settings takes it")
    parser.add_argument("--script", metavar="JSON", help="a list of faults, as POST /_emulator/script takes it")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    # A test may have more calls open than the usual soft limit of 1,024 files.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    world = World(given.folder, Clock(given.clock), given.seed)
    for name, told in (("settings", given.settings), ("script", given.script)):
        try:
            if told is not None:
                control(world, "POST", name, {}, told.encode())
        except Refusal as refusal:
            parser.error(f"--{name}: {refusal.problem.message}")
    gc.freeze()
    config = config_of(world)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve(config, given.port))


if __name__ == "__main__":
    main()
