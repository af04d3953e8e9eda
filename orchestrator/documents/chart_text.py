"""Text and numbers of a chart in an office document: its title, and a row per category.

Charts of Office 2016 (waterfalls, tree maps, box plots) have another format, which stores numbers outside the series.
"""

from __future__ import annotations

import re
from datetime import date, timedelta

from orchestrator.documents.office import TextLimit
from orchestrator.documents.office_package import Package

_LONG = re.compile(r"-?\d{1,15}\.\d{13,20}")
_DAY_OR_YEAR, _NO_FORMAT = re.compile("[dyDY]"), re.compile(r'\[[^\]]*\]|"[^"]*"|\\.')
_BEFORE = date(1899, 12, 30)
MAX_POINTS = 1_000
"""Maximum number of points to read per series. The chart's sheet has all the data."""
MAX_LEVELS = 9
_CATEGORIES = ("cat", "xVal", "strDim", "numDim")
_WRITTEN = ("v", "t", "pt", "formatCode")
_Series = dict[str, dict[int, str]]
"""Texts of a series: `val` (values), `tx` (name), `cat` (categories), and `cat2` and up (outer categories), each by
point.
"""


def chart_lines(package: Package, part: str, limit: TextLimit) -> list[str]:
    """Return the chart as lines of a table, with series as columns. Raises the package's errors."""
    chart = _Chart(limit)
    package.parse(part, chart.start, chart.end, chart.characters)
    return chart.lines()


def _without_float_noise(text: str) -> str:
    return repr(float(text)) if _LONG.fullmatch(text) else text  # 0.164 for 0.16400000000000001


def _is_date(code: str) -> bool:
    return _DAY_OR_YEAR.search(_NO_FORMAT.sub("", code)) is not None


def _excel_date(text: str) -> str:
    days = text.partition(".")[0]
    return str(_BEFORE + timedelta(int(days))) if days.isdigit() and len(days) < 7 else text


class _Chart:
    def __init__(self, limit: TextLimit) -> None:
        self._limit = limit
        self._path: list[str] = []
        self._titles: list[str] = []
        self._series: list[_Series] = []
        self._data: dict[str, _Series] = {}
        self._name = ""
        self._point = self._level = 0
        self._is_date = False
        self._text: list[str] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._limit.element()
        name = tag.rpartition("}")[2]
        self._path.append(name)
        if name == "ser" or (name == "data" and "chartData" in self._path):
            self._series.append({})
            self._data[attributes.get("id", "")] = self._series[-1]
        elif name in _CATEGORIES:
            self._level, self._is_date = 0, False
        elif name == "lvl":
            self._level += 1
            self._is_date = _is_date(attributes.get("formatCode", ""))
        elif name == "pt":
            index = attributes.get("idx", "")
            self._point = int(index) if index.isdigit() and len(index) < 6 else 0
        elif name == "dataId" and (data := self._data.get(attributes.get("val", ""))) is not None:
            data["tx"] = {0: self._name}
        if name in _WRITTEN:
            self._text = []

    def characters(self, text: str) -> None:
        if self._path[-1] in _WRITTEN:
            self._limit.text(text)
            self._text.append(text)

    def end(self, tag: str) -> None:
        del tag
        name = self._path.pop()
        if name not in _WRITTEN:
            return
        text = " ".join("".join(self._text).split())
        if name == "formatCode":
            self._is_date = _is_date(text)
        elif name == "pt":
            if "strDim" in self._path:
                self._put("cat", text)
            elif "numDim" in self._path:
                self._put("val", text)
        elif "title" in self._path:
            if [text] != self._titles[-1:]:  # Office 2016 writes a title twice
                self._titles.append(text)
        elif name == "v" and "ser" in self._path:
            if what := self._path[self._path.index("ser") + 1 :][:1]:
                self._put(what[0], text)
        elif name == "v" and "series" in self._path:
            self._name = text

    def _put(self, what: str, text: str) -> None:
        if self._point < MAX_POINTS:
            key = f"{what}{self._level}" if what in _CATEGORIES and self._level > 1 else what
            is_date = self._is_date and what in _CATEGORIES
            self._series[-1].setdefault(key, {})[self._point] = (
                _excel_date(text) if is_date else _without_float_noise(text)
            )

    def lines(self) -> list[str]:
        values = [one.get("val") or one.get("yVal") or {} for one in self._series]
        names = [" ".join(one.get("tx", {}).values()) for one in self._series]
        categories = next((found for one in self._series if (found := _categories(one))), {})
        points = sorted({*categories, *(point for one in values for point in one)})
        rows = [["", *names]] if any(names) else []
        rows += [[categories.get(point, ""), *(one.get(point, "") for one in values)] for point in points]
        titles = [title for title in self._titles if title]
        if not rows and not titles:
            return []
        return [f"[chart] {' '.join(titles)}".rstrip(), *(" | ".join(row).rstrip() for row in rows)]


def _categories(series: _Series) -> dict[int, str]:
    """Return each point's category with its outer levels first: `2024 / Spring`. Files state an outer level once per
    group.
    """
    found = dict(series.get("cat") or series.get("xVal") or {})
    for level in range(2, MAX_LEVELS + 1):
        higher = series.get(f"cat{level}", {})
        above = ""
        for point in sorted({*found, *higher}):
            above = higher.get(point, above)
            found[point] = " / ".join(filter(None, (above, found.get(point, ""))))
    return found
