"""A bench as a self-contained HTML page. Pure."""

from __future__ import annotations

from decimal import Decimal

from orchestrator.bench.report import COLUMNS, TUNE_COLUMNS, BenchReport, bench_cells, rates_words, tune_cells
from orchestrator.core.durations import HOUR, moment_words
from orchestrator.reports.bars import Bar, Series, bars, groups_beside
from orchestrator.reports.pages import LIST, PAID, template


def bench_page(report: BenchReport) -> str:
    measured = report.measured
    notes = [report.knee_words, *report.comparisons, *([] if report.tuned is None else [report.tuned.words])]
    notes += [] if report.rates is None else [rates_words(report.rates)]
    return template("bench_file.html").render(
        title=f"Bench: {report.title}",
        made=moment_words(report.at),
        verdict="" if report.verdict is None else report.verdict.sentence,
        throughput=_throughput(report),
        latency=_latency(report),
        modes=_modes(report) if len(measured.modes) > 1 else "",
        columns=COLUMNS,
        rows=bench_cells(report),
        tune_columns=TUNE_COLUMNS,
        tune_rows=[] if report.tuned is None else tune_cells(report.tuned),
        notes=[*notes, f"order: {measured.order}", *report.notes],
    )


def _throughput(report: BenchReport) -> str:
    sweep = report.measured.sweep
    sizes = [Decimal(round(one.rows_per_second * HOUR)) for one in sweep]
    series = [Series("rows an hour, by rows at once", PAID, sizes)]
    return (
        groups_beside([str(one.concurrency) for one in sweep], series, lambda size: f"{size:,.0f}") if sweep else ""
    )


def _latency(report: BenchReport) -> str:
    sweep = report.measured.sweep
    series = [
        Series("P50 of seconds", LIST, [Decimal(str(round(one.p50, 3))) for one in sweep]),
        Series("P99", PAID, [Decimal(str(round(one.p99, 3))) for one in sweep]),
    ]
    return groups_beside([str(one.concurrency) for one in sweep], series, lambda size: f"{size:g}") if sweep else ""


def _modes(report: BenchReport) -> str:
    given = [Bar(one.mode.value, Decimal(round(one.rows_per_second * HOUR)), PAID) for one in report.measured.modes]
    return bars(given, lambda size: f"{size:,.0f} rows/h")
