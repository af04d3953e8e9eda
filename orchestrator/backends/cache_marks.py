"""Marks for the provider's prompt cache, in a file beside the shard's input.

The input lines stay unchanged, so that orch recognises a lost batch by its lines, with or without marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from orchestrator.core.atomic import durable
from orchestrator.core.json_decoders import json_decoder
from orchestrator.policy.prompt_cache import CacheMark

_decode = json_decoder(tuple[CacheMark, ...]).decode


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.cache")


def write_marks(path: Path, marks: Sequence[CacheMark]) -> None:
    """Write the cache marks for an input file's rows, replacing or removing earlier marks. Raises OSError."""
    if not marks:
        _beside(path).unlink(missing_ok=True)
        return
    with durable(_beside(path)) as file:
        file.write(msgspec.json.encode(marks))


def marks_for(path: Path) -> tuple[CacheMark, ...]:
    """Return the cache marks for an input file's rows. Raises OSError."""
    beside = _beside(path)
    return _decode(beside.read_bytes()) if beside.exists() else ()
