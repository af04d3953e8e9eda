"""The driver `here`: runs engines as processes on this machine, each on its own GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from orchestrator.core.engines import EngineState
from orchestrator.core.errors import OrchError, UsageError
from orchestrator.server.engines import gpu_memory, sleeping
from orchestrator.server.engines.driver import EngineReport, Slots
from orchestrator.server.engines.gpus import Gpu, Group, find_gpus
from orchestrator.server.engines.launch import (
    Planned,
    Wish,
    device_name,
    engine_ports,
    find_python,
    find_weights,
    planned,
    slug,
)
from orchestrator.server.engines.local_engine import LocalEngine
from orchestrator.server.engines.options import check_options, value_of
from orchestrator.server.engines.supervisor import RestartPolicy
from orchestrator.server.listen import outlived
from orchestrator.settings.backends import EnginesBackend

AGAIN_SECONDS = 10.0
"""Seconds between two checks of GPUs that are in use."""
PAUSE_SECONDS = 0.2
UTILIZATION, MEMORY = "--gpu-memory-utilization", "--kv-cache-memory-bytes"


class _Refused(Struct):
    """An engine that could not start. It waits for its GPUs, or orch gave it up."""

    report: EngineReport
    since: float


class LocalDriver:
    """Runs engines on this machine. `root` is the server's folder, with logs, the compile cache and the lock.

    `tell` gets progress messages.
    """

    def __init__(
        self,
        root: Path,
        settings: EnginesBackend,
        environ: Mapping[str, str],
        tell: Callable[[str], None],
        patience: RestartPolicy | None = None,
    ) -> None:
        self._root = root
        self._settings = settings
        self._environ = environ
        self._tell = tell
        self._patience = patience or RestartPolicy()
        self._stack = ExitStack()
        self._engines: dict[tuple[str, Slots], LocalEngine] = {}
        self._refused: dict[tuple[str, Slots], _Refused] = {}
        self._ports: dict[tuple[str, Slots], int] = {}
        self._slots: Slots | None = None

    def prepare(self, is_over: Callable[[], bool]) -> Slots:
        if self._slots is not None:
            return self._slots
        models = self._settings.models
        for model in models.values():
            check_options(model.options)
        given = self._settings.vllm_python
        python = None if given is None else Path(given).expanduser()
        self._python, self._environment, is_cpu_build = find_python(python, self._environ)
        self._is_cpu = is_cpu_build or not (found := find_gpus(self._environ))
        if self._is_cpu and self._settings.gpus is not None:
            raise UsageError("orch.toml names gpus, and this machine, or the vLLM on it, has none")
        slots = (0,) if self._is_cpu else self._gpus_of(found)
        for name, model in models.items():
            if model.tensor_parallel > len(slots):
                raise UsageError(f"model {name} takes {model.tensor_parallel} GPUs, and there are {len(slots)}")

        # Each engine's leash holds the lock until the last process of the engine is gone.
        def pause() -> bool:
            time.sleep(PAUSE_SECONDS)
            return not is_over()

        self._held = self._stack.enter_context(outlived(self._root, "engines.lock", pause))
        keys = [
            (name, slots[at : at + model.tensor_parallel])
            for name, model in models.items()
            for at in range(0, len(slots) - model.tensor_parallel + 1, model.tensor_parallel)
        ]
        self._ports = dict(zip(keys, engine_ports(self._root, len(keys)), strict=True))
        self._slots = slots
        return slots

    def _gpus_of(self, found: list[Gpu]) -> Slots:
        there = tuple(gpu.index for gpu in found)
        if missing := [index for index in self._settings.gpus or () if index not in there]:
            raise UsageError(f"GPU {missing[0]} is not on this machine; there are: {', '.join(map(str, there))}")
        return self._settings.gpus or there

    def start(self, model: str, slots: Slots) -> None:
        key = (model, slots)
        before = self._refused.get(key)
        waits = before is not None and before.report.state is EngineState.COLD
        if before is not None and waits and time.monotonic() - before.since < AGAIN_SECONDS:
            return
        try:
            found, problem = self._planned(model, slots)
        except OrchError as error:
            self._refuse(key, EngineState.GIVEN_UP, str(error))
            return
        if problem is not None:
            self._refuse(key, EngineState.COLD if problem.passes else EngineState.GIVEN_UP, problem.reason)
            return
        self._refused.pop(key, None)
        self._tell(f"starting {model} on {found.name} (log: {found.log})")
        self._engines[key] = LocalEngine(
            model, slots, found, self._patience, self._tell, (self._held,),
            self._sleeps(model), self._memory,
        )  # fmt: skip

    def _sleeps(self, model: str) -> bool:
        return self._settings.models[model].swap == "sleep" and not self._is_cpu

    def _planned(self, name: str, slots: Slots) -> tuple[Planned, gpu_memory.DoesNotFit | None]:
        """Return the plan of the engine, and the reason not to start it now, if any."""
        model = self._settings.models[name]
        weights = find_weights(model.model)
        gpus: Group = () if self._is_cpu else tuple(gpu for gpu in find_gpus(self._environ) if gpu.index in slots)
        options, problem = model.options, None
        if gpus and value_of(options, MEMORY) is None:
            share = self._share(gpus, options)
            size = (
                gpu_memory.weights_bytes(weights, options, self._environ) if gpu_memory.can_judge(options) else None
            )
            problem = gpu_memory.judge(size, gpus, share)
            options = (UTILIZATION, f"{share:.3f}", *options)
        environment = {"VLLM_CACHE_ROOT": str(self._root / "vllm-cache"), **self._environment}
        if self._sleeps(name):
            environment, options = {**environment, **sleeping.ENVIRONMENT}, (*sleeping.OPTIONS, *options)
        wish = Wish(weights, tensor_parallel=model.tensor_parallel, options=("--served-model-name", name, *options))
        log = self._root / "engines" / f"{name}-{slug(gpus)}.log"
        found = planned(wish, gpus, self._ports[name, slots], log, self._python, environment)
        return found, problem

    def _share(self, gpus: Group, options: tuple[str, ...]) -> float:
        """Return vLLM's share of each GPU's memory: the quota, or vLLM's usual share of the free memory."""
        if value_of(options, UTILIZATION) is not None:
            return gpu_memory.utilization_of(options)
        totals = [(gpu.total, gpu.free) for gpu in gpus if gpu.total is not None]
        if self._settings.vram is not None and totals:
            return min(1.0, max(self._settings.vram / total for total, _ in totals))
        free = [gpu_memory.UTILIZATION * free / total for total, free in totals if free is not None]
        return min(free, default=gpu_memory.UTILIZATION)

    def _refuse(self, key: tuple[str, Slots], state: EngineState, problem: str) -> None:
        before = self._refused.get(key)
        if before is None or before.report.problem != problem:
            self._tell(f"{key[0]} is not started: {problem}")
        url = f"http://127.0.0.1:{self._ports[key]}/v1"
        device = device_name(() if self._is_cpu else key[1])
        report = EngineReport(device, key[0], key[1], url, state, 0.0, problem=problem)
        self._refused[key] = _Refused(report, time.monotonic())

    def stop(self, model: str, slots: Slots) -> None:
        self._refused.pop((model, slots), None)
        if (engine := self._engines.get((model, slots))) is not None:
            engine.stop()

    def sleep(self, model: str, slots: Slots) -> None:
        if (engine := self._engines.get((model, slots))) is not None:
            engine.sleep()

    def wake(self, model: str, slots: Slots) -> None:
        if (engine := self._engines.get((model, slots))) is not None:
            engine.wake()

    def engines(self) -> list[EngineReport]:
        for key, engine in [*self._engines.items()]:
            if engine.is_gone:
                del self._engines[key]
        refused = [replace(one.report, seconds=time.monotonic() - one.since) for one in self._refused.values()]
        return [*(engine.report() for engine in self._engines.values()), *refused]

    def close(self) -> None:
        for engine in self._engines.values():
            engine.stop()
        for engine in self._engines.values():
            engine.join()
        self._engines.clear()
        self._stack.close()

    def _memory(self, slots: Slots) -> int | None:
        if self._is_cpu:
            return None
        used = [
            gpu.total - gpu.free
            for gpu in find_gpus(self._environ)
            if gpu.index in slots and gpu.total is not None and gpu.free is not None
        ]
        return sum(used) if len(used) == len(slots) else None
