"""Reports as self-contained HTML pages: style, plots and figures in one file. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from orchestrator.core.durations import moment_words
from orchestrator.core.money import money
from orchestrator.core.sanitize import escape_controls
from orchestrator.reports.bars import Series, groups_below, groups_beside
from orchestrator.reports.cost import CostLine, CostReport
from orchestrator.reports.words import cost_cells, cost_notes, cost_title

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

DAYS, GROUPS = 31, 12
"""Most days and groups in a plot: the newest days, the most expensive groups."""
PAID, LIST = "#2b6cb0", "#b8c4d4"


def cost_page(report: CostReport, at: datetime, since: str | None) -> str:
    """Render a cost report; `at` is when it was made, `since` how far back it goes, in the user's words."""
    total = report.total
    columns, *rows, sums = cost_cells(report)
    facts = [
        ("paid", money(total.cost)),
        ("list price", money(total.listed.cost)),
        ("saved", money(total.saved)),
        ("wasted", money(total.wasted)),
        ("rows", f"{total.rows:,}"),
        ("documents", f"{total.documents:,}"),
    ]
    return _page().render(
        title=cost_title(report),
        made=moment_words(at),
        since=since,
        facts=facts,
        plot=_bars(report.by, _shown(report)) if report.lines else "",
        left_out=len(report.lines) - len(_shown(report)),
        columns=columns,
        rows=rows,
        sums=sums,
        notes=cost_notes(report),
    )


def _shown(report: CostReport) -> Sequence[CostLine]:
    if report.by == "day":
        return report.lines[-DAYS:]
    return sorted(report.lines, key=lambda line: max(line.cost, line.listed.cost), reverse=True)[:GROUPS]


def _bars(by: str, lines: Sequence[CostLine]) -> str:
    """Draw what was paid beside the list price: days from left to right, other groups one below the other."""
    series = [
        Series("list price", LIST, [line.listed.cost for line in lines]),
        Series("paid", PAID, [line.cost for line in lines]),
    ]
    if by == "day":
        return groups_beside([line.group[5:] for line in lines], series, money)
    return groups_below([line.group or "—" for line in lines], series, money)


@lru_cache(maxsize=1)
def _page() -> Template:
    return page_template(_COST_PAGE)


def page_template(body: str, *, title: str = "title", style: str = "") -> Template:
    """Return a template in our style. It escapes every value and shows control characters.

    `title` names the value for the page's title; `style` is CSS of this page alone.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        return escape_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=shown)
    environment.filters["code"] = _code
    return environment.from_string(_HEAD.replace("TITLE", title) + STYLE + style + "</style>\n" + body)


def _code(text: str) -> Markup:
    """Escape a text and show its parts between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(escape_controls(text)))))


_HEAD = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ TITLE }}</title>
<style>
"""
STYLE = """\
:root { color-scheme: light dark; --ink: #1a202c; --soft: #5a6578; --line: #dde3ec; --back: #fff; --card: #f5f7fa }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --soft: #9aa5b5; --line: #323b48; --back: #14181f; --card: #1d232c }
}
* { box-sizing: border-box }
body { font: 16px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--back);
  margin: 0 auto; max-width: 76rem; padding: 1rem; overflow-wrap: anywhere }
h1 { font-size: 1.4rem; margin: 0 }
.made, .notes, figcaption { color: var(--soft); font-size: .85rem }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.5rem, 1fr)); gap: .6rem; margin: 1rem 0 }
dl div { background: var(--card); border-radius: .5rem; padding: .6rem .8rem }
dt { color: var(--soft); font-size: .8rem }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums }
figure { margin: 1rem 0; max-width: 36rem }
figure svg { width: 100%; height: auto }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; width: 100% }
th, td { padding: .35rem .5rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top }
th:first-child, td:first-child, .words th, .words td { text-align: left }
th, td { overflow-wrap: normal }
td:first-child, .words td { overflow-wrap: anywhere }
th:first-child { min-width: 4.5rem }
th { color: var(--soft); font-weight: 600 }
tfoot td { font-weight: 700; border: 0 }
code { font-size: .9em; background: var(--card); border-radius: .25rem; padding: 0 .2rem }
@media (max-width: 40rem) {
  .cards thead { display: none }
  .cards tr { display: block; border-bottom: 1px solid var(--line); padding: .4rem 0 }
  .cards td { display: grid; grid-template-columns: 6.5rem 1fr; gap: .5rem; border: 0; padding: .1rem 0;
    overflow-wrap: anywhere; text-align: left }
  .cards td::before { content: attr(data-name); color: var(--soft); font-weight: 400 }
  .cards td:first-child { font-weight: 600 }
}
"""
"""Style of all pages, for phones and wide screens, light and dark."""
_COST_PAGE = """\
<h1>{{ title }}</h1>
<p class="made">{% if since %}since {{ since }}, {% endif %}made {{ made }}</p>
<dl>{% for name, value in facts %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>{% endfor %}
</dl>
{% if plot %}<figure>{{ plot | safe }}
{% if left_out %}<figcaption>{{ left_out }} more are in the table alone</figcaption>{% endif %}</figure>
<table class="cards">
<thead><tr>{% for name in columns %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}
<tr>{% for cell in row %}<td data-name="{{ columns[loop.index0] }}">{{ cell }}</td>{% endfor %}</tr>{% endfor %}
</tbody>
<tfoot><tr>{% for cell in sums %}<td data-name="{{ columns[loop.index0] }}">{{ cell }}</td>{% endfor %}</tr></tfoot>
</table>
{% else %}<p>Nothing was paid for.</p>{% endif %}
{% for note in notes %}<p class="notes">{{ note }}</p>
{% endfor %}</html>
"""
