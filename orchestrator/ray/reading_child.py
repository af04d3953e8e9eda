"""Runs calls as tasks on a Ray cluster.

Started by its path with the cluster's own Python; uses only the standard library and Ray.

python reading_child.py ADDRESS VERSION MEMORY SECONDS PATIENCE VALUE MORE_MEMORY

MEMORY, SECONDS, PATIENCE, VALUE and MORE_MEMORY are the limits of `process.WorkerLimits`.

Both directions carry lines of JSON, each followed by the number of raw bytes that the line states.

On stdin: `{"id", "bytes"}` and the call as packed by `messages`.

On stdout: `{"event": "room", "cpus"}` with the cluster's CPUs, once connected and after every change. `{"event":
"done", "id", "trip", "detail", "sizes", "bytes"}` is followed by the packed values. Two events end the output:
`{"event": "unreachable", "problem"}`, and `{"event": "unfit", "problem"}` if a node cannot run a task.

A task needs a node with the same version of orch-batch. Ray does not repeat tasks. If a node or process is lost, this
process repeats the call once; a second loss fails the call. This process ends when stdin does, and Ray then ends its
tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import sys
import threading
from typing import Any, BinaryIO

import ray
from ray.exceptions import RayError

DEATHS = 2
LOOK_SECONDS = 5.0
LAST_WORDS_SECONDS = 5.0
Call = tuple[int, bytes]


def read(request: bytes, limits: tuple[int, int, float, int, int], version: str) -> tuple[str, str, list[bytes]]:
    """Run one call on a node. Ray ships this function by value, so it imports everything that it uses."""
    import socket
    from importlib import import_module

    try:
        orchestrator = import_module("orchestrator")  # the public names are above this room
        from orchestrator.core.bounded.process import WorkerLimits
        from orchestrator.ray.reading_node import answer
    except ImportError as error:
        return "unfit", f"the Python of the node {socket.gethostname()} has no orch-batch {version}: {error}", []
    if orchestrator.__version__ != version:
        there = (
            f"the node {socket.gethostname()} has orch-batch {orchestrator.__version__}, and this machine {version}"
        )
        return "unfit", there, []
    return answer(request, WorkerLimits(*limits))


def only_ours() -> BinaryIO:
    """Reserve standard output for events. Redirect output of Ray and its libraries to standard error."""
    ours = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return ours


class SentCalls:
    def __init__(self, out: BinaryIO, version: str, limits: tuple[int, int, float, int, int]) -> None:
        self._out = out
        self._told = version, limits
        self._task = ray.remote(read).options(num_cpus=1, max_retries=0)
        self._running: set[asyncio.Task[None]] = set()
        self._cpus = -1.0

    def tell(self, event: str, payloads: list[bytes] | None = None, **more: Any) -> None:
        """Write an event. Ignores a closed pipe."""
        sizes = [len(payload) for payload in payloads or ()]
        head = {"event": event, "sizes": sizes, "bytes": sum(sizes), **more}
        with contextlib.suppress(OSError):
            self._out.write(b"".join([json.dumps(head).encode(), b"\n", *(payloads or ())]))
            self._out.flush()

    async def serve(self, calls: queue.SimpleQueue[Call | None]) -> None:
        """Carry out incoming calls until stdin ends, then cancel the calls in progress."""
        looking = asyncio.create_task(self._look())
        while (call := await asyncio.to_thread(calls.get)) is not None:
            task = asyncio.create_task(self._make(*call))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        for task in (looking, *self._running):
            task.cancel()

    async def _look(self) -> None:
        while True:
            cpus = (await asyncio.to_thread(ray.cluster_resources)).get("CPU", 0.0)
            if cpus != self._cpus:
                self._cpus = cpus
                self.tell("room", cpus=cpus)
            await asyncio.sleep(LOOK_SECONDS)

    async def _make(self, number: int, request: bytes) -> None:
        trip, detail, payloads = await self._answer(ray.put(request))
        if trip == "unfit":
            self.tell("unfit", problem=detail)
        else:
            self.tell("done", payloads, id=number, trip=trip, detail=detail)

    async def _answer(self, request: Any) -> tuple[str, str, list[bytes]]:
        version, limits = self._told
        for death in range(1, DEATHS + 1):
            try:
                found: tuple[str, str, list[bytes]] = await self._task.remote(request, limits, version)
            except RayError as error:
                sys.stderr.write(f"{death}. time: {error}\n")
                why = type(error).__name__
            else:
                return found
        return "reader_crashed", f"on the cluster: {why}", []


def _take_in(calls: queue.SimpleQueue[Call | None]) -> None:
    """Read calls in a thread, so that the process ends with stdin even if Ray hangs."""
    stdin = sys.stdin.buffer
    for line in stdin:
        head = json.loads(line)
        data = stdin.read(head["bytes"])
        if len(data) == head["bytes"]:
            calls.put((head["id"], data))
    calls.put(None)
    threading.Event().wait(LAST_WORDS_SECONDS)
    os._exit(1)


def main(arguments: list[str]) -> int:
    address, version, memory, seconds, patience, value, more_memory = arguments
    out = only_ours()
    calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
    threading.Thread(target=_take_in, args=(calls,), daemon=True).start()
    found = SentCalls(out, version, (int(memory), int(seconds), float(patience), int(value), int(more_memory)))
    try:
        # With an address, Ray does not start its own cluster.
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # noqa: BLE001  (Ray raises many types if there is no cluster)
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        found.tell("unreachable", problem=f"there is no Ray cluster at {address}: {why}")
        return 4
    asyncio.run(found.serve(calls))
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
