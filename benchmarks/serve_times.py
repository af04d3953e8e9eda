"""How long a large file takes: from upload to `in_progress` and to `completed`, and to go on after a kill at 90 %.

200 MB, 50,000 lines, against the constant-answer upstream; beside it, in the same run, what the same file costs those
who only copy it (with fsync), or only read it line by line with the standard library's json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serving import (
    Constant,
    Server,
    Unavailable,
    create,
    download,
    note,
    run_batch,
    say,
    scratch,
    upload,
    wait,
    write_rows,
)

KILL_AT = 0.9
LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Bare:
    """Seconds that the same file takes for a copy with fsync, and for `json.loads` of each line."""

    copy: float
    loads: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """Seconds since the start of the new process; `again`: rows that the upstream was asked twice."""

    ready: float
    first_row: float
    completed: float
    left: int
    again: int


def main(argv: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks serve_times", description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--line-bytes", type=int, default=4_000)
    chosen = parser.parse_args(argv)
    with scratch() as folder, Constant() as upstream:
        file = folder / "rows.jsonl"
        write_rows(file, chosen.rows, chosen.line_bytes)
        size = file.stat().st_size / 1e6
        bare = _bare(file, folder)
        say(
            f"{size:.0f} MB, {chosen.rows:,} lines: copy and fsync {bare.copy:.2f} s, json.loads line by line "
            f"{bare.loads:.2f} s"
        )
        empty = _from_upload(file, folder / "whole", upstream, chosen.rows, bare)
        _tell_resumed(_resumed(file, folder / "killed", upstream, chosen.rows), bare, empty)


def _bare(file: Path, folder: Path) -> Bare:
    copy = folder / "copy"
    began = time.perf_counter()
    shutil.copyfile(file, copy)
    with copy.open("rb") as copied:
        os.fsync(copied.fileno())
    copied_at = time.perf_counter()
    with file.open("rb") as lines:
        for line in lines:
            json.loads(line)
    read_at = time.perf_counter()
    copy.unlink()
    return Bare(copied_at - began, read_at - copied_at)


def _from_upload(file: Path, folder: Path, upstream: Constant, rows: int, bare: Bare) -> float:
    """Print the times of a batch; returns the seconds that the server took to start with nothing to do."""
    with Server(folder, upstream.url) as server:
        start = server.ready_at - server.started_at
        stages = run_batch(server, file, rows, every=LOOK_SECONDS)
    uploaded, checked = stages.seconds("begin", "uploaded"), stages.seconds("begin", "in_progress")
    for what, seconds in (("uploaded", uploaded), ("in_progress", checked)):
        say(
            f"upload to {what}: {seconds:.2f} s; {seconds / (bare.copy + bare.loads):.2f}x of copy and json.loads, "
            f"{seconds / bare.loads:.2f}x of json.loads alone"
        )
    done = stages.seconds("begin", "completed")
    say(f"upload to completed: {done:.2f} s, {rows / done:,.0f} rows/s; {done / bare.loads:.2f}x of json.loads")
    return start


def _resumed(file: Path, folder: Path, upstream: Constant, rows: int) -> Resumed:
    upstream.begin()
    with Server(folder, upstream.url) as server, closing(server.sdk()) as sdk:
        batch_id = create(sdk, upload(sdk, file))
        while (answered := upstream.seen()["answered"]) < KILL_AT * rows:
            if sdk.batches.retrieve(batch_id).status == "failed":
                raise Unavailable("the batch failed")
            time.sleep(LOOK_SECONDS)
        server.kill()
    before = upstream.seen()["received"]
    note(f"killed after {answered:,} answers, {before:,} requests")
    if before >= rows:
        raise Unavailable("the batch was done before it could be killed; take more rows")
    upstream.begin()
    with Server(folder, upstream.url) as server, closing(server.sdk()) as sdk:
        counts = sdk.batches.retrieve(batch_id).request_counts
        batch: Any = wait(sdk, batch_id, every=LOOK_SECONDS)
        completed = time.monotonic() - server.started_at
        download(sdk, batch, rows)
        seen = upstream.seen()
        note(f"it began with {counts}")
    return Resumed(
        server.ready_at - server.started_at,
        seen["first_at"] - server.started_at,
        completed,
        rows - before,
        before + seen["received"] - rows,
    )


def _tell_resumed(resumed: Resumed, bare: Bare, empty: float) -> None:
    say(
        f"killed with {resumed.left:,} rows to go, started again: serves after {resumed.ready:.2f} s, next row sent "
        f"after {resumed.first_row:.2f} s ({resumed.first_row / empty:.2f}x of a start with nothing to do, "
        f"{empty:.2f} s; {resumed.first_row / bare.loads:.2f}x of json.loads over the file), "
        f"completed after {resumed.completed:.2f} s; {resumed.again:,} rows asked again, none lost, none twice"
    )
