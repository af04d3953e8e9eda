"""What a row costs `orch run` beyond the server in its process: built, sharded, settled, booked and merged with `-o`.

CPU of the whole process, less that of a run of one row, less what the same rows cost `orch serve` from upload to
download; the upstream answers at once. On Postgres the CPU of its own processes is not in it. Rounds are interleaved;
the medians are told.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks import databases, serve_cpu
from benchmarks.serving import Constant, note, say, scratch, write_rows
from tests.support.postgres import PostgresServer, postgres_server

GOAL = 150
KINDS = ("SQLite", "Postgres")


def main(argv: Sequence[str] = ()) -> None:
    """Measure and print a line for each database."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pipeline", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(argv)
    served: list[float] = []
    one_row: dict[str, list[float]] = {kind: [] for kind in KINDS}
    all_rows: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with scratch() as folder, Constant() as upstream, postgres_server(databases.SERVER) as server:
        one, many = folder / "one.jsonl", folder / "many.jsonl"
        write_rows(one, 1)
        write_rows(many, chosen.rows)
        for number in range(chosen.rounds):
            served.append(serve_cpu.serve(folder / f"served-{number}", upstream, chosen.rows).cpu)
            for kind in KINDS:
                where = server if kind == "Postgres" else None
                one_row[kind].append(_cpu(folder / f"{kind}-{number}-one", one, upstream, where))
                all_rows[kind].append(_cpu(folder / f"{kind}-{number}-many", many, upstream, where))
                note(f"{kind}: {all_rows[kind][-1]:.2f} s of CPU, of one row {one_row[kind][-1]:.2f} s")
    server_row = median(served)
    for kind in KINDS:
        row = (median(all_rows[kind]) - median(one_row[kind])) / chosen.rows * 1e6
        say(
            f"pipeline {chosen.rows:,} rows on {kind}: {row - server_row:.0f} us CPU a row beyond `orch serve` "
            f"(goal {GOAL}), {row / server_row - 1:.1f}x of it; the run {row:.0f}, `orch serve` {server_row:.0f}"
        )


def _cpu(home: Path, source: Path, upstream: Constant, server: PostgresServer | None) -> float:
    return databases.run_once(home, source, upstream.url, server).cpu


if __name__ == "__main__":
    main()
