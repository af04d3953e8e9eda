"""Results of a bench: concurrencies, modes, row orders, engine settings and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.bench.halving import TuneRun, Winner
from orchestrator.bench.point import BenchPoint, PointEnd, rounded
from orchestrator.bench.rows import Mode
from orchestrator.bench.sweep import Knee, NoKnee
from orchestrator.bench.verdict import Verdict
from orchestrator.core.counts import number_of
from orchestrator.core.durations import HOUR, duration
from orchestrator.core.engines import EngineRates

GIB = 1024**3


class Measured(Struct, frozen=True):
    """The measured points of a bench.

    `window` is the window of dynamic batching in seconds. `order` is the order in which rows were sent. For
    `prefill`, answers had one token. `file_order` is None if the rows were sent in file order anyway.
    """

    sweep: tuple[BenchPoint, ...]
    knee: Knee | NoKnee
    prefill: BenchPoint | None
    modes: tuple[BenchPoint, ...]
    window: float
    file_order: BenchPoint | None
    order: str

    @property
    def at_knee(self) -> BenchPoint | None:
        """The point at the knee; None if there is no knee."""
        if isinstance(self.knee, NoKnee):
            return None
        return next(one for one in self.sweep if one.concurrency == self.knee.concurrency)


class TunePoint(Struct, frozen=True):
    """A run with certain engine settings. If the engine failed or did not start, `problem` replaces `result`."""

    options: tuple[str, ...]
    round: int
    result: BenchPoint | None
    problem: str | None

    @property
    def run(self) -> TuneRun:
        return TuneRun(self.options, self.round, None if self.result is None else self.result.rows_per_second)

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        return rounded(self)  # type: ignore[no-any-return]

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> TunePoint:
        return msgspec.convert(told, cls)


class Tuned(Struct, frozen=True):
    """All runs with engine settings, and the winner."""

    points: tuple[TunePoint, ...]
    winner: Winner

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        told = rounded(self.winner)
        return {"winner": told.pop("options"), **told, "points": [point.to_json() for point in self.points]}

    @property
    def words(self) -> str:
        winner = self.winner
        if winner.options is None or winner.rows_per_second is None:
            return "no settings worked: every engine failed to start or to answer"
        if not winner.options:
            return f"settings: the engine's defaults are best, {_per_hour(winner.rows_per_second)}"
        told = f"settings: {' '.join(winner.options)} is best, {_per_hour(winner.rows_per_second)}"
        if winner.default_rows_per_second is None:
            return f"{told}; the defaults fail"
        more = winner.rows_per_second / winner.default_rows_per_second - 1
        return f"{told}, {more:+.0%} against the defaults"


class BenchReport(Struct, frozen=True):
    """Report of a bench at a backend, with `rows` of a job's `job_rows`. `left_out` rows are for other models.

    `rates` are the figures that `--apply` stores; None if there is no knee. `notes` are sentences.
    """

    job: str
    backend: str
    model: str
    engine_version: str | None
    gpus: tuple[str, ...]
    options: tuple[str, ...]
    rows: int
    job_rows: int
    documents: int
    left_out: int
    measured: Measured
    tuned: Tuned | None
    verdict: Verdict | None
    rates: EngineRates | None
    is_applied: bool
    at: datetime
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        version = f", {self.engine_version}" if self.engine_version else ""
        rows = f"{self.rows:,} of {number_of(self.job_rows, 'row')} of {self.job}"
        return f"{self.model} at {self.backend}{version}: {rows}"

    @property
    def knee_words(self) -> str:
        knee = self.measured.knee
        if isinstance(knee, NoKnee):
            return f"no concurrency works: {knee.reason}"
        within = f" ± {max(1, round(100 * knee.within))} %" if knee.above else ""
        return f"best at {knee.concurrency}{within} rows at once: {knee.reason}"

    @property
    def comparisons(self) -> list[str]:
        found: list[str] = []
        at_knee = self.measured.at_knee
        if at_knee is None or not at_knee.rows_per_second:
            return found
        for one in self.measured.modes:
            if one.mode is not Mode.CONTINUOUS and one.rows_per_second:
                ratio = at_knee.rows_per_second / one.rows_per_second
                window = f" (window {self.measured.window:.2g} s)" if one.mode is Mode.DYNAMIC else ""
                found.append(f"continuous is {ratio:.2f} times {one.mode.value} batching{window}")
        other = self.measured.file_order
        if other is not None and other.rows_per_second:
            ratio = at_knee.rows_per_second / other.rows_per_second
            found.append(f"rows grouped by prefix are {ratio:.2f} times the file's order")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        measured, knee = self.measured, self.measured.knee
        return {
            "job": self.job,
            "backend": self.backend,
            "model": self.model,
            "engine_version": self.engine_version,
            "gpus": list(self.gpus),
            "options": list(self.options),
            "rows": self.rows,
            "job_rows": self.job_rows,
            "documents": self.documents,
            "left_out": self.left_out,
            "order": measured.order,
            "sweep": [one.to_json() for one in measured.sweep],
            "knee": None if isinstance(knee, NoKnee) else {
                "concurrency": knee.concurrency,
                "above": knee.above,
                "within": round(knee.within, 4),
                "rows_per_second": round(knee.rows_per_second, 4),
                "falls_over_at": knee.falls_over_at,
            },
            "knee_reason": knee.reason,
            "prefill": None if measured.prefill is None else measured.prefill.to_json(),
            "modes": [one.to_json() for one in measured.modes],
            "window_seconds": round(measured.window, 4),
            "file_order": None if measured.file_order is None else measured.file_order.to_json(),
            "tune": None if self.tuned is None else self.tuned.to_json(),
            "verdict": None if self.verdict is None else self.verdict.to_json(),
            "rates": None if self.rates is None else self.rates.to_json(),
            "applied": self.is_applied,
            "measured_at": self.at.isoformat(timespec="seconds"),
            "notes": list(self.notes),
        }  # fmt: skip


COLUMNS = (
    "at once", "rows/h", "in tok/s", "out tok/s", "P50", "P99", "failed", "cache", "KV", "preempted", "VRAM", "point",
)  # fmt: skip
RANKS = {"failed": 1, "point": 2, "in tok/s": 3, "out tok/s": 4, "cache": 5, "KV": 6, "VRAM": 7, "preempted": 8}
"""Order in which a narrow table drops columns, the highest rank first."""


def bench_cells(report: BenchReport) -> list[tuple[str, ...]]:
    """Return the points as cells under COLUMNS: the sweep, then modes and orders at the knee."""
    measured = report.measured
    found = [_cells(one, "" if one.end is PointEnd.MEASURED else one.end.value) for one in measured.sweep]
    found += [_cells(one, one.mode.value) for one in measured.modes if one.mode is not Mode.CONTINUOUS]
    if measured.prefill is not None:
        found.append(_cells(measured.prefill, "one token"))
    if measured.file_order is not None:
        found.append(_cells(measured.file_order, "file order"))
    return found


def _cells(one: BenchPoint, what: str) -> tuple[str, ...]:
    return (
        f"{one.concurrency:,}",
        f"{one.rows_per_second * HOUR:,.0f}",
        f"{one.input_tokens_per_second:,.0f}",
        f"{one.output_tokens_per_second:,.0f}",
        f"{one.p50:.2f} s",
        f"{one.p99:.2f} s",
        f"{one.error_share:.1%}" if one.error_share else "—",
        _share(one.cache_hits),
        _share(one.kv_peak),
        "—" if not one.preemptions else f"{one.preemptions:,}",
        "—" if one.vram_peak is None else f"{one.vram_peak / GIB:.1f} GiB",
        what or "—",
    )


TUNE_COLUMNS = ("settings", "round", "rows/h", "VRAM", "problem")


def tune_cells(tuned: Tuned) -> list[tuple[str, ...]]:
    """Return the runs of settings as cells under TUNE_COLUMNS."""
    return [
        (
            " ".join(point.options) or "defaults",
            str(point.round + 1),
            "—" if point.result is None else f"{point.result.rows_per_second * HOUR:,.0f}",
            "—" if point.result is None or point.result.vram_peak is None
            else f"{point.result.vram_peak / GIB:.1f} GiB",
            point.problem or "—",
        )
        for point in tuned.points
    ]  # fmt: skip


def plot_cells(sweep: Sequence[BenchPoint]) -> list[tuple[str, float, str]]:
    """Return the bars of a plot: concurrency, share of the best rate, and the rate as text."""
    most = max((one.rows_per_second for one in sweep), default=0.0)
    return [
        (f"{one.concurrency:,}", one.rows_per_second / most if most else 0.0, _per_hour(one.rows_per_second))
        for one in sweep
    ]


def rates_words(rates: EngineRates) -> str:
    answers = "" if rates.decode is None else f" and writes {rates.decode:,.0f} tokens/s of answers"
    start = "" if rates.start_seconds is None else f", starts in {duration(rates.start_seconds)}"
    best = f"best at {number_of(rates.best_limit, 'row')} at once"
    return f"an engine reads {rates.prefill:,.0f} tokens/s of prompts{answers}{start}, {best}"


def _share(share: float | None) -> str:
    return "—" if share is None else f"{share:.0%}"


def _per_hour(rate: float) -> str:
    return f"{rate * HOUR:,.0f} rows/h"
