"""Formats a bench as lines for a terminal."""

from __future__ import annotations

from orchestrator.bench.report import (
    COLUMNS,
    RANKS,
    TUNE_COLUMNS,
    BenchReport,
    bench_cells,
    plot_cells,
    rates_words,
    tune_cells,
)
from orchestrator.reports.text_tables import Cell, Column, Line, StyledText, sentence, table

PLOT = 40
"""Width of the longest bar, in columns."""
EIGHTHS = " ▏▎▍▌▋▊▉"


def bench_lines(report: BenchReport, width: int | None) -> list[Line]:
    lines = [*sentence(report.title, width, "bold"), ()]
    if report.verdict is not None:
        lines += [*sentence(report.verdict.sentence, width, "bold"), ()]
    columns = [Column(name, right=name != "point", rank=RANKS.get(name, 0)) for name in COLUMNS]
    rows: list[list[Cell]] = [list(cells) for cells in bench_cells(report)]
    lines += [*table(columns, rows, width), (), *plot_lines(report, width), ()]
    told = [report.knee_words, *report.comparisons, f"order: {report.measured.order}"]
    if report.tuned is not None:
        lines += [*_tuning(report, width), ()]
        told.append(report.tuned.words)
    if report.rates is not None:
        told.append(rates_words(report.rates) + ("; plans use this from now on" if report.is_applied else ""))
    return [*lines, *(line for text in (*told, *report.notes) for line in sentence(text, width))]


def plot_lines(report: BenchReport, width: int | None) -> list[Line]:
    bars = plot_cells(report.measured.sweep)
    name = max((len(one) for one, _, _ in bars), default=0)
    figure = max((len(words) for _, _, words in bars), default=0)
    room = max(4, min(PLOT, (width or 80) - name - figure - 4))
    found: list[Line] = []
    for one, share, words in bars:
        found.append((StyledText(f"{one:>{name}} "), StyledText(_bar(share, room), "green"), StyledText(f" {words}")))
    return found


def _bar(share: float, room: int) -> str:
    eighths = round(share * room * 8)
    rest = EIGHTHS[eighths % 8].strip()
    return "█" * (eighths // 8) + rest


def _tuning(report: BenchReport, width: int | None) -> list[Line]:
    assert report.tuned is not None, "asked before"
    columns = [
        Column(name, right=name in ("round", "rows/h", "VRAM"), prose=name == "problem") for name in TUNE_COLUMNS
    ]
    return table(columns, [list(cells) for cells in tune_cells(report.tuned)], width)
