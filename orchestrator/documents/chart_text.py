"""The text and numbers of a chart in an office document: its title, and a row for each category."""

from __future__ import annotations

import re

from orchestrator.documents.office import TextLimit
from orchestrator.documents.office_package import Package

_LONG = re.compile(r"-?\d{1,15}\.\d{13,20}")
MAX_POINTS = 1_000
"""Most points read of a series; larger data stands in its sheet."""


def chart_lines(package: Package, part: str, limit: TextLimit) -> list[str]:
    """Return the chart as a table, with series as columns. Raises what the package raises."""
    chart = _Chart(limit)
    package.parse(part, chart.start, chart.end, chart.characters)
    return chart.lines()


def _shortest(text: str) -> str:
    """Return a number without its floating-point noise: 0.164 for 0.16400000000000001."""
    return repr(float(text)) if _LONG.fullmatch(text) else text


class _Chart:
    """A handler of XML events."""

    def __init__(self, limit: TextLimit) -> None:
        self._limit = limit
        self._path: list[str] = []
        self._titles: list[str] = []
        self._series: list[dict[str, dict[int, str]]] = []
        self._point = 0
        self._text: list[str] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._limit.element()
        name = tag.rpartition("}")[2]
        self._path.append(name)
        if name == "ser":
            self._series.append({})
        elif name == "pt":
            index = attributes.get("idx", "")
            self._point = int(index) if index.isdigit() and len(index) < 6 else 0
        if name in ("v", "t"):
            self._text = []

    def characters(self, text: str) -> None:
        if self._path[-1] in ("v", "t"):
            self._limit.text(text)
            self._text.append(text)

    def end(self, tag: str) -> None:
        del tag
        name = self._path.pop()
        text = " ".join("".join(self._text).split())
        if name == "t" and "title" in self._path:
            self._titles.append(text)
        elif name == "v" and self._series and "ser" in self._path:
            what = self._path[self._path.index("ser") + 1 :][:1]
            if what and self._point < MAX_POINTS:
                self._series[-1].setdefault(what[0], {})[self._point] = _shortest(text)

    def lines(self) -> list[str]:
        """Return the lines; empty if nothing in the chart is readable."""
        values = [one.get("val") or one.get("yVal") or {} for one in self._series]
        names = [" ".join(one.get("tx", {}).values()) for one in self._series]
        categories = next((found for one in self._series if (found := one.get("cat") or one.get("xVal"))), {})
        points = sorted({*categories, *(point for one in values for point in one)})
        rows = [["", *names]] if any(names) else []
        rows += [[categories.get(point, ""), *(one.get(point, "") for one in values)] for point in points]
        titles = [title for title in self._titles if title]
        if not rows and not titles:
            return []
        return [f"[chart] {' '.join(titles)}".rstrip(), *(" | ".join(row).rstrip() for row in rows)]
