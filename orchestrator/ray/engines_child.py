"""Engines on a Ray cluster; run by path with the cluster's own Python. Uses only the standard library and Ray.

    python engines_child.py serve ADDRESS LEASH     JSON lines: wanted engines on stdin, events on stdout
    python engines_child.py status ADDRESS          the nodes as one JSON object on stdout

A line on stdin is `{"wanted": [ENGINE, ...]}`, all engines to run from now on: missing engines are started, and
engines no longer listed are stopped. An ENGINE is `{"id", "arguments", "python", "env", "gpus", "cpus", "resources",
"strategy"}`; `arguments` follow `python` on the command line, with the host and a free port added.

Events: `{"event": "connected", "ray", "nodes": [...]}`; `{"event": "engine", "id", "state", "url", "node", "starts",
"problem"}` with the states pending (no node has room yet), starting, ready, lost, and failed (given up); and
`{"event": "there", "ids": [...]}` after each line and each engine's end, with all engines that are not completely
gone.

Each engine is an actor that holds one engine process in a placement group. Actors are not detached: when this
process ends in any way, Ray ends them, and their leash (leash.py) ends the engines. This process ends when stdin
does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import deque
from pathlib import Path
from typing import Any, TextIO

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

TRIES = 3
"""Consecutive failed starts after which an engine is given up."""
FIRST_PAUSE, LONGEST_PAUSE, WELL_SECONDS = 1.0, 60.0, 60.0
READY_SECONDS = 3600.0
GRACE_SECONDS = 10.0
"""Seconds that an engine has to shut down by itself."""
LAST_WORDS_SECONDS = 20.0
"""Maximum seconds between the end of stdin and the end of this process, even if Ray hangs."""
ANSWER_SECONDS = 8.0
"""Seconds in which a live cluster must list its nodes. Ray itself waits minutes for a dead cluster."""
LOOK_SECONDS = 0.25
LOST_PAUSE_SECONDS = 0.5
TAIL_LINES = 25


class EngineActor:
    """The actor: one leashed engine process on the node that Ray chose."""

    def __init__(self, wanted: dict[str, Any], leash: str) -> None:
        self._wanted = wanted
        self._leash = leash
        self._process: subprocess.Popen[bytes] | None = None
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._url = ""

    async def start(self) -> dict[str, Any]:
        """Start the process unless it already runs, and return its URL and node."""
        if self._process is None or self._process.poll() is not None:
            self._spawn()
        return {"url": self._url, "node": ray.get_runtime_context().get_node_id()}

    def _spawn(self) -> None:
        host = _address_in_ray()
        port = _free_port(host)
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
        self._tail.clear()
        python = self._wanted["python"] or sys.executable
        command = [python, *self._wanted["arguments"], "--host", host, "--port", str(port)]
        self._process = process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", self._leash, str(os.getpid()), str(GRACE_SECONDS), "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=tempfile.gettempdir(),
            env=_engine_environment({"RAY_ADDRESS": ray.get_runtime_context().gcs_address, **self._wanted["env"]}),
            start_new_session=True,
        )
        threading.Thread(target=self._pump, args=(process,), daemon=True).start()

    def _pump(self, process: subprocess.Popen[bytes]) -> None:
        for line in process.stdout or ():
            text = line.decode(errors="replace").rstrip()
            self._tail.append(text)
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    async def ready(self) -> str | None:
        """Return None once /health answers 200, or the reason if the engine failed."""
        until = asyncio.get_running_loop().time() + READY_SECONDS
        while not await asyncio.to_thread(_is_healthy, self._url):
            if self._process is None or self._process.poll() is not None:
                return self._end()
            if asyncio.get_running_loop().time() > until:
                return f"the engine was not ready after {READY_SECONDS:.0f} s"
            await asyncio.sleep(LOOK_SECONDS)
        return None

    async def ended(self) -> str:
        """Wait until the process has ended, and return the reason."""
        while self._process is not None and self._process.poll() is None:
            await asyncio.sleep(LOOK_SECONDS)
        return self._end()

    async def stop(self) -> None:
        """Stop the process, and return once it is completely gone."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            await asyncio.to_thread(process.wait)

    def _end(self) -> str:
        code = None if self._process is None else self._process.poll()
        tail = "\n".join(self._tail)
        return f"the engine ended with code {code}; the end of its log:\n{tail}"


