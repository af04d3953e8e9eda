"""How long a command takes that only looks, against a bare interpreter that imports the database library."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

REPEATS = 9


def main() -> None:
    """Median seconds of `orch --help`, `orch status`, and of `python -c 'import sqlalchemy'`."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as home:
        orch = (sys.executable, "-m", "orchestrator.cli")
        seconds([*orch, "status"], home)
        found = {
            "orch --help": seconds([*orch, "--help"], home),
            "orch status": seconds([*orch, "status"], home),
            "import sqlalchemy": seconds([sys.executable, "-c", "import sqlalchemy"], home),
        }
    for name, took in found.items():
        ratio = took / found["import sqlalchemy"]
        sys.stdout.write(f"{name}: {took:.3f} s, {ratio:.2f}x of `import sqlalchemy`\n")


def seconds(command: Sequence[str], home: str) -> float:
    """The median of some runs."""
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "ORCH_HOME": home})
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
