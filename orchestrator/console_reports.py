"""Reports as tables. Beside `console` the only importer of rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from orchestrator.calibration import Calibration
from orchestrator.differences import Difference
from orchestrator.morningpages import change_cells
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


def written(text: str) -> RenderableType:
    """A report that is Markdown."""
    return Markdown(text)


def diff_view(found: Difference) -> RenderableType:
    """What is different between two runs: counts, fields, and the first rows of each kind."""
    added, removed = found.added.number, found.removed.number
    head = f"{found.before} → {found.after}: {added:,} rows added, {removed:,} removed, {found.changed:,} changed"
    parts: list[RenderableType] = [Text(head)]
    if found.unread:
        parts.append(Text(f"{found.unread:,} answers could not be compared: a result file is gone"))
    if found.by_field:
        fields = _table(("field",), ("changed",))
        for name, number in found.by_field.items():
            fields.add_row(Text(name), f"{number:,}")
        parts += [Text(), fields]
    rows = _table(("", "document", "field", "before", "after"), ())
    for sign, kind in (("+", found.added), ("-", found.removed)):
        for one in kind.first:
            rows.add_row(sign, Text(one.document), Text(one.task), "", "")
    for change in found.first:
        for cells in change_cells(change):
            rows.add_row("~", *map(Text, cells))
    if rows.row_count:
        parts += [Text(), rows]
    left = added + removed + found.changed - len(found.added.first) - len(found.removed.first) - len(found.first)
    if left:
        parts.append(Text(f"and {left:,} more rows (--limit shows more)"))
    return Group(*parts)


def _table(words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in words:
        table.add_column(name, overflow="fold")
    for name in numbers:
        # Folded where there is no room: a number that is cut off says something else.
        table.add_column(name, justify="right", overflow="fold")
    return table
