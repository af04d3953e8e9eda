"""The table of `make bench`: what each benchmark said, how long it took, and what else the machine did before it."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.serving import ROOT

LOOK_SECONDS = 2.0
IDLE = 0.05
"""Least share of the processors that counts as other work on the machine."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One benchmark: its command, its lines of results, its seconds, the share of the processors busy before it."""

    command: str
    said: tuple[str, ...]
    seconds: float
    busy: float


def busy_share(seconds: float = LOOK_SECONDS) -> float:
    """Share of the processors' time that is not idle, over the next `seconds`. From /proc/stat."""
    before = _processor_times()
    time.sleep(seconds)
    spent, idle = (after - then for after, then in zip(_processor_times(), before, strict=True))
    return 1 - idle / spent if spent else 0.0


def _processor_times() -> tuple[int, int]:
    # "cpu user nice system idle iowait irq softirq steal guest guest_nice"; guests are in user and nice already.
    times = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return sum(times), times[3] + times[4]


def write_table(path: Path, measured: Sequence[Measured]) -> None:
    """Write a page of Markdown with one table; each line that a benchmark said is one row."""
    lines = [
        "# Measured",
        "",
        f"Written by `make bench` on {datetime.now(UTC):%Y-%m-%d}, {_commit()}, {_machine()}.",
        "",
        "| benchmark | minutes | said |",
        "|---|---|---|",
    ]
    for one in measured:
        shown = f"`{one.command}`"
        if one.busy >= IDLE:
            shown += f" (the machine was {one.busy:.0%} busy before it)"
        minutes = f"{one.seconds / 60:.1f}"
        for said in [text for line in one.said for text in line.split("\n") if text.strip()] or ["nothing"]:
            lines.append(f"| {shown} | {minutes} | {' '.join(said.split()).replace('|', chr(92) + '|')} |")
            shown = minutes = ""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} processors, {memory:.0f} GiB of memory, Python {platform.python_version()}"


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return f"commit `{found.stdout.strip()}`" if found.returncode == 0 else "no commit known"
