"""Host memory of an engine with all its processes, from /proc."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def tree_bytes(pid: int) -> int:
    """Return the resident bytes of a process and its descendants; 0 if it is gone."""
    below: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may contain spaces and brackets itself; state and parent follow the last bracket.
            below[int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])].append(int(stat.parent.name))
        except (OSError, IndexError, ValueError):
            continue  # it ended during the scan
    found, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        waiting += below[one]
        found += _resident(one)
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
