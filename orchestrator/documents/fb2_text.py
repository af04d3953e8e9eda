"""Text of a FictionBook's chapters, in the same form as Word documents."""

from __future__ import annotations

from xml.parsers.expat import ExpatError

from orchestrator.documents.encoding import clean
from orchestrator.documents.office import Losses, TextLimit, damaged
from orchestrator.documents.office_package import parse
from orchestrator.documents.superscripts import lowered, raised

_LINES = frozenset("p v subtitle text-author date".split())
_SCRIPTS = {"sup": raised, "sub": lowered}
_SKIPPED = frozenset("description binary stylesheet".split())


def extract(data: bytes, encoding: str | None, most: int = 50_000_000) -> tuple[str, dict[str, object]]:
    """Return the text, a line per paragraph, verse or table row, and `{"title": ...}`. Raises ExtractionError."""
    del encoding  # XML declares its own encoding
    book = _Book(TextLimit(most))
    try:
        parse((data,), book.start, book.end, book.characters)
    except (ExpatError, ValueError, LookupError) as error:  # expat raises LookupError for unknown encodings
        raise damaged("FictionBook") from error
    if not book.begun:
        raise damaged("FictionBook")
    fields: dict[str, object] = {"title": " ".join("".join(book.title).split()), **book.losses.notes()}
    return clean("\n".join(book.lines)).strip(), fields


class _Book:
    def __init__(self, limit: TextLimit) -> None:
        self._limit = limit
        self._open: list[str] = []
        self._pieces: list[str] = []
        self._cells: list[str] = []
        self._scripts: list[int] = []  # index of the first piece of each open superscript or subscript
        self.losses = Losses()
        self._depth = 0  # of sections
        self._skipped = 0
        self.begun = False
        self.lines: list[str] = []
        self.title: list[str] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        del attributes
        self._limit.element()
        name = tag.rpartition("}")[2]
        self._open.append(name)
        self.begun = self.begun or name == "FictionBook"
        if name in _SKIPPED or self._skipped:
            self._skipped += 1
        elif name == "section":
            self._depth += 1
        elif name in _LINES or name in ("td", "th"):
            self._pieces, self._scripts = [], []
        elif name in _SCRIPTS:
            self._scripts.append(len(self._pieces))
        elif name == "image":
            self.losses["picture"] += 1

    def end(self, tag: str) -> None:
        name = self._open.pop()
        if self._skipped:
            self._skipped -= 1
            return
        if name in _LINES:
            self._line(self._taken(), "title" in self._open)
        elif name in ("td", "th"):
            self._cells.append(self._taken())
        elif name == "tr":
            self._line(" | ".join(self._cells), is_title=False)
            self._cells = []
        elif name == "section":
            self._depth -= 1
        elif name in _SCRIPTS and self._scripts:
            begin = self._scripts.pop()
            self._pieces[begin:] = [_SCRIPTS[name]("".join(self._pieces[begin:]))]
        elif name == "empty-line":
            self.lines.append("")

    def characters(self, text: str) -> None:
        if "book-title" in self._open:
            self.title.append(text)
        elif not self._skipped:
            self._limit.text(text)
            self._pieces.append(text)

    def _taken(self) -> str:
        text = " ".join("".join(self._pieces).split())
        self._pieces = []
        return text

    def _line(self, text: str, is_title: bool) -> None:
        if text:
            self.lines.append(f"{'#' * min(6, max(1, self._depth))} {text}" if is_title else text)
