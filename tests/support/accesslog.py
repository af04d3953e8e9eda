"""The access log: one JSON line for each POST received, on disk before anything is answered."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec


class AccessLog:
    """Unbuffered appends, so a line outlives the SIGKILL of anyone. `tries` counts arrivals of scripted bodies."""

    def __init__(self, path: Path | None, bodies: bool) -> None:
        self.tries: Counter[str] = Counter()
        self.bodies = bodies
        self._fd: int | None = None
        if path is not None:
            if path.exists():
                # A restarted upstream goes on in its script, or `die:1` would die for ever.
                self.tries.update(line["sha"] for line in read_log(path) if "try" in line)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, entry: dict[str, Any], body: bytes) -> None:
        if self._fd is None:
            return
        if self.bodies:
            entry["body"] = body.decode(errors="replace")
        os.write(self._fd, msgspec.json.encode(entry) + b"\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Every entry so far: time, path, sha, marker, outcome, running, waiting; try and body where there is one."""
    if not path.exists():
        return []
    data = path.read_bytes()
    # A long line may be read while it is being written: only whole ones count.
    whole = data[: data.rfind(b"\n") + 1]
    return [msgspec.json.decode(line) for line in whole.splitlines()]
