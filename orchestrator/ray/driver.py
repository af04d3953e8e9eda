"""The driver `ray`: engines as actors of a Ray cluster. Ray places and restarts engines, but never sees rows.

A process in the cluster's own Python uses Ray (process.py). It runs only while an engine is wanted, so that an
autoscaling cluster can shrink to nothing.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from orchestrator.core.engines import EngineState
from orchestrator.core.errors import OrchError
from orchestrator.ray.process import RayEvent, RayProcess, require_ray
from orchestrator.server.engines.driver import EngineReport, Slots
from orchestrator.server.engines.options import check_options
from orchestrator.server.engines.process import COMMON_OPTIONS, CPU_OPTIONS
from orchestrator.settings.backends import RayBackend

CPU_CACHE_GIB = "4"
FIRST_PAUSE, LONGEST_PAUSE, WELL_SECONDS = 1.0, 60.0, 60.0
"""Seconds to wait before restarting a process that ended by itself: first and longest pause.

Each pause is twice the previous one. The pause is reset once the process has run for WELL_SECONDS.
"""
TRIES = 3
"""Consecutive times that the process may end without reaching a cluster. Then orch gives up its engines."""
STATES = {
    "pending": EngineState.PENDING,
    "lost": EngineState.PENDING,
    "starting": EngineState.STARTING,
    "ready": EngineState.WARM,
    "failed": EngineState.GIVEN_UP,
}

Key = tuple[str, Slots]


class _Seen(Struct):
    state: EngineState
    since: float
    url: str = ""
    node: str = ""
    starts: int = 0
    problem: str | None = None


class RayDriver:
    """Runs engines on a Ray cluster. Thread-safe. `root` is the log folder; `tell` receives messages."""

    def __init__(
        self, root: Path, settings: RayBackend, environ: Mapping[str, str], tell: Callable[[str], None]
    ) -> None:
        self._root = root
        self._settings = settings
        self._python = Path(settings.ray_python).expanduser()
        self._environ = environ
        self._tell = tell
        self._key = secrets.token_urlsafe(32)
        """API key that engines require, because other users of the cluster may reach them."""
        self._lock = threading.RLock()
        self._wanted: set[Key] = set()
        self._seen: dict[Key, _Seen] = {}
        self._process: RayProcess | None = None
        self._connected_at: float | None = None
        self._ends = 0
        """Number of consecutive times that the child ended before WELL_SECONDS."""
        self._unreached = 0
        """Number of consecutive times that the child ended without reaching the cluster."""
        self._again_at = float("-inf")
        self._closed = False

    def prepare(self, is_over: Callable[[], bool]) -> Slots:
        for model in self._settings.models.values():
            check_options(model.options)
        require_ray(self._python, self._environ)
        return tuple(range(self._settings.most_engines))

    def start(self, model: str, slots: Slots) -> None:
        with self._lock:
            key = (model, slots)
            if key not in self._seen:
                self._seen[key] = _Seen(EngineState.PENDING, time.monotonic())
                self._wanted.add(key)
                self._say()

    def stop(self, model: str, slots: Slots) -> None:
        with self._lock:
            key = (model, slots)
            self._wanted.discard(key)
            seen = self._seen.get(key)
            if seen is None:
                return
            if self._process is None:
                del self._seen[key]
            elif seen.state is not EngineState.DRAINING:
                self._seen[key] = _Seen(EngineState.DRAINING, time.monotonic(), seen.url, seen.node, seen.starts)
            self._say()

    def sleep(self, model: str, slots: Slots) -> None:
        self.stop(model, slots)

    def wake(self, model: str, slots: Slots) -> None:
        self.start(model, slots)

    def engines(self) -> list[EngineReport]:
        with self._lock:
            self._keep_running()
            now = time.monotonic()
            return [
                EngineReport(
                    f"Ray engine {slots[0]}" + (f" on node {one.node[:8]}" if one.node else ""), model, slots,
                    one.url, one.state, now - one.since, one.starts, one.problem, key=self._key,
                )
                for (model, slots), one in self._seen.items()
            ]  # fmt: skip

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._wanted.clear()
            process = self._process
        if process is not None:
            process.close()
        with self._lock:
            self._seen.clear()

    # --- the process

    def _keep_running(self) -> None:
        """Run the process only while an engine is wanted or still exists."""
        if self._process is None and self._wanted and not self._closed and time.monotonic() >= self._again_at:
            self._begin()
        elif self._process is not None and not self._seen:
            process, self._process = self._process, None
            threading.Thread(target=process.close, name="end ray", daemon=True).start()

    def _begin(self) -> None:
        log = self._root / "engines" / "ray.log"
        made: list[RayProcess] = []
        try:
            made.append(
                RayProcess(
                    self._python, self._settings.address, self._environ, log,
                    self._heard, lambda code: self._process_ended(made, code),
                )
            )  # fmt: skip
        except OrchError as error:
            self._failed(str(error))
            return
        self._process, self._connected_at = made[0], None
        self._say()

    def _say(self) -> None:
        """Send the wanted engines to the process; start the process if necessary."""
        if self._process is None:
            self._keep_running()
        else:
            self._process.want([self._spec(*key) for key in sorted(self._wanted)])

    def _heard(self, event: RayEvent) -> None:
        with self._lock:
            match event.event:
                case "connected":
                    self._connected_at, self._unreached = time.monotonic(), 0
                    alive = sum(bool(node.get("alive")) for node in event.nodes)
                    self._tell(f"connected to Ray {event.ray} with {alive} nodes")
                case "unreachable":
                    self._mark_all(event.problem)
                case "engine":
                    self._note(event)
                case "there":
                    there = {*map(_key_of, event.ids), *self._wanted}
                    self._seen = {key: one for key, one in self._seen.items() if key in there}

    def _note(self, event: RayEvent) -> None:
        key = model, _ = _key_of(event.id)
        if key not in self._wanted or (state := STATES.get(event.state)) is None:
            return
        seen = self._seen[key]
        since = seen.since if seen.state is state else time.monotonic()
        url = event.url if state in (EngineState.STARTING, EngineState.WARM) else ""
        self._seen[key] = _Seen(state, since, url, event.node, event.starts, event.problem)
        self._tell_of(model, event, seen)

    def _tell_of(self, model: str, event: RayEvent, before: _Seen) -> None:
        seconds = time.monotonic() - before.since
        match event.state:
            case "ready":
                self._tell(f"{model}: ready after {seconds:.0f} s at {event.url}")
            case "lost":
                self._tell(f"{model}: lost: {event.problem}; Ray starts it on a node that has room")
            case "failed":
                self._tell(f"{model}: given up: {event.problem}")
            case "starting" if event.problem is not None:
                self._tell(f"{model}: started again: {event.problem}")

    def _process_ended(self, made: list[RayProcess], code: int) -> None:
        with self._lock:
            if not made or self._process is not made[0]:
                return
            self._process = None
            self._seen = {key: one for key, one in self._seen.items() if key in self._wanted}
            self._failed(f"the process that speaks to Ray ended with code {code}")

    def _failed(self, problem: str) -> None:
        now = time.monotonic()
        was_well = self._connected_at is not None and now - self._connected_at >= WELL_SECONDS
        self._ends = 0 if was_well else self._ends + 1
        self._unreached += self._connected_at is None
        self._again_at = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(max(0, self._ends - 1), 30))
        if not self._closed and self._wanted and not any(one.problem for one in self._seen.values()):
            self._tell(problem)
        self._mark_all(problem, over=True)

    def _mark_all(self, problem: str | None, over: bool = False) -> None:
        """Mark all engines as not running. If `over`, engines with an earlier problem keep it."""
        state = EngineState.GIVEN_UP if self._unreached >= TRIES else EngineState.PENDING
        for key in self._wanted:
            seen = self._seen[key]
            since = seen.since if seen.state in (EngineState.PENDING, EngineState.GIVEN_UP) else time.monotonic()
            told = (seen.problem or problem) if over else problem
            self._seen[key] = _Seen(state, since, starts=seen.starts, problem=told)

    def _spec(self, name: str, slots: Slots) -> dict[str, Any]:
        model, spreads = self._settings.models[name], self._settings.models[name].placement == "spread"
        arguments = [
            *("-m", "vllm.entrypoints.openai.api_server"),
            *("--model", model.model, "--served-model-name", name),
            *(("--tensor-parallel-size", str(model.gpus)) if model.gpus > 1 else ()),
            *(("--distributed-executor-backend", "ray") if spreads else ()),
            *COMMON_OPTIONS,
            *(() if model.gpus else CPU_OPTIONS),
            *model.options,
        ]
        cache = {} if model.gpus else {"VLLM_CPU_KVCACHE_SPACE": CPU_CACHE_GIB}
        return {
            "id": f"{name}/{slots[0]}",
            "arguments": arguments,
            "python": self._settings.vllm_python,
            # The key is in the environment, because every user of the node can read command lines.
            "env": {**cache, "VLLM_API_KEY": self._key},
            "gpus": model.gpus,
            "cpus": model.cpus,
            "resources": dict(sorted(model.resources.items())),
            "strategy": "SPREAD" if spreads else "STRICT_PACK",
        }


def _key_of(name: str) -> Key:
    model, _, number = name.rpartition("/")
    return model, (int(number),)