def _address_in_ray() -> str:
    """Return this node's address as Ray knows it: a machine may have several addresses."""
    own = ray.get_runtime_context().get_node_id()
    return next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == own)


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _engine_environment(more: dict[str, str]) -> dict[str, str]:
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and not name.endswith("_API_KEY") and not name.startswith("ORCH_")
    }
    return {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **kept, "PYTHONSAFEPATH": "1", **more}


def _is_healthy(url: str) -> bool:
    try:
        # Bypass any proxy, because the engine runs on this node.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url.removesuffix("/v1") + "/health", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def only_ours() -> TextIO:
    """Reserve standard output for events and return the stream. Redirect all other output, such as Ray's, to standard
    error.
    """
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return ours


EVENTS: list[TextIO] = []


def tell(event: str, **more: Any) -> None:
    """Write one event. Ignores a closed pipe, because this process must still end its engines."""
    for out in EVENTS:
        with contextlib.suppress(OSError):
            out.write(json.dumps({"event": event, **more}) + "\n")
            out.flush()


class Placed:
    """One wanted engine: its actor and its events. Ray recreates the actor if a node dies."""

    def __init__(self, wanted: dict[str, Any], leash: str) -> None:
        self.wanted = wanted
        self._leash = leash
        self._starts = 0
        self._last: tuple[Any, ...] = ()
        self._group: Any = None
        self._actor: Any = None

    def _tell(self, state: str, url: str = "", node: str = "", problem: str | None = None) -> None:
        now = (state, url, node, problem, self._starts)
        if now != self._last:
            self._last = now
            tell(
                "engine", id=self.wanted["id"], state=state, url=url, node=node, problem=problem, starts=self._starts
            )

    def _make(self) -> None:
        """Ask Ray for a placement group and an actor in it. Both wait for a node with room, so an autoscaling cluster
        can grow.
        """
        wanted, spreads = self.wanted, self.wanted["strategy"] == "SPREAD"
        gpus = 0 if spreads else wanted["gpus"]  # with SPREAD, the engine's own Ray executor reserves the GPUs
        bundle = {"CPU": wanted["cpus"], **({"GPU": gpus} if gpus else {}), **wanted["resources"]}
        self._group = placement_group([{name: amount for name, amount in bundle.items() if amount}], "STRICT_PACK")
        self._actor = (
            ray.remote(EngineActor)
            .options(
                num_cpus=wanted["cpus"],
                num_gpus=gpus,
                resources=wanted["resources"] or None,
                max_restarts=-1,
                max_task_retries=0,
                max_concurrency=8,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, 0),
            )
            .remote(wanted, self._leash)
        )

    async def run(self) -> None:
        """Keep the engine running until this task is cancelled or the engine is given up."""
        failed = deaths = 0
        problem: str | None = None
        is_lost = False
        loop = asyncio.get_running_loop()
        self._tell("pending")
        self._make()
        while failed < TRIES:
            ready_at: float | None = None
            try:
                place = await self._actor.start.remote()
                self._starts += 1
                is_lost = False
                self._tell("starting", problem=problem, **place)
                problem = await self._actor.ready.remote()
                if problem is None:
                    ready_at, failed = loop.time(), 0
                    self._tell("ready", **place)
                    problem = await self._actor.ended.remote()
                else:
                    failed += 1
            except RayActorError as error:
                # The actor's node or process is gone. Ray recreates the actor once a node has room.
                if not is_lost:
                    sys.stderr.write(f"{self.wanted['id']}: {error}\n")
                    self._tell("lost", problem="its node, or its process there, is gone")
                is_lost, problem = True, None
                await asyncio.sleep(LOST_PAUSE_SECONDS)
                continue
            deaths = 1 if ready_at is not None and loop.time() - ready_at >= WELL_SECONDS else deaths + 1
            if failed < TRIES:
                self._tell("starting", problem=problem)
                await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(deaths - 1, 30)))
        await self.release()
        self._tell("failed", problem=problem)

    async def release(self) -> None:
        """End the engine, its actor and its placement group."""
        actor, self._actor = self._actor, None
        if actor is not None:
            if self._starts:
                with contextlib.suppress(RayError, GetTimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(_awaited(actor.stop.remote()), GRACE_SECONDS + 5.0)
            ray.kill(actor, no_restart=True)
        group, self._group = self._group, None
        if group is not None:
            await asyncio.to_thread(remove_placement_group, group)


async def _awaited(reference: Any) -> Any:
    return await reference


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class WantedEngines:
    def __init__(self, leash: str) -> None:
        self._leash = leash
        self._running: dict[str, tuple[Placed, asyncio.Task[None]]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    def want(self, wanted: list[dict[str, Any]]) -> None:
        """Run exactly these engines. An engine that is still shutting down is restarted at a later call."""
        named = {one["id"]: one for one in wanted}
        for name in [name for name in self._running if name not in named]:
            self._ending[name] = asyncio.create_task(self._end(name, *self._running.pop(name)))
        for name, one in named.items():
            if name not in self._running and name not in self._ending:
                placed = Placed(one, self._leash)
                self._running[name] = (placed, asyncio.create_task(self._run(placed)))
        self._tell()

    def _tell(self) -> None:
        tell("there", ids=[*self._running, *self._ending])

    async def _run(self, placed: Placed) -> None:
        try:
            await placed.run()
        except Exception as error:  # noqa: BLE001  (any refusal by Ray concerns only this engine)
            await placed.release()
            tell("engine", id=placed.wanted["id"], state="failed", url="", node="", starts=0, problem=str(error))

    async def _end(self, name: str, placed: Placed, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await placed.release()
        del self._ending[name]
        self._tell()

    async def close(self) -> None:
        self.want([])
        await asyncio.gather(*self._ending.values(), return_exceptions=True)


def nodes() -> list[dict[str, Any]]:
    return [
        {
            "id": node["NodeID"],
            "address": node["NodeManagerAddress"],
            "alive": node["Alive"],
            "cpus": node["Resources"].get("CPU", 0.0),
            "gpus": node["Resources"].get("GPU", 0.0),
            "memory_bytes": int(node["Resources"].get("memory", 0)),
        }
        for node in ray.nodes()
    ]


def _read_lines(lines: queue.SimpleQueue[str | None]) -> None:
    """Read stdin in a thread, so that this process ends soon after stdin closes, even if Ray hangs."""
    for line in sys.stdin:
        lines.put(line)
    lines.put(None)
    threading.Event().wait(LAST_WORDS_SECONDS)
    os._exit(1)


async def serve(leash: str, lines: queue.SimpleQueue[str | None]) -> None:
    """Process the lines from stdin until stdin ends."""
    fleet = WantedEngines(leash)
    while (line := await asyncio.to_thread(lines.get)) is not None:
        fleet.want(json.loads(line)["wanted"])
    await fleet.close()


def connect(address: str) -> None:
    """Connect to the cluster as a driver; never start a cluster. Raises ConnectionError."""
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=False)


def _give_up(address: str) -> None:
    """End this process after ANSWER_SECONDS, even if Ray still waits. Runs in a thread."""
    threading.Event().wait(ANSWER_SECONDS)
    tell("unreachable", problem=f"the Ray cluster at {address} has not answered for {ANSWER_SECONDS:g} s")
    os._exit(4)


def main(arguments: list[str]) -> int:
    verb, address = arguments[0], arguments[1]
    EVENTS.append(only_ours())
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    if verb == "serve":
        threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    else:
        threading.Thread(target=_give_up, args=(address,), daemon=True).start()
    try:
        connect(address)
    except Exception as error:  # noqa: BLE001  (Ray raises many types if there is no cluster)
        tell("unreachable", problem=f"there is no Ray cluster at {address}: {_first_line(error)}")
        return 4
    if verb == "status":
        tell("status", ray=ray.__version__, nodes=nodes(), free=ray.available_resources())
        return 0
    tell("connected", ray=ray.__version__, nodes=nodes())
    asyncio.run(serve(Path(arguments[2]).read_text(encoding="utf-8"), lines))
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
