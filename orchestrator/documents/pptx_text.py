"""The slides of a presentation in their order: titles, text by its level, tables, charts, comments and notes."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator

from orchestrator.documents.chart_text import chart_lines
from orchestrator.documents.encoding import clean
from orchestrator.documents.office import TextLimit, check_container, damaged
from orchestrator.documents.office_package import Package
from orchestrator.documents.pdf_text import PAGE_BREAK
from orchestrator.documents.scripts import lowered, raised
from orchestrator.documents.types import ExtractionError

_TITLES = ("title", "ctrTitle")
_BODIES = ("", "body", "obj")
_MOST_LEVEL = 9


def extract(data: bytes, encoding: str | None, most: int = 50_000_000) -> tuple[str, dict[str, object]]:
    """Text, each slide after the first on a line that begins with a form feed, and `{"pages": count}`.

    Raises ExtractionError.
    """
    del encoding  # XML says itself how it is written
    check_container(data, "a PowerPoint 97-2003 presentation; save it as .pptx or PDF")
    try:
        slides = [clean("\n".join(lines)).strip() for lines in _slides(Package(data), TextLimit(most))]
    except (ExtractionError, MemoryError):
        raise
    except Exception as error:
        # zipfile, zlib and expat raise a dozen different types on a damaged package.
        raise damaged("presentation") from error
    return PAGE_BREAK.join(slides) if any(slides) else "", {"pages": len(slides)}


def _slides(package: Package, limit: TextLimit) -> Iterator[list[str]]:
    main = package.main_part()
    relations = package.relations(main)
    targets = {relation.id: relation.target for relation in relations}
    authors = _authors(package, [one.target for one in relations if one.kind in ("commentAuthors", "authors")])
    order: list[str] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag.rpartition("}")[2] == "sldId":
            order.extend(value for name, value in attributes.items() if name.endswith("}id"))

    package.parse(main, start)
    for ident in order:
        yield _slide(package, targets[ident], limit, authors)


def _authors(package: Package, parts: list[str]) -> dict[str, str]:
    """Names of those who wrote comments, by their number."""
    found: dict[str, str] = {}

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag.rpartition("}")[2] in ("cmAuthor", "author") and "id" in attributes:
            found[attributes["id"]] = attributes.get("name", "")

    for part in filter(package.holds, parts):
        package.parse(part, start)
    return found


def _slide(package: Package, part: str, limit: TextLimit, authors: dict[str, str]) -> list[str]:
    lines = _read(package, part, limit)
    for relation in package.relations(part):
        if relation.kind == "diagramData" and package.holds(relation.target):
            lines += _read(package, relation.target, limit)
        elif relation.kind == "chart" and package.holds(relation.target):
            lines += chart_lines(package, relation.target, limit)
    for relation in package.relations(part):
        if relation.kind == "comments" and package.holds(relation.target):
            lines += _comments(package, relation.target, limit, authors)
    for relation in package.relations(part):
        if relation.kind == "notesSlide" and (notes := _read(package, relation.target, limit, notes=True)):
            lines += ["", "Notes:", *notes]
    return lines


def _comments(package: Package, part: str, limit: TextLimit, authors: dict[str, str]) -> list[str]:
    """A line for each comment and each reply; old ones have their text in `text`, new ones in paragraphs."""
    found: list[tuple[str, list[str]]] = []
    is_text = [False]

    def start(tag: str, attributes: dict[str, str]) -> None:
        limit.element()
        name = tag.rpartition("}")[2]
        if name in ("cm", "reply"):
            found.append((authors.get(attributes.get("authorId", ""), ""), []))
        is_text[0] = name in ("text", "t")

    def characters(text: str) -> None:
        if is_text[0] and found:
            limit.text(text)
            found[-1][1].append(text)

    def end(tag: str) -> None:
        is_text[0] = False
        if tag.endswith("}p") and found:
            found[-1][1].append(" ")

    package.parse(part, start, end, characters)
    texts = [(author, " ".join("".join(pieces).split())) for author, pieces in found]
    return [
        f"[comment {number}]: " + (f"{author}: {text}" if author else text)
        for number, (author, text) in enumerate(((author, text) for author, text in texts if text), 1)
    ]


def _read(package: Package, part: str, limit: TextLimit, *, notes: bool = False) -> list[str]:
    shapes = _Shapes(limit, notes=notes)
    package.parse(posixpath.normpath(part), shapes.start, shapes.end, shapes.characters)
    return shapes.lines


class _Shapes:
    """Takes the events of an XML parser and makes lines of a slide's paragraphs and of the rows of its tables."""

    def __init__(self, limit: TextLimit, *, notes: bool) -> None:
        self.lines: list[str] = []
        self._limit = limit
        self._notes = notes
        self._place: str | None = None  # what a shape is for: a kind of placeholder, None where it is for nothing
        self._pieces: list[str] | None = None
        self._cells: list[str] | None = None
        self._level = 0
        self._marked: bool | None = None  # whether the paragraph says itself that it has a bullet, or none
        self._is_text = False
        self._script: Callable[[str], str] | None = None  # of the run that is open
        self._run = 0  # where its pieces begin
        self._fallback = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        self._limit.element()
        name = tag.rpartition("}")[2]
        if self._fallback or name == "Fallback":  # the same once more, for old programs
            self._fallback += 1
            return
        match name:
            case "sp" | "graphicFrame":
                self._place = None
            case "ph":
                self._place = attributes.get("type", "")
            case "p" if tag.endswith("drawingml/2006/main}p") or tag.endswith("drawingml/main}p"):
                self._pieces, self._level, self._marked = [], 0, None
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

    def end(self, tag: str) -> None:
        """An element ends."""
        if self._fallback:
            self._fallback -= 1
            return
        name = tag.rpartition("}")[2]
        if name == "t":
            self._is_text = False
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
        """Text, in any number of pieces."""
        if self._is_text:
            self._add(text)

    def _add(self, text: str) -> None:
        if self._pieces is not None:
            self._limit.text(text)
            self._pieces.append(text.replace("\0", ""))

    def _end_paragraph(self, text: str) -> None:
        if self._cells is not None:
            self._cells.append(text)
            return
        if not text or (self._notes and self._place != "body") or self._place in ("sldNum", "dt"):
            return
        if self._place in _TITLES:
            self.lines.append("# " + " ".join(text.split()))
        elif self._marked or (self._marked is None and self._place in _BODIES and not self._notes):
            self.lines.append("  " * self._level + "- " + text)
        else:
            self.lines.append("  " * self._level + text)
