"""Reports as tables. Beside `console` the only importer of rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.calibration import Calibration
from orchestrator.reports import CostReport
from orchestrator.reportwords import (
    CALIBRATION_COLUMNS,
    calibration_cells,
    calibration_name,
    cost_cells,
    cost_notes,
    fitting,
)


def cost_table(report: CostReport, width: int) -> RenderableType:
    """A cost report in so many characters a line; what there is no room for is named below it."""
    cells = cost_cells(report)
    (by, *numbers), *lines, total = fitting(cells, width)
    notes = cost_notes(report)
    if left_out := [name for name in cells[0][1:] if name not in numbers]:
        notes.append(f"no room here for: {', '.join(left_out)} (a wider terminal, --csv and --html have it)")
    table = _table((by,), numbers)
    for line in lines:
        table.add_row(*line)
    table.add_row(*total, style="bold")
    return Group(table, *(Text(note) for note in notes))


def forecast_table(lines: Sequence[Calibration]) -> RenderableType:
    """Forecasts held against what came, and what to think of each."""
    table = _table(CALIBRATION_COLUMNS[:1], CALIBRATION_COLUMNS[1:])
    for line in lines:
        table.add_row(*calibration_cells(line))
    verdicts = [Text(f"{calibration_name(line)}: {line.verdict}") for line in lines]
    return Group(table, Text("due: half of what came below its p50, 95 % of it below its p95"), Text(), *verdicts)


def _table(words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in words:
        table.add_column(name, overflow="fold")
    for name in numbers:
        # Folded where there is no room: a number that is cut off says something else.
        table.add_column(name, justify="right", overflow="fold")
    return table
