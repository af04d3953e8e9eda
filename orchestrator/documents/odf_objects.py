"""Objects embedded in an OpenDocument file: charts as tables, formulas as one line of text."""

from __future__ import annotations

import posixpath

from msgspec import Struct

from orchestrator.documents.chart_text import MAX_POINTS
from orchestrator.documents.office import TextLimit
from orchestrator.documents.office_package import DAMAGE, Package

_MOST_COLUMNS = 100
_REPEATED = "urn:oasis:names:tc:opendocument:xmlns:table:1.0}number-columns-repeated"
_TOKENS = frozenset(("mi", "mn", "mo", "mtext", "ms"))
"""MathML elements with text. An `annotation` repeats the formula in another language."""
_SIGNS = {
    "mfrac": ("", "/"),
    "msup": ("", "^"),
    "msub": ("", "_"),
    "msubsup": ("", "_", "^"),
    "munder": ("", "_"),
    "mover": ("", "^"),
    "munderover": ("", "_", "^"),
}
"""Text before each child of a MathML element."""
_BETWEEN = {"mtr": ", ", "mtable": "; "}


class EmbeddedObject(Struct, frozen=True):
    """Text of an embedded object: the `lines` of a chart, or a `formula` that belongs in a line of the document."""

    lines: tuple[str, ...] = ()
    formula: str = ""


def embedded_object(package: Package, reference: str, limit: TextLimit) -> EmbeddedObject | None:
    """Return an object's text; None if it is damaged, or neither a chart nor a formula. Raises ExtractionError."""
    part = posixpath.join(posixpath.normpath(reference), "content.xml")
    if not package.holds(part):
        return None
    reader = _Reader(limit)
    try:
        package.parse(part, reader.start, reader.end, reader.characters)
    except DAMAGE:
        return None
    return reader.object()


class _Reader:
    def __init__(self, limit: TextLimit) -> None:
        self._limit = limit
        self._path: list[str] = []
        self._texts: list[list[str]] = [[]]  # pieces of each open element
        self._titles: list[str] = []
        self._rows: list[list[str]] = []
        self._columns = 1  # repetitions of the open cell
        self._formula = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._limit.element()
        name = tag.rpartition("}")[2]
        self._path.append(name)
        self._texts.append([])
        if name == "table-row":
            self._rows.append([])
        elif name == "table-cell":
            self._columns = _repeated(attributes.get(_REPEATED, "1"))

    def characters(self, text: str) -> None:
        if self._path[0] != "math" or self._path[-1] in _TOKENS:
            self._limit.text(text)
            self._texts[-1].append(text)

    def end(self, tag: str) -> None:
        del tag
        name, pieces = self._path.pop(), self._texts.pop()
        if name == "math":
            self._formula = "".join(pieces).strip()
        elif self._path and self._path[0] == "math":
            self._texts[-1].append(_linear(name, pieces))
        elif name in ("p", "span", "a"):
            self._texts[-1].append("".join(pieces))
        elif name in ("title", "subtitle") and (title := " ".join(" ".join(pieces).split())):
            self._titles.append(title)
        elif name == "table-cell" and self._rows:
            cell = " ".join(" ".join(pieces).split())
            self._rows[-1] += [cell] * (self._columns if cell else 1)

    def object(self) -> EmbeddedObject | None:
        if self._formula:
            return EmbeddedObject(formula=self._formula)
        rows = [row for row in self._rows[: MAX_POINTS + 1] if any(row)]
        if not rows and not self._titles:
            return None
        heading = f"[chart] {' '.join(self._titles)}".rstrip()
        return EmbeddedObject(lines=(heading, *(" | ".join(row[:_MOST_COLUMNS]).rstrip() for row in rows)))


def _linear(name: str, parts: list[str]) -> str:
    """Return a MathML element as one line, like Word's equations: `a/(10)`, `x^2`, `root 3(x)`."""
    if name in _TOKENS:
        return "".join(parts).strip()
    signs = _SIGNS.get(name, ())
    if len(signs) == len(parts):
        return "".join(sign + _group(part) for sign, part in zip(signs, parts, strict=True) if part)
    if name == "mroot" and len(parts) == 2:
        return f"root {parts[1]}({parts[0]})"
    if name == "msqrt":
        return f"root {_group(''.join(parts))}"
    return "" if name.startswith("annotation") else _BETWEEN.get(name, "").join(parts)


def _group(text: str) -> str:
    return f"({text})" if len(text) > 1 else text


def _repeated(number: str) -> int:
    return min(int(number), _MOST_COLUMNS) if number.isdecimal() and len(number) < 6 else 1
