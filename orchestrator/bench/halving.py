"""Search for an engine's best settings by successive halving. Returns the next run, or the winner.

All settings run for a short time, then the better half runs for twice as long, and so on. The engine's defaults run
in every round, for comparison with the winner. The winner is repeated until it has three runs of the longest
duration. Settings with which the engine fails or does not start are excluded.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from math import ceil
from statistics import median

from msgspec import Struct

REPEATS = 3
SEED = 13
FULL = 24
"""Maximum number of settings in a full contest."""
SPACE: dict[str, tuple[tuple[str, ...], ...]] = {
    "max_num_seqs": (("--max-num-seqs", "64"), ("--max-num-seqs", "512"), ("--max-num-seqs", "1024")),
    "max_num_batched_tokens": (
        ("--max-num-batched-tokens", "4096"),
        ("--max-num-batched-tokens", "16384"),
    ),
    "gpu_memory_utilization": (("--gpu-memory-utilization", "0.85"), ("--gpu-memory-utilization", "0.95")),
    "prefix_caching": (("--enable-prefix-caching",), ("--no-enable-prefix-caching",)),
    "chunked_prefill": (("--enable-chunked-prefill",), ("--no-enable-chunked-prefill",)),
}
"""Values to try for each vLLM setting, in addition to its default."""


class TuneRun(Struct, frozen=True):
    """A run of vLLM with `options`, empty for the defaults. `rows_per_second` is None if the run failed."""

    options: tuple[str, ...]
    round: int
    rows_per_second: float | None


class Contest(Struct, frozen=True):
    """The next options to try, with their round and their duration in seconds. `left` counts the remaining runs."""

    options: tuple[str, ...]
    round: int
    seconds: float
    left: int


class Winner(Struct, frozen=True):
    """The best settings, by the median of their runs in the last round, and the last rate of the defaults.

    The fields are None if all settings failed.
    """

    options: tuple[str, ...] | None
    rows_per_second: float | None
    default_rows_per_second: float | None


def tunings(effort: str, *, on_gpu: bool) -> list[tuple[str, ...]]:
    """Return the settings that a `quick` or `full` contest tries, the defaults first.

    `quick` changes one setting at a time. `full` adds the same combinations each time. Without a GPU, the setting for
    GPU memory is omitted.
    """
    space = {name: values for name, values in SPACE.items() if on_gpu or name != "gpu_memory_utilization"}
    found: list[tuple[str, ...]] = [(), *(value for values in space.values() for value in values)]
    if effort == "full":
        combined = [
            tuple(word for value in values for word in value)
            for values in product(*(((), *values) for values in space.values()))
            if sum(bool(value) for value in values) > 1
        ]
        random.Random(SEED).shuffle(combined)
        found += combined[: max(0, FULL - len(found))]
    return found


def contest_of(
    candidates: Sequence[tuple[str, ...]], runs: Sequence[TuneRun], first_seconds: float = 10.0
) -> Contest | Winner:
    """Return the next options to try after these runs, or the winner. The candidate () means the defaults.

    Runs of the first round take `first_seconds`. Runs of each later round take twice as long as before.
    """
    entered = list(dict.fromkeys([(), *candidates]))
    number = 0
    while True:  # ends, because each round has fewer candidates or is the last
        made = {run.options: run for run in runs if run.round == number}
        for options in entered:
            if options not in made:
                missing = sum(one not in made for one in entered)
                return Contest(options, number, first_seconds * 2**number, missing + _remaining_runs(len(entered)))
        standing = [made[options] for options in entered]
        well = sorted(
            (run for run in standing if run.rows_per_second is not None), key=lambda run: -(run.rows_per_second or 0)
        )
        if not well:
            return Winner(None, None, None)
        if len(well) <= 2:
            return _final(well[0].options, number, runs, first_seconds)
        kept = [run.options for run in well[: ceil(len(well) / 2)]]
        entered = list(dict.fromkeys([(), *kept])) if made[()].rows_per_second is not None else kept
        if len(entered) == len(standing):
            return _final(well[0].options, number, runs, first_seconds)
        number += 1


def _remaining_runs(entered: int) -> int:
    total = 0
    while entered > 2:
        entered = max(2, ceil(entered / 2))
        total += entered
    return total + REPEATS - 1


def _final(options: tuple[str, ...], number: int, runs: Sequence[TuneRun], first_seconds: float) -> Contest | Winner:
    """Return the winner once all its repeats are done, or else the next repeat. Each repeat counts as a round."""
    last = [run for run in runs if run.options == options and run.round >= number]
    rates = [run.rows_per_second for run in last if run.rows_per_second is not None]
    if len(last) < REPEATS:
        seconds = first_seconds * 2**number
        return Contest(options, number + len(last), seconds, REPEATS - len(last))
    default = [run.rows_per_second for run in runs if not run.options and run.rows_per_second is not None]
    return Winner(options, median(rates) if rates else None, default[-1] if default else None)
