"""`orch run` from file to file on SQLite and on Postgres, side by side: the same rows and upstream, fresh homes.

The upstream answers at once, so that what differs is the database. Postgres is a server of its own with the settings
that it comes with (`fsync` among them), and a new, empty database for each run; `--no-autovacuum` leaves its
statistics to orch. Rounds are interleaved; the medians make the ratio.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.serving import ROOT, Constant, Unavailable, note, say, scratch, write_rows
from tests.support.postgres import PostgresServer, postgres_server

SETTINGS = """\
[backends.local]
upstreams = ["{url}"]
location = "local"
idle = true
"""
SERVER = ("max_wal_size=4GB",)
"""The default would count checkpoints: one each GB of WAL."""


@dataclass(frozen=True, slots=True)
class Run:
    """One `orch run`: wall seconds, CPU seconds of its process, its peak of resident memory in MB (2**20 bytes)."""

    seconds: float
    cpu: float
    peak: float


def main(argv: Sequence[str] = ()) -> None:
    """Measure and print a line for each number of rows."""
    chosen = _parser().parse_args(argv)
    options = (*SERVER, "autovacuum=off") if chosen.no_autovacuum else SERVER
    with scratch() as folder, Constant() as upstream, postgres_server(options) as server:
        cost: dict[str, list[tuple[int, float]]] = {}  # CPU seconds by rows
        for rows in chosen.rows:
            source = folder / f"rows-{rows}.jsonl"
            write_rows(source, rows)
            seen: dict[str, list[Run]] = {"SQLite": [], "Postgres": []}
            for number in range(chosen.rounds):
                for kind, found in seen.items():
                    if chosen.only in (None, kind):
                        home = folder / f"{kind}-{rows}-{number}"
                        found.append(run_once(home, source, upstream.url, server if kind == "Postgres" else None))
                        note(f"{rows:,} rows on {kind}: {found[-1].seconds:.1f} s")
            say(f"databases {rows:,} rows: {_told(rows, seen)}")
            source.unlink()
            for kind, runs in seen.items():
                if runs:
                    cost.setdefault(kind, []).append((rows, median(run.cpu for run in runs)))
    for kind, costs in cost.items():
        _tell_further(kind, costs)


def _tell_further(kind: str, costs: Sequence[tuple[int, float]]) -> None:
    """What a further row costs from one number of rows to the next: the same, where the time is linear."""
    slopes = [
        (fewer, more, (last - first) / (more - fewer) * 1e6)
        for (fewer, first), (more, last) in pairwise(sorted(costs))
    ]
    if slopes:
        base = slopes[0][2]
        told = (f"{fewer:,} to {more:,} rows {each:.0f} us ({each / base:.2f}x)" for fewer, more, each in slopes)
        say(f"databases {kind}: CPU of a further row: {'; '.join(told)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks databases", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 20_000, 200_000])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=("SQLite", "Postgres"))
    parser.add_argument("--no-autovacuum", action="store_true")
    return parser


def _told(rows: int, seen: dict[str, list[Run]]) -> str:
    walls = {kind: median(run.seconds for run in runs) for kind, runs in seen.items() if runs}
    told = [
        f"{kind} {walls[kind]:.1f} s, {median(run.cpu for run in runs) / rows * 1e6:.0f} µs of CPU a row, "
        f"{max(run.peak for run in runs):.0f} MB"
        for kind, runs in seen.items()
        if runs
    ]
    if len(walls) == len(seen):
        told.append(f"Postgres / SQLite {walls['Postgres'] / walls['SQLite']:.2f}x")
    return "; ".join(told)


def run_once(home: Path, source: Path, upstream: str, server: PostgresServer | None) -> Run:
    """A run of the rows of `source` in a new folder; None as the server stands for SQLite. Raises Unavailable."""
    home.mkdir(mode=0o700)
    (home / "orch.toml").write_text(SETTINGS.format(url=upstream), encoding="utf-8")
    output = home / "out.jsonl"
    command = [sys.executable, "-m", "orchestrator.cli", "run", str(source), "--quiet", "-o", str(output)]
    with _database(server) as address:
        more = {"ORCH_CONFIG": str(home / "orch.toml"), "ORCH_HOME": str(home), **address}
        began = time.monotonic()
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **more}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise Unavailable(f"`orch run` ended with {process.returncode}")
        run = Run(time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
    _check(output, source)
    return run


@contextmanager
def _database(server: PostgresServer | None) -> Iterator[dict[str, str]]:
    if server is None:
        yield {}
        return
    with server.database() as url:
        yield {"ORCH_DATABASE_URL": url}


def _check(merged: Path, source: Path) -> None:
    """Raises Unavailable where a row is lost."""
    with merged.open("rb") as results, source.open("rb") as rows:
        found, wanted = sum(b'"status_code":200' in line for line in results), sum(1 for _ in rows)
    if found != wanted:
        raise Unavailable(f"{wanted:,} rows gave {found:,} answers")
