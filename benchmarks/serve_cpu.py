"""What a row costs `orch serve`, from upload to download, durable: CPU and memory, beside `saturate` on such rows.

The upstream answers at once and always the same, so all that is measured is the client: the CPU of the whole server
process (user and system, all threads) from before the upload until after the download; of a peer, its whole process.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks import peers
from benchmarks.serving import (
    Constant,
    Server,
    Stages,
    Unavailable,
    note,
    peak_mb,
    run_batch,
    say,
    scratch,
    write_rows,
)

NAMES = {"uploaded": "upload", "in_progress": "checking", "completed": "run", "downloaded": "download"}
PLAIN_CONCURRENCY = 64
GOAL = 20


@dataclass(frozen=True, slots=True)
class Cost:
    """What a batch of `rows` cost. CPU in microseconds a row, memory in MB."""

    rows: int
    cpu: float
    peak_mb: float
    idle_mb: float
    by_stage: dict[str, float]
    seconds: float


def main(argv: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks serve_cpu", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows for the server (100,000)")
    parser.add_argument("--peer-rows", type=int, default=100_000, help="rows for the peers (100,000); 0: no peers")
    parser.add_argument("--large", type=int, default=1_000_000, help="rows for the memory (1,000,000); 0: none")
    parser.add_argument("--rounds", type=int, default=0, help="short rounds of server and saturate in turn, only")
    chosen = parser.parse_args(argv)
    with scratch() as folder, Constant() as upstream:
        if chosen.rounds:
            _in_turn(folder, upstream, chosen.rows, chosen.peer_rows, chosen.rounds)
            return
        cost = serve(folder, upstream, chosen.rows)
        _tell(cost)
        if chosen.peer_rows:
            _beside_peers(folder, upstream, chosen.peer_rows, cost)
        if chosen.large:
            large = serve(folder, upstream, chosen.large)
            _tell(large)
            say(
                f"peak memory: {cost.peak_mb:.0f} MB at {cost.rows:,} rows, {large.peak_mb:.0f} MB at "
                f"{large.rows:,}; ratio {large.peak_mb / cost.peak_mb:.2f}x"
            )


def _in_turn(folder: Path, upstream: Constant, rows: int, peer_rows: int, rounds: int) -> None:
    """Server and `saturate` one after the other, again and again: other work on the machine meets both."""
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(rounds):
        ours.append(serve(folder / f"serve-{number}", upstream, rows).cpu)
        file = folder / "rows.jsonl"
        write_rows(file, peer_rows)
        theirs.append(_own(peers.saturate(file, folder / f"saturate-{number}", upstream.url)))
        note(f"orch serve {ours[-1]:.1f} us CPU a row, saturate {theirs[-1]:.1f}")
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    say(
        f"CPU a row, {rounds} rounds in turn: orch serve {median(ours):.1f} us [{min(ours):.1f}, {max(ours):.1f}], "
        f"saturate without its start {median(theirs):.1f} us; {median(ratios):.1f}x [{min(ratios):.1f}, "
        f"{max(ratios):.1f}] (goal {GOAL}x)"
    )


def serve(folder: Path, upstream: Constant, rows: int) -> Cost:
    """The cost of a batch of so many rows, in a folder that is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "rows.jsonl"
    write_rows(file, rows)
    # A server of its own each time: what one has learned, or still holds, is nothing to the next.
    with Server(folder / f"serve-{rows}", upstream.url) as server:
        idle = peak_mb(server.pid)
        stages = run_batch(server, file, rows)
        peak = peak_mb(server.pid)
    return Cost(
        rows,
        stages.cpu("begin", "downloaded") / rows * 1e6,
        peak,
        idle,
        _by_stage(stages, rows),
        stages.seconds("begin", "downloaded"),
    )


def _by_stage(stages: Stages, rows: int) -> dict[str, float]:
    pairs = pairwise(stages.moments)
    return {NAMES[last]: stages.cpu(first, last) / rows * 1e6 for first, last in pairs}


def _tell(cost: Cost) -> None:
    parts = ", ".join(f"{name} {cpu:.1f}" for name, cpu in cost.by_stage.items())
    say(
        f"orch serve, {cost.rows:,} rows: {cost.cpu:.1f} us CPU a row ({parts}); "
        f"{cost.peak_mb:.0f} MB peak ({cost.idle_mb:.0f} before the first row); {cost.seconds:.1f} s"
    )


def _beside_peers(folder: Path, upstream: Constant, rows: int, cost: Cost) -> None:
    file = folder / "rows.jsonl"
    write_rows(file, rows)
    plain = peers.plain(file, folder / "plain", upstream.url, PLAIN_CONCURRENCY)
    plain_cpu = _own(plain)
    say(
        f"plain aiohttp client, {PLAIN_CONCURRENCY} at a time, nothing durable, {rows:,} rows: {plain_cpu:.1f} us "
        f"CPU a row, {plain.peak_mb:.0f} MB peak; ratio to orch serve {plain_cpu / cost.cpu:.2f}x"
    )
    try:
        ran = peers.saturate(file, folder / "saturate", upstream.url)
    except Unavailable as error:
        say(f"saturate: skipped: {error}")
        return
    if ran.rows != rows:
        raise Unavailable(f"saturate answered {ran.rows} of {rows} rows")
    own = _own(ran)
    say(
        f"{peers.SATURATE}, Auto, a part each {peers.FLUSH_ROWS:,} rows, {rows:,} rows: {own:.1f} us CPU a row "
        f"without its start ({ran.cpu / rows * 1e6:.1f} with; its imports take {ran.import_seconds:.2f} s); "
        f"{ran.peak_mb:.0f} MB peak; {ran.seconds:.1f} s"
    )
    say(f"CPU a row, saturate without its start to orch serve: {own / cost.cpu:.1f}x (goal {GOAL}x)")


def _own(ran: peers.Ran) -> float:
    """CPU microseconds a row of a peer, without what it used before the first one."""
    return (ran.cpu - ran.import_cpu) / ran.rows * 1e6
