"""Parsers of amounts in orch.toml: memory, GPUs, hours, durations, numbers of engines."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from orchestrator.core import durations
from orchestrator.core.hours import Hours

MOST_ENGINES = 4096
MEMORY_SIZES = {"MB": 10**6, "GB": 10**9, "MIB": 2**20, "GIB": 2**30}


def memory_bytes(value: Any) -> int:
    """Parse `60GiB` or `24 GB` into bytes. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*([MG]I?B)", str(value).strip().upper())
    if found is None or (size := int(Decimal(found[1]) * MEMORY_SIZES[found[2]])) == 0:
        raise ValueError(f"{value!r} is not an amount of memory such as 60GiB or 24GB")
    return size


def gpu_numbers(value: Any) -> tuple[int, ...]:
    """Parse `0-3`, `0,2` or a list of numbers. Raises ValueError."""
    parts = [str(part).strip() for part in (value if isinstance(value, list | tuple) else str(value).split(","))]
    found: list[int] = []
    for part in parts:
        span = re.fullmatch(r"(\d{1,4})(?:\s*-\s*(\d{1,4}))?", part)
        if span is None or int(span[2] or span[1]) < int(span[1]):
            raise ValueError(f"{value!r} are not GPUs such as 0-3 or 0,2")
        found += range(int(span[1]), int(span[2] or span[1]) + 1)
    if len(set(found)) != len(found):
        raise ValueError(f"{value!r} names a GPU twice")
    return tuple(found)


def hours_of(text: str) -> str:
    """Return `text` if it is valid hours, such as `20:00-07:00`. Raises ValueError otherwise."""
    Hours.parse(text)
    return text


def length(value: Any) -> float:
    """Parse a duration such as `10m` into seconds. Raises ValueError if it is invalid or zero."""
    seconds = durations.seconds_of(value) if isinstance(value, str) else None
    if not seconds:
        raise ValueError(f'{value!r} is not a length of time such as "10m" or "1h"')
    return seconds


def engine_counts(value: Any) -> tuple[int, int]:
    """Parse `0..8` or `2` into the minimum and maximum number. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,4})(?:\s*\.\.\s*(\d{1,4}))?", str(value).strip())
    if found is not None:
        least, most = int(found[1]), int(found[2] or found[1])
        if least <= most and 1 <= most <= MOST_ENGINES:
            return least, most
    raise ValueError(f'{value!r} is not a number of engines such as "0..8" or 2 (at most {MOST_ENGINES})')
