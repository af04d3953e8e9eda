"""This machine's GPUs, as listed by nvidia-smi and grouped by engine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence

from msgspec import Struct

from orchestrator.core.errors import UsageError
from orchestrator.server.engines.errors import EngineUnavailable

QUERY = ("--query-gpu=index,memory.total,memory.free", "--format=csv,noheader,nounits")
QUERY_SECONDS = 30.0
MIB = 1024**2
NONE_THERE = "No devices were found"


class Gpu(Struct, frozen=True):
    """A GPU. `index` is its number in nvidia-smi. Memory is in bytes, or None if the GPU shares a CPU's memory and
    reports none.
    """

    index: int
    total: int | None
    free: int | None


Group = tuple[Gpu, ...]
"""The GPUs of one engine; empty on a machine without GPUs."""


def find_gpus(environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that this process may use, by index; empty if there is no nvidia-smi.

    Respects CUDA_VISIBLE_DEVICES. Raises EngineUnavailable if nvidia-smi fails.
    """
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return []
    try:
        found = subprocess.run(
            [program, *QUERY], capture_output=True, text=True, errors="replace", timeout=QUERY_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineUnavailable(f"nvidia-smi cannot tell which GPUs there are: {error}", hint=None) from error
    said = (found.stdout + found.stderr).strip()
    if NONE_THERE in said:
        return []
    if found.returncode:
        raise EngineUnavailable(
            f"nvidia-smi cannot tell which GPUs there are: {said[-500:] or f'exit code {found.returncode}'}",
            hint="CUDA_VISIBLE_DEVICES= (empty) starts the engine on the CPU",
        )
    return _visible(parse(found.stdout), environ.get("CUDA_VISIBLE_DEVICES"))


def parse(text: str) -> list[Gpu]:
    """Parse nvidia-smi's lines `index, total, free` in MiB. Raises EngineUnavailable for any other output."""
    gpus = []
    for line in filter(None, map(str.strip, text.splitlines())):
        index, *memory = (cell.strip() for cell in line.split(","))
        if not index.isdecimal() or len(memory) != 2:
            raise EngineUnavailable(f"nvidia-smi says {line!r}, which is not a GPU", hint=None)
        total, free = (int(cell) * MIB if cell.isdecimal() else None for cell in memory)
        gpus.append(Gpu(int(index), total, free))
    return gpus


def _visible(gpus: list[Gpu], named: str | None) -> list[Gpu]:
    if named is None:
        return gpus
    names = [name.strip() for name in named.split(",") if name.strip()]
    if not all(name.isdecimal() for name in names):
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES={named} names GPUs by something other than their numbers",
            hint="unset it, and name the GPUs with --gpus",
        )
    return [gpu for gpu in gpus if str(gpu.index) in names]


def group(found: Sequence[Gpu], wanted: Sequence[int] | None, size: int) -> list[Group]:
    """Return a group of `size` GPUs per engine, from the wanted GPUs (None: all). Without GPUs, return one empty
    group for the CPU.

    Raises UsageError if a wanted GPU is missing, or if the number of GPUs is not divisible by `size`.
    """
    there = ", ".join(str(gpu.index) for gpu in found) or "none"
    if wanted is not None:
        by_index = {gpu.index: gpu for gpu in found}
        missing = [str(index) for index in wanted if index not in by_index]
        if missing:
            raise UsageError(f"GPU {', '.join(missing)} is not on this machine; there are: {there}")
        if len(set(wanted)) != len(wanted):
            raise UsageError("--gpus names a GPU twice")
        found = [by_index[index] for index in wanted]
    if not found and size == 1:
        return [()]
    if len(found) < size or (wanted is not None and len(found) % size):
        raise UsageError(f"--tensor-parallel {size} needs {size} GPUs for each engine; there are: {there}")
    return [tuple(found[start : start + size]) for start in range(0, len(found) - size + 1, size)]
