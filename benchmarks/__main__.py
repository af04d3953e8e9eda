"""`python -m benchmarks [NAME ...]` runs them all, or those named; `NAME --help` tells the options of one.

`--table FILE` alone runs them all with the rounds that the README asks for, and writes what they said as a table.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from benchmarks import (
    build,
    changes,
    databases,
    frames,
    hosted,
    morning,
    ocr,
    order,
    pages,
    pipeline,
    reading,
    routing,
    scans,
    serve_cpu,
    serve_times,
    serve_vllm,
    startup,
    thousand_engines,
    unknown_capacity,
)
from benchmarks.measured import Measured, busy_share, write_table
from benchmarks.serving import SAID, Unavailable, say

PLAIN: dict[str, Callable[[], None]] = {
    "build": build.main,
    "ocr": ocr.main,
    "order": order.main,
    "reading": reading.main,
    "scans": scans.main,
    "startup": startup.main,
}
WITH_OPTIONS: dict[str, Callable[[Sequence[str]], None]] = {
    "changes": changes.main,
    "serve_cpu": serve_cpu.main,
    "unknown_capacity": unknown_capacity.main,
    "serve_times": serve_times.main,
    "serve_vllm": serve_vllm.main,
    "databases": databases.main,
    "frames": frames.main,
    "pipeline": pipeline.main,
    "hosted": hosted.main,
    "pages": pages.main,
    "morning": morning.main,
    "routing": routing.main,
    "thousand_engines": thousand_engines.main,
}
OF_TABLE: tuple[tuple[str, ...], ...] = (
    ("startup",),
    ("serve_cpu", "--rows", "20000", "--peer-rows", "2000", "--rounds", "7"),
    ("pipeline", "--rounds", "7"),
    ("hosted", "--rows", "100000", "--rounds", "7"),
    ("hosted", "--rows", "1000000"),
    ("changes", "--rounds", "7"),
    ("build",),
    ("frames", "--rounds", "7"),
    ("reading",),
    ("morning",),
    ("databases", "--rows", "10000", "100000", "1000000"),
    ("unknown_capacity",),
    ("serve_times",),
    ("thousand_engines",),
    ("order",),
    ("pages", "--parts", "paint", "tells", "slow"),
    ("scans",),
    ("ocr",),
    ("serve_vllm",),
    ("routing",),
)
"""Calls of `--table`: what a user waits for first, and seven rounds where they take minutes."""


def main(argv: Sequence[str]) -> int:
    """Run what is named; the exit code is 1 where something cannot be measured here."""
    if argv[:1] == ["--table"] and len(argv) == 2:
        return _table(Path(argv[1]))
    start = next((place for place, word in enumerate(argv) if word.startswith("-")), len(argv))
    names, options = argv[:start] or [*PLAIN, *WITH_OPTIONS], argv[start:]
    unknown = [name for name in names if name not in PLAIN and name not in WITH_OPTIONS]
    if unknown or (options and (len(names) != 1 or names[0] in PLAIN)):
        what = f"no benchmark {unknown[0]!r}" if unknown else "options go with the one benchmark that has them"
        sys.stderr.write(f"{what}; there are: {', '.join([*PLAIN, *WITH_OPTIONS])}\n")
        return 2
    code = 0
    for name in names:
        code |= not _ran(name, options)
    return code


def _ran(name: str, options: Sequence[str]) -> bool:
    try:
        PLAIN[name]() if name in PLAIN else WITH_OPTIONS[name](options)
    except Unavailable as error:
        say(f"{name}: skipped: {error}")
        return False
    return True


def _table(path: Path) -> int:
    measured, code = list[Measured](), 0
    for name, *options in OF_TABLE:
        SAID.clear()
        busy, began = busy_share(), time.monotonic()
        try:
            code |= not _ran(name, options)
        except Exception as error:  # noqa: BLE001 (the benchmarks after it are measured all the same)
            say(f"{name}: failed: {type(error).__name__}: {error}")
            code = 1
        measured.append(Measured(" ".join((name, *options)), tuple(SAID), time.monotonic() - began, busy))
        write_table(path, measured)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    # As an exception, so that folders and processes are cleared away.
    raise SystemExit(128 + number)


signal.signal(signal.SIGTERM, _interrupt)
sys.exit(main(sys.argv[1:]))
