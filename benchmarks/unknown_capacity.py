"""An endpoint of a capacity that nobody is told: how much of it each client finds, and how soon.

256 slots, half a second each. Time is what the endpoint's own clock says, from the first request that comes in to the
last answer that goes out; ideal is rows x seconds / slots, every slot busy from beginning to end.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.serving import Constant, Server, Unavailable, note, run_batch, say, scratch, write_rows

GAUGES = "orch serve, gauges"
BLIND = "orch serve, no gauges"
AUTO = "saturate Auto, gauges"
ORACLE = "plain client that knows the capacity"

Client = Callable[[Path, Constant, Path], None]


def main(argv: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks unknown_capacity", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long a request holds its slot (0.5)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, the clients in turn in each (3)")
    chosen = parser.parse_args(argv)
    ideal = chosen.rows * chosen.seconds / chosen.slots
    clients = _clients(chosen.rows, chosen.slots)
    spans: dict[str, list[float]] = {name: [] for name in clients}
    with scratch() as folder:
        file = folder / "rows.jsonl"
        write_rows(file, chosen.rows)
        for number in range(chosen.repeats):
            for name, client in clients.items():
                # Nothing is known from the round before: a new endpoint, a new folder.
                options = ("--slots", str(chosen.slots), "--seconds", str(chosen.seconds))
                with Constant(*options, *(() if name == BLIND else ("--gauges",))) as upstream:
                    client(file, upstream, folder / f"{len(spans[name])}-{list(clients).index(name)}")
                    seen = upstream.seen()
                if seen["answered"] != chosen.rows:
                    note(f"{name}: {seen['answered']} answers for {chosen.rows} rows")
                spans[name].append(seen["last_at"] - seen["first_at"])
                note(f"round {number + 1}: {name}: {_told(spans[name][-1], ideal, seen)}")
    _tell(spans, ideal, chosen)


def _clients(rows: int, slots: int) -> dict[str, Client]:
    def ours(file: Path, upstream: Constant, folder: Path) -> None:
        with Server(folder, upstream.url) as server:
            run_batch(server, file, rows, every=0.5)

    def saturate(file: Path, upstream: Constant, folder: Path) -> None:
        peers.saturate(file, folder, upstream.url)

    def oracle(file: Path, upstream: Constant, folder: Path) -> None:
        peers.plain(file, folder, upstream.url, slots)

    clients: dict[str, Client] = {GAUGES: ours, BLIND: ours, ORACLE: oracle}
    try:
        peers.saturate_python()
        clients[AUTO] = saturate
    except Unavailable as error:
        say(f"saturate: skipped: {error}")
    return clients


def _told(span: float, ideal: float, seen: dict[str, Any]) -> str:
    full = "never" if seen["full_at"] is None else f"after {seen['full_at'] - seen['first_at']:.2f} s"
    return (
        f"{span:.2f} s, {ideal / span:.1%} of ideal; all slots busy {full}; "
        f"at most {seen['most_running']} ran and {seen['most_waiting']} waited"
    )


def _tell(spans: dict[str, list[float]], ideal: float, chosen: argparse.Namespace) -> None:
    say(
        f"{chosen.slots} slots x {chosen.seconds:g} s, {chosen.rows:,} rows, ideal {ideal:.2f} s; "
        f"medians of {chosen.repeats}, least and most in brackets"
    )
    medians = {name: statistics.median(taken) for name, taken in spans.items()}
    for name, taken in spans.items():
        span = f"{medians[name]:.2f} s [{min(taken):.2f}, {max(taken):.2f}]"
        say(f"{name}: {span}, {ideal / medians[name]:.1%} of ideal")
    say(f"orch serve with gauges: {ideal / medians[GAUGES]:.1%} of ideal (goal 88 %)")
    if AUTO in medians:
        for name in (GAUGES, BLIND):
            say(f"{name}: {medians[AUTO] / medians[name]:.2f}x the speed of saturate Auto (goal 1.7x with gauges)")
