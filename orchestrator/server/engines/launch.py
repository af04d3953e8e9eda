"""The engines of `orch serve --vllm MODEL`: their Python, GPUs, ports and options."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.errors import InputError, RefusedError, UsageError
from orchestrator.server.engines import gpu_memory
from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.gpus import Group, find_gpus, group
from orchestrator.server.engines.install import is_installed
from orchestrator.server.engines.layout import EngineDir
from orchestrator.server.engines.options import check_options, value_of
from orchestrator.server.engines.process import COMMON_OPTIONS, CPU_OPTIONS, HOST, Launch, is_free

# Below the range of ports for outgoing connections. While an engine is down, such a connection could take its port,
# even the server's own connection to the engine.
FIRST_PORT, LAST_PORT = 16_384, 32_000
# GiB. Without this setting vLLM takes 92 % of the machine's memory for its CPU cache, or does not start.
CPU_CACHE_GIB = "4"
CHECK_SECONDS = 60.0
HAS_VLLM = "import importlib.util as u, sys; s = u.find_spec('vllm'); sys.exit(not (s and s.origin))"
_is_hub_name = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?").fullmatch


class Wish(Struct, frozen=True):
    """The user's request. None for `gpus` means all; `options` are vLLM's own."""

    model: str
    gpus: tuple[int, ...] | None = None
    tensor_parallel: int = 1
    python: Path | None = None
    options: tuple[str, ...] = ()


class Planned(Struct, frozen=True):
    """One engine to start. `name` is used in messages."""

    name: str
    launch: Launch
    log: Path


class EnginePlan(Struct, frozen=True):
    """The engines to start, and notes for the user."""

    engines: tuple[Planned, ...]
    notes: tuple[str, ...]


def plan_engines(wish: Wish, root: Path, environ: Mapping[str, str]) -> EnginePlan:
    """Plan all engines without starting any.

    `root` is the server's folder, for logs. Ports derive from `root`, so that a restarted server finds its engines at
    the same addresses. Raises UsageError, InputError or EngineUnavailable; raises RefusedError if the model cannot
    fit.
    """
    if sys.platform != "linux":
        raise EngineUnavailable("orch starts vLLM on Linux only", hint="start it yourself and give its --upstream")
    check_options(wish.options)
    model = find_weights(wish.model)
    wish = replace(wish, model=model)
    python, environment, is_cpu_build = find_python(wish.python, environ)
    if is_cpu_build and (wish.gpus or wish.tensor_parallel > 1):
        raise UsageError(
            f"the vLLM of {python} is the build for the CPU", hint="name one for GPUs with --vllm-python"
        )
    found = [] if is_cpu_build else find_gpus(environ)
    groups = group(found, wish.gpus, wish.tensor_parallel)
    notes = _notes(wish, model, groups, len(found), environ)
    ports = engine_ports(root, len(groups))
    engines = [
        planned(wish, gpus, port, root / "engines" / f"{slug(gpus)}.log", python, environment)
        for gpus, port in zip(groups, ports, strict=True)
    ]
    return EnginePlan(tuple(engines), notes)


def planned(wish: Wish, gpus: Group, port: int, log: Path, python: Path, environment: Mapping[str, str]) -> Planned:
    """Plan one engine on these GPUs, or on the CPU if `gpus` is empty. `wish.model` comes from `find_weights`."""
    launch = Launch(
        (str(python), *_command(wish.model, wish, gpus, port)),
        port,
        wish.model,
        _environment(environment, gpus, wish.options),
    )
    return Planned(device_name([gpu.index for gpu in gpus]), launch, log)


def find_weights(given: str) -> str:
    """Return a path made absolute, or a name on the Hub unchanged. Raises InputError for any other text."""
    path = Path(given).expanduser()
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "params.json")):
            raise InputError(f"{path} is not a model: it holds no config.json")
        return str(path.absolute())
    if path.is_file():
        return str(path.absolute())
    if given.startswith((".", "/", "~")) or _is_hub_name(given) is None:
        raise InputError(f"there is no model {given}", hint="--vllm takes a model's folder or its name on the Hub")
    return given


def _notes(
    wish: Wish, model: str, groups: Sequence[Group], found: int, environ: Mapping[str, str]
) -> tuple[str, ...]:
    notes = []
    if groups == [()]:
        notes.append("no GPU is used: one engine on the CPU")
    elif wish.gpus is None and found % wish.tensor_parallel:
        notes.append(
            f"{found} GPUs cannot be divided by {wish.tensor_parallel}: {found % wish.tensor_parallel} stay idle"
        )
    if groups == [()]:
        return tuple(notes)
    weights = gpu_memory.weights_bytes(model, wish.options, environ) if gpu_memory.can_judge(wish.options) else None
    if weights is None:
        notes.append("orch cannot tell if the model fits the GPUs' memory before it is loaded")
    if value_of(wish.options, "--kv-cache-memory-bytes") is not None:
        return tuple(notes)
    for gpus in groups:
        refusal = gpu_memory.judge(weights, gpus, gpu_memory.utilization_of(wish.options))
        if refusal is not None:
            raise RefusedError(refusal.reason, hint=refusal.hint)
    return tuple(notes)


def find_python(given: Path | None, environ: Mapping[str, str]) -> tuple[Path, dict[str, str], bool]:
    """Return the Python that has vLLM, its environment, and True if that vLLM is a CPU build.

    Tries only the given Python, if there is one. Otherwise, tries this process's Python, then the Python of `python
    -m orchestrator.server.engines install`. Raises EngineUnavailable.
    """
    ours = for_engines(environ)
    if given is not None:
        # Not resolved: an environment's python is a link, and its target does not know the environment.
        if not _has_vllm(given.absolute(), ours):
            raise EngineUnavailable(f"{given} has no vLLM", hint=f"{given} -m pip install vllm")
        return given.absolute(), ours, False
    spec = importlib.util.find_spec("vllm")
    if spec is not None and spec.origin is not None:
        return Path(sys.executable), ours, False
    engine = EngineDir.at(environ.get("ORCH_ENGINE_DIR", ".engine"))
    if is_installed(engine):
        return engine.python, {**ours, **engine.variables(ours)}, True
    raise EngineUnavailable(
        f"there is no vLLM: not in {sys.executable}, not in {engine.root}",
        hint="for GPUs: pip install vllm, or --vllm-python PATH of the Python that has it;\n"
        "        for the CPU: python -m orchestrator.server.engines install",
    )


def _has_vllm(python: Path, env: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", HAS_VLLM], env=dict(env), capture_output=True, timeout=CHECK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineUnavailable(f"{python} cannot be run: {error}", hint=None) from error
    return done.returncode == 0


def for_engines(environ: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without keys, and without variables that would mislead an engine."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
        and not name.endswith("_API_KEY")
        and not name.startswith("ORCH_")
    }
    # Without this, Python would import a folder called vllm in the working directory as the package.
    return {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **kept, "PYTHONSAFEPATH": "1"}


def _environment(base: Mapping[str, str], gpus: Group, options: Sequence[str]) -> dict[str, str]:
    if gpus:
        indexes = ",".join(str(gpu.index) for gpu in gpus)
        # nvidia-smi numbers GPUs by bus, but CUDA by default numbers them by speed.
        return {**base, "CUDA_VISIBLE_DEVICES": indexes, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    sized = any(value_of(options, name) for name in ("--gpu-memory-utilization", "--kv-cache-memory-bytes"))
    return dict(base) if sized else {"VLLM_CPU_KVCACHE_SPACE": CPU_CACHE_GIB, **base}


def _command(model: str, wish: Wish, gpus: Group, port: int) -> tuple[str, ...]:
    # A path is not a model name: requests use its last part.
    is_named = value_of(wish.options, "--served-model-name") is not None
    name = ("--served-model-name", Path(model).name) if Path(model).is_absolute() and not is_named else ()
    size = ("--tensor-parallel-size", str(len(gpus))) if len(gpus) > 1 else ()
    ours = COMMON_OPTIONS if gpus else (*COMMON_OPTIONS, *CPU_OPTIONS)
    return (
        *("-m", "vllm.entrypoints.openai.api_server", "--model", model, *name),
        *("--host", HOST, "--port", str(port), *size, *ours, *wish.options),
    )


def device_name(gpus: Sequence[int]) -> str:
    """Return a device name for messages: the GPUs with these numbers, or the CPU if `gpus` is empty."""
    return f"GPU{'s' if len(gpus) > 1 else ''} {','.join(map(str, gpus))}" if gpus else "the CPU"


def slug(gpus: Group) -> str:
    """Return the part of file names that identifies an engine on these GPUs."""
    return "-".join(["gpu", *(str(gpu.index) for gpu in gpus)]) if gpus else "cpu"


def engine_ports(root: Path, count: int) -> list[int]:
    """Return free ports for a server folder's engines. The ports are the same each time, if they are free."""
    span = LAST_PORT - FIRST_PORT
    first = int.from_bytes(hashlib.sha256(os.fsencode(root.absolute())).digest()[:4], "big") % span
    order = (FIRST_PORT + (first + step) % span for step in range(span))
    free = (port for port in order if is_free(port))
    return [port for _, port in zip(range(count), free, strict=False)]
