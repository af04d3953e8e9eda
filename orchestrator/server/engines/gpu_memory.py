"""Checks within a second if a model fits into the GPUs' memory. vLLM itself needs minutes to find out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from orchestrator.server.engines.gpus import Group
from orchestrator.server.engines.options import value_of

GIB = 1024**3
UTILIZATION = 0.92
"""Default of --gpu-memory-utilization in vLLM 0.32."""
OVERHEAD = 1.10
ROOM = 1 * GIB
"""Minimum bytes that an engine needs besides its weights: activations, CUDA graphs, a small KV cache."""
INDEX = "*.safetensors.index.json"
UNJUDGED = (
    *("--quantization", "-q", "--cpu-offload-gb", "--kv-cache-memory-bytes", "--load-format"),
    *("--model-loader-extra-config", "--config"),
)
"""Options that make a model's file size a poor guide to the memory it needs."""


class DoesNotFit(Struct, frozen=True):
    """The reason why a model does not fit, with figures, and a hint. `passes` is true if other processes use the GPU
    now.
    """

    reason: str
    hint: str
    passes: bool = False


def judge(weights: int | None, group: Group, utilization: float) -> DoesNotFit | None:
    """Return why an engine on `group` cannot hold `weights` bytes (None: unknown), or None.

    vLLM takes `utilization` of each GPU's memory, which must be free at the start, and divides the weights equally.
    """
    need = None if weights is None else int(weights / max(1, len(group)) * OVERHEAD) + ROOM
    for gpu in group:
        if gpu.total is None:
            continue
        budget = int(gpu.total * utilization)
        share = f"{utilization:g} of {_gib(gpu.total)}"
        if need is not None and weights is not None and need > budget:
            of = "" if len(group) == 1 else f" over {len(group)} GPUs"
            return DoesNotFit(
                f"the model does not fit GPU {gpu.index}: its weights of {_gib(weights)}{of} need {_gib(need)}, "
                f"and vLLM may use {_gib(budget)} of it ({share})",
                _more(weights, budget, len(group)),
            )
        if gpu.free is not None and gpu.free < budget:
            return DoesNotFit(
                f"GPU {gpu.index} is not free: vLLM takes {_gib(budget)} ({share}), and {_gib(gpu.free)} are free",
                _less(gpu.free, gpu.total, need),
                passes=True,
            )
    return None


def _more(weights: int, budget: int, size: int) -> str:
    while size <= 64 and weights / size * OVERHEAD + ROOM > budget:
        size *= 2
    return f"more GPUs for each engine (--tensor-parallel {size}), or a quantised or smaller model"


def _less(free: int, total: int, need: int | None) -> str:
    # A hundredth less than the free share: the engine's own context takes some memory before vLLM measures.
    share = int(free / total * 100 - 1) / 100
    if share <= 0 or (need is not None and share * total < need):
        return "end what uses the GPU (nvidia-smi shows it), or choose others with --gpus"
    return f"end what uses the GPU (nvidia-smi shows it), or share it: -- --gpu-memory-utilization {share:g}"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def utilization_of(options: Sequence[str]) -> float:
    """Return the share of each GPU's memory that vLLM may use with these options, from 0 to 1."""
    try:
        return float(value_of(options, "--gpu-memory-utilization") or UTILIZATION)
    except ValueError:
        return UTILIZATION  # vLLM itself reports the invalid value


def can_judge(options: Sequence[str]) -> bool:
    """True if, with these options, a model's file size shows how much memory it needs."""
    return all(value_of(options, name) is None for name in UNJUDGED)


def weights_bytes(model: str, options: Sequence[str], environ: Mapping[str, str]) -> int | None:
    """Return the memory of a model's weights in bytes, computed from its files; None if the files are not on this
    disk.

    `model` is a folder, a file, or the name of a model that may be in the Hub's cache.
    """
    place = Path(model)
    if place.is_file():
        return place.stat().st_size
    folder = place if place.is_dir() else _cached(model, value_of(options, "--revision") or "main", environ)
    if folder is None:
        return None
    files = _weight_files(folder)
    size = sum(file.stat().st_size for file in files)
    # By default vLLM loads 32-bit weights as 16-bit.
    halved = _saved_as(folder) == "float32" and value_of(options, "--dtype") not in ("float32", "float")
    return (size // 2 if halved else size) or None


def _weight_files(folder: Path) -> list[Path]:
    for index in sorted(folder.glob(INDEX)):
        names = _json(index).get("weight_map")
        files = [folder / name for name in set(names.values())] if isinstance(names, dict) else []
        if files and all(file.is_file() for file in files):
            return files
    safetensors = list(folder.glob("*.safetensors"))
    # Some folders contain a model twice, the second time as one file.
    parts = [file for file in safetensors if not file.name.startswith(("consolidated", "adapter"))]
    return parts or safetensors or list(folder.glob("pytorch_model*.bin")) or list(folder.glob("*.bin"))


def _cached(name: str, revision: str, environ: Mapping[str, str]) -> Path | None:
    home = Path(environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    try:
        commit = (cache / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = revision
    found = cache / "snapshots" / commit
    return found if found.is_dir() else None


def _saved_as(folder: Path) -> str | None:
    config = _json(folder / "config.json")
    kind = config.get("dtype", config.get("torch_dtype"))
    return kind if isinstance(kind, str) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
