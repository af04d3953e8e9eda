"""One dispatcher in front of very many engines: which part of their slots is busy, and what that costs it.

The engines are all in one process (engines.py), each with eight slots, vLLM's gauges, and requests that take seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from benchmarks.serving import (
    ROOT,
    Server,
    Unavailable,
    cpu_seconds,
    create,
    end,
    get,
    note,
    peak_mb,
    say,
    scratch,
    tied,
    upload,
    write_rows,
)

RAMP_SECONDS = 45.0


class Engines:
    """The process with all of them."""

    def __init__(self, count: int, slots: int, seconds: float) -> None:
        options = ("--engines", str(count), "--slots", str(slots), "--seconds", str(seconds))
        command = (sys.executable, "-m", "benchmarks.engines", *options)
        self.process = tied(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Unavailable("the engines did not start: more open files are needed (ulimit -n)")
        self.ports: list[int] = json.loads(line)["ports"]

    def ask(self) -> dict[str, Any]:
        """What they did since this was asked last."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


def main(argv: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks thousand_engines", description=__doc__)
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long a request holds its slot (8)")
    parser.add_argument("--window", type=float, default=60.0, help="seconds measured, behind the ramp (60)")
    chosen = parser.parse_args(argv)
    per_second = chosen.engines * chosen.slots / chosen.seconds
    rows = int(per_second * (RAMP_SECONDS + chosen.window + 30))
    engines = Engines(chosen.engines, chosen.slots, chosen.seconds)
    try:
        with scratch() as folder:
            write_rows(folder / "rows.jsonl", rows)
            urls = [f"http://127.0.0.1:{port}/v1" for port in engines.ports]
            more = [word for url in urls[1:] for word in ("--upstream", url)]
            with Server(folder / "server", urls[0], *more) as server, closing(server.sdk()) as sdk:
                server.wait_ready()
                create(sdk, upload(sdk, folder / "rows.jsonl"))
                begun = time.monotonic()
                while time.monotonic() - begun < RAMP_SECONDS:
                    time.sleep(5)
                    found = engines.ask()
                    note(f"{time.monotonic() - begun:.0f} s: {found['used'] / found['there']:.1%} of slots busy")
                engines.ask()
                cpu, ours = cpu_seconds(server.pid), cpu_seconds(engines.process.pid)
                at, done = time.monotonic(), _done(server)
                time.sleep(chosen.window)
                found = engines.ask()
                seconds, answered = time.monotonic() - at, _done(server) - done
                cpu, ours = cpu_seconds(server.pid) - cpu, cpu_seconds(engines.process.pid) - ours
                _tell(chosen, found, seconds, answered, cpu, ours, peak_mb(server.pid))
    finally:
        end(engines.process)


def _done(server: Server) -> int:
    """Rows that have ended."""
    samples = get(f"{server.url}/metrics").decode().splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in samples if line.startswith("orch_rows_total{"))


def _tell(
    chosen: argparse.Namespace,
    found: dict[str, Any],
    seconds: float,
    rows: int,
    cpu: float,
    theirs: float,
    peak: float,
) -> None:
    say(
        f"{chosen.engines} engines x {chosen.slots} slots, {chosen.seconds:g} s a row, {seconds:.0f} s: "
        f"{found['used'] / found['there']:.1%} of slots busy (goal 95 %); {rows / seconds:.0f} rows/s"
    )
    say(
        f"the dispatcher: {cpu / seconds:.1%} of a core, {cpu / max(1, rows) * 1e3:.2f} ms CPU a row, "
        f"{peak:.0f} MB peak; the engines' process {theirs / seconds:.1%} of a core"
    )
