"""Text of shapes in office documents: of slides, of text boxes on sheets, and of SmartArt."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from orchestrator.documents.chart_text import chart_lines
from orchestrator.documents.office import Losses, TextLimit
from orchestrator.documents.office_package import Package
from orchestrator.documents.superscripts import lowered, raised

_TITLES = ("title", "ctrTitle")
_BODIES = ("", "body", "obj")
_FIELDS = ("sldNum", "dt")
"""Placeholders that usually contain only a field: the slide number or the date."""
_MOST_LEVEL = 9
_LOST = {"blip": "picture", "videoFile": "video", "audioFile": "sound"}


def shape_lines(package: Package, part: str, limit: TextLimit, losses: Losses, *, notes: bool = False) -> list[str]:
    """Return a line per paragraph of a part's shapes, and per row of its tables."""
    shapes = _Shapes(limit, losses, notes=notes)
    package.parse(posixpath.normpath(part), shapes.start, shapes.end, shapes.characters)
    return shapes.lines


def drawn_lines(package: Package, part: str, limit: TextLimit, losses: Losses) -> list[str]:
    """Return the text of the SmartArt and charts that a part refers to. A chart without text counts as a loss."""
    lines: list[str] = []
    for relation in package.relations(part):
        if not package.holds(relation.target):
            continue
        if relation.kind == "diagramData":
            lines += shape_lines(package, relation.target, limit, losses)
        elif relation.kind in ("chart", "chartEx"):
            chart = chart_lines(package, relation.target, limit)
            losses["chart as a picture only"] += not chart
            lines += chart
    return lines


class _Shapes:
    def __init__(self, limit: TextLimit, losses: Losses, *, notes: bool) -> None:
        self.lines: list[str] = []
        self._limit = limit
        self._losses = losses
        self._notes = notes
        self._place: str | None = None  # a placeholder's kind; None for any other shape
        self._pieces: list[str] | None = None
        self._cells: list[str] | None = None
        self._level = 0
        self._marked: bool | None = None  # True for a bullet, False for none; None if the paragraph does not say
        self._is_text = False
        self._is_typed = False  # the paragraph has text outside fields
        self._fields = 0
        self._script: Callable[[str], str] | None = None  # superscript or subscript of the open run
        self._run = 0  # index of the open run's first piece
        self._fallback = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._limit.element()
        name = tag.rpartition("}")[2]
        if self._fallback or name == "Fallback":  # repeats the content for old programs
            self._fallback += 1
            return
        match name:
            case "sp" | "graphicFrame":
                self._place = None
            case "ph":
                self._place = attributes.get("type", "")
            case "p" if tag.endswith("drawingml/2006/main}p") or tag.endswith("drawingml/main}p"):
                self._pieces, self._level, self._marked, self._is_typed = [], 0, None, False
            case "fld":
                self._fields += 1
            case "pPr":
                level = attributes.get("lvl", "0")
                self._level = min(int(level), _MOST_LEVEL) if level.isdigit() else 0
            case "buNone":
                self._marked = False
            case "buChar" | "buAutoNum":
                self._marked = True
            case "r" if self._pieces is not None:
                self._script, self._run = None, len(self._pieces)
            case "rPr" if (shift := attributes.get("baseline", "0").rstrip("%")) not in ("0", ""):
                self._script = lowered if shift.startswith("-") else raised
            case "t":
                self._is_text = True
            case "br":
                self._add("\n")
            case "tr":
                self._cells = []
            case "blip" | "videoFile" | "audioFile" if not self._notes:
                self._losses[_LOST[name]] += 1
            case "oleObj" if attributes.get("progId", "").partition(".")[0] != "Equation":
                self._losses["embedded file"] += 1
                self._losses["picture"] -= 1  # the object's preview picture

    def end(self, tag: str) -> None:
        if self._fallback:
            self._fallback -= 1
            return
        name = tag.rpartition("}")[2]
        if name == "t":
            self._is_text = False
        elif name == "fld":
            self._fields -= 1
        elif name == "r" and self._pieces is not None and self._script is not None:
            self._pieces[self._run :] = [self._script("".join(self._pieces[self._run :]))]
            self._script = None
        elif name == "p" and self._pieces is not None:
            self._end_paragraph("".join(self._pieces).strip())
            self._pieces = None
        elif name == "tc" and self._cells is not None:
            self._cells.append("\0")
        elif name == "tr" and self._cells is not None:
            row = " ".join(self._cells).split("\0")[:-1]
            self.lines.append(" | ".join(" ".join(cell.split()) for cell in row))
            self._cells = None

    def characters(self, text: str) -> None:
        if self._is_text:
            self._is_typed = self._is_typed or not self._fields
            self._add(text)

    def _add(self, text: str) -> None:
        if self._pieces is not None:
            self._limit.text(text)
            self._pieces.append(text.replace("\0", ""))

    def _end_paragraph(self, text: str) -> None:
        if self._cells is not None:
            self._cells.append(text)
            return
        is_field = self._place in _FIELDS and not self._is_typed
        if not text or is_field or (self._notes and self._place != "body"):
            return
        if self._place in _TITLES:
            self.lines.append("# " + " ".join(text.split()))
        elif self._marked or (self._marked is None and self._place in _BODIES and not self._notes):
            self.lines.append("  " * self._level + "- " + text)
        else:
            self.lines.append("  " * self._level + text)
