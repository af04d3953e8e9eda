"""Reports as self-contained HTML pages: style, plots and figures in one file. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.core.durations import moment_words
from orchestrator.core.money import money
from orchestrator.reports.bars import Series, groups_below, groups_beside
from orchestrator.reports.cost import CostLine, CostReport
from orchestrator.reports.words import cost_cells, cost_headline, cost_notes, cost_title, estimated_words, group_words

if TYPE_CHECKING:
    from jinja2 import Template

DAYS, GROUPS = 31, 12
"""Maximum days and groups in a plot. The newest days and the most expensive groups are shown."""
_COLUMNS = {"in": "tokens in", "cached": "tokens cached", "out": "tokens out"}
"""Long forms of column names, for pages. Terminals use the short names."""
PAID, LIST = "#2b6cb0", "#b8c4d4"


def cost_page(report: CostReport, at: datetime, since: str | None) -> str:
    """Render a cost report generated at time `at`. `since` is the start of its period, as the user wrote it."""
    total = report.total
    ordered = report if report.by == "day" else replace(report, lines=_dearest_first(report))
    names, *rows, sums = cost_cells(ordered)
    columns = [_COLUMNS.get(name, name) for name in names]
    facts = [
        ("paid", estimated_words(total.cost, is_estimate=total.estimated)),
        *([("in running batches", money(report.running))] if report.running else []),
        ("list price", estimated_words(total.listed.cost, is_estimate=total.listed.estimated)),
        ("saved", money(total.saved)) if total.saved >= 0 else ("above list price", money(-total.saved)),
        ("wasted", money(total.wasted)),
        ("rows", f"{total.rows:,}"),
        ("documents", f"{total.documents:,}"),
    ]
    return template("cost_file.html").render(
        title=cost_title(report),
        by=report.by,
        headline=cost_headline(report),
        made=moment_words(at),
        since=since,
        facts=facts,
        plot=cost_plot(report),
        left_out=len(report.lines) - len(_shown(report)),
        columns=columns,
        rows=rows,
        sums=sums,
        notes=cost_notes(report),
        running=report.running,
    )


def _shown(report: CostReport) -> Sequence[CostLine]:
    if report.by == "day":
        return report.lines[-DAYS:]
    return _dearest_first(report)[:GROUPS]


def _dearest_first(report: CostReport) -> list[CostLine]:
    return sorted(report.lines, key=lambda line: max(line.cost, line.listed.cost), reverse=True)


def cost_plot(report: CostReport) -> str:
    """Plot paid cost beside list price. Days run from left to right, other groups from top to bottom."""
    lines = _shown(report)
    if not lines:
        return ""
    series = [
        Series("list price", LIST, [line.listed.cost for line in lines]),
        Series("paid", PAID, [line.cost for line in lines]),
    ]
    if report.by == "day":
        return groups_beside([f"{date.fromisoformat(line.group):%d %b}" for line in lines], series, money)
    return groups_below([group_words(report.by, line.group) for line in lines], series, money)


def template(name: str) -> Template:
    from orchestrator.reports.markup import environment  # Jinja is slow to import, and most commands do not need it

    return environment().get_template(name)
