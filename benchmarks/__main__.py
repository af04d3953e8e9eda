"""`python -m benchmarks [NAME ...]` runs them all, or those named; `NAME --help` tells the options of one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
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
from benchmarks.serving import Unavailable

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


def main(argv: Sequence[str]) -> int:
    """Run what is named; the exit code is 1 where something cannot be measured here."""
    start = next((place for place, word in enumerate(argv) if word.startswith("-")), len(argv))
    names, options = argv[:start] or [*PLAIN, *WITH_OPTIONS], argv[start:]
    unknown = [name for name in names if name not in PLAIN and name not in WITH_OPTIONS]
    if unknown or (options and (len(names) != 1 or names[0] in PLAIN)):
        what = f"no benchmark {unknown[0]!r}" if unknown else "options go with the one benchmark that has them"
        sys.stderr.write(f"{what}; there are: {', '.join([*PLAIN, *WITH_OPTIONS])}\n")
        return 2
    code = 0
    for name in names:
        try:
            PLAIN[name]() if name in PLAIN else WITH_OPTIONS[name](options)
        except Unavailable as error:
            sys.stdout.write(f"{name}: skipped: {error}\n")
            code = 1
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    # As an exception, so that folders and processes are cleared away.
    raise SystemExit(128 + number)


signal.signal(signal.SIGTERM, _interrupt)
sys.exit(main(sys.argv[1:]))
