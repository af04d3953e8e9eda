"""Formats reports as lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core.counts import number_of
from orchestrator.core.durations import duration, moment_words
from orchestrator.policy.diff import Difference
from orchestrator.policy.forecast_trust import ENOUGH, Calibration
from orchestrator.reports.cost import CostReport
from orchestrator.reports.night import NightReport
from orchestrator.reports.night_formats import Block, blocks, change_cells, headline, job_title, note_of, title_of
from orchestrator.reports.text_tables import Cell, Column, Line, StyledText, sentence, table
from orchestrator.reports.words import (
    CALIBRATION_COLUMNS,
    COST_RANKS,
    calibration_cells,
    calibration_name,
    cost_cells,
    cost_notes,
    cost_title,
    running_words,
)

FIGURES = ("documents", "answers", "rows", "paid", "wasted", "batches", "later than p95")


def cost_lines(report: CostReport, width: int | None) -> list[Line]:
    """Format a cost report. Names of columns that do not fit are listed below the table."""
    if not report.lines:
        told = "; ".join([f"Nothing was paid for{' yet' if report.running else ''}", *running_words(report.running)])
        return [*sentence(cost_title(report), width, "bold"), (), *sentence(f"{told}.", width)]
    (by, *numbers), *lines, total = cost_cells(report)
    columns = [Column(by), *(Column(name, right=True, rank=COST_RANKS.get(name, 0)) for name in numbers)]
    rows: list[Sequence[Cell]] = [*lines, [StyledText(cell, "bold") for cell in total]]
    notes = [line for note in cost_notes(report) for line in sentence(note, width)]
    return [*sentence(cost_title(report), width, "bold"), (), *table(columns, rows, width), (), *notes]


def forecast_lines(lines: Sequence[Calibration], width: int | None) -> list[Line]:
    first, last = min(line.first_at for line in lines), max(line.last_at for line in lines)
    title = f"Forecasts made from {moment_words(first)} to {moment_words(last)}"
    name, *others = CALIBRATION_COLUMNS
    ranks = {"open": 2, "trust": 1}  # omitted first, because the verdicts below say more
    columns = [Column(name), *(Column(other, right=True, rank=ranks.get(other, 0)) for other in others)]
    verdicts = [f"{calibration_name(line)}: {line.verdict}" for line in lines if line.trusted is not None]
    if few := [calibration_name(line) for line in lines if line.trusted is None]:
        verdicts.append(f"too few to judge, {ENOUGH} needed: {', '.join(few)}")
    due = "expected: half of the actual values below their p50, 95 % below their p95"
    return [
        *sentence(title, width, "bold"),
        (),
        *table(columns, [calibration_cells(line) for line in lines], width),
        *sentence(due, width),
        (),
        *(line for verdict in verdicts for line in sentence(verdict, width)),
    ]


def backend_lines(backends: Sequence[Mapping[str, Any]], width: int | None) -> list[Line]:
    """Format one line per backend; `--json` has more details."""
    columns = [Column("backend"), Column("state"), *(Column(name, right=True) for name in _BACKEND_FIGURES)]
    lines = list(table(columns, [_backend_cells(one) for one in backends], width))
    refused = [(one["backend"], field) for one in backends for field in one["refused_fields"]]
    if not refused:
        return lines
    columns = [Column(name, prose=name == "in its words") for name in _REFUSED]
    cells: list[list[Cell]] = [
        [backend, field["model"], field["field"], field["until"][:10], field["message"]] for backend, field in refused
    ]
    return [*lines, (), *sentence("Fields that were refused", width, "bold"), *table(columns, cells, width)]


_REFUSED = ("backend", "model", "field", "until", "in its words")
_BACKEND_FIGURES = ("batches", "rows", "rows in 24 h", "rows/s", "p50", "p95")


def _backend_cells(one: Mapping[str, Any]) -> list[Cell]:
    pace, took = one["rows_per_second"], one["turnaround"]
    times = ("—", "—") if took is None else (duration(took["p50_seconds"]), duration(took["p95_seconds"]))
    figures = (
        f"{one['batches']:,}",
        f"{one['rows']:,}",
        f"{one['rows_24h']:,}",
        "—" if pace is None else f"{pace:.2f}",
    )
    return [one["backend"], one["state"], *figures, *times]


def night_lines(report: NightReport, width: int | None) -> list[Line]:
    lines = [*sentence(title_of(report), width, "bold"), *sentence(f"{headline(report)}.", width)]
    if report.needs:
        lines += [(), *sentence("Needs attention", width, "bold red")]
        for job, need in report.needs:
            lines += _item(f"{job}: {need}", width)
    for job_report in report.jobs:
        lines += [(), *sentence(job_title(job_report) + note_of(report, job_report), width, "bold")]
        for block in blocks(job_report):
            lines += [(), *sentence(block.title, width, "underline"), *_block(block, width)]
    return [*lines, (), *sentence(f"made {moment_words(report.made_at)}", width, "dim")]


def _block(block: Block, width: int | None) -> list[Line]:
    lines: list[Line] = []
    if block.rows:
        columns = [Column(name, right=name in FIGURES, prose=name not in FIGURES) for name in block.columns]
        lines += table(columns, block.rows, width)
    for note in block.notes:
        lines += _item(note, width)
    return lines


def _item(text: str, width: int | None) -> list[Line]:
    first, *rest = sentence(text, None if width is None else width - 2)
    return [(StyledText("• "), *first), *((StyledText("  "), *line) for line in rest)]


def diff_lines(found: Difference, title: str, width: int | None) -> list[Line]:
    """Show the difference between two runs: counts, fields, and the first rows of each kind."""
    added, removed = found.added.number, found.removed.number
    lines = sentence(title, width, "bold")
    lines += sentence(f"{number_of(added, 'row')} added, {removed:,} removed, {found.changed:,} changed", width)
    if found.unread:
        lines += sentence(f"{number_of(found.unread, 'answer')} could not be compared: a result file is gone", width)
    if found.by_field:
        fields = [(name, f"{number:,}") for name, number in found.by_field.items()]
        lines += [(), *table((Column("field"), Column("changed", right=True)), fields, width)]
    rows: list[Sequence[Cell]] = [
        (sign, one.document, one.task, "", "")
        for sign, kind in (("+", found.added), ("-", found.removed))
        for one in kind.first
    ]
    # The arrow marks the new value, because a narrow terminal moves the last column below its row, without a header.
    rows += [("~", *cells[:-1], f"→ {cells[-1]}") for change in found.first for cells in change_cells(change)]
    if rows:
        prose = [Column(name, prose=True) for name in ("field", "before", "after")]
        lines += [(), *table((Column(""), Column("document"), *prose), rows, width)]
    left = added + removed + found.changed - len(found.added.first) - len(found.removed.first) - len(found.first)
    if left:
        lines += sentence(f"and {number_of(left, 'more row')} (--limit shows more)", width)
    return lines
