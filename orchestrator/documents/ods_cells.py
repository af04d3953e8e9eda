"""Sheets of OpenDocument (.ods, .ots, .fods), read from front to back. Empty areas of any size take no memory.

Values and errors appear as the program that saved the file shows them. Comments and text boxes follow the cells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field

from orchestrator.documents.odf_objects import embedded_object
from orchestrator.documents.office import Losses, TextLimit, encrypted
from orchestrator.documents.office_package import Package, parse
from orchestrator.documents.superscripts import script_of
from orchestrator.documents.types import ExtractionError, beyond_limit
from orchestrator.documents.workbook_repair import MOST_CELLS, letters_of

_OASIS = "urn:oasis:names:tc:opendocument:xmlns:"
_TABLE, _OFFICE, _TEXT, _STYLE = (f"{_OASIS}{name}:1.0}}" for name in ("table", "office", "text", "style"))
_SHAPES = f"{_OASIS}drawing:1.0}}"
_CREATOR = "http://purl.org/dc/elements/1.1/}creator"
_TYPES = (f"{_OFFICE}value-type", "urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0}value-type")
_VALUES = tuple(f"{_OFFICE}{name}" for name in ("value", "string-value", "date-value", "time-value", "boolean-value"))
_MOST_ROWS, _MOST_COLUMNS, _MOST_SPACES = 1_048_576, 16_384, 1_000
_MOST_TEXT = 50_000_000
_BOXES = (
    "text-box custom-shape rect circle ellipse line connector caption measure polyline polygon regular-polygon path"
).split()
"""Drawn shapes that may hold text."""
_REFERENCE = "http://www.w3.org/1999/xlink}href"
_MANIFEST = "META-INF/manifest.xml"
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.(\d+))?")
_DURATION = re.compile(r"PT(\d+)H(\d\d?)M(\d\d?)(?:\.(\d+))?S")


class OdsSheet(Struct):
    """A sheet. Each row ends with its last non-empty cell.

    `beside` holds lines from outside the cells; `embedded` counts objects without text.
    """

    name: str
    is_hidden: bool
    rows: list[list[str]] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    embedded: int = 0

    def drop_empty(self) -> None:
        """Remove empty rows and columns if the sheet's rectangle has more than MOST_CELLS."""
        if len(self.rows) * max(map(len, self.rows), default=0) > MOST_CELLS:
            rows = list(filter(None, self.rows))
            used = sorted({at for row in rows for at, cell in enumerate(row) if cell})
            self.rows = [[row[at] for at in used if at < len(row)] for row in rows]


def holds_sheets(data: bytes, package: Package | None) -> bool:
    """Return True if a file is an OpenDocument spreadsheet, packaged or as one XML file."""
    if package is not None:
        # A locked file may hold only its manifest and one encrypted part.
        return package.holds("content.xml") or (package.holds(_MANIFEST) and not package.holds("[Content_Types].xml"))
    return data.lstrip()[:1] == b"<" and _OASIS.encode() in data[:8192]


def ods_sheets(data: bytes, package: Package | None, shown: Callable[[float], str]) -> list[OdsSheet]:
    """Return all sheets. `shown` formats numbers. Raises ExtractionError, and the errors of zipfile and expat."""
    pieces: Iterable[bytes] = (data.lstrip(),)
    if package is not None:
        if package.holds(_MANIFEST) and b"encryption-data" in package.whole(_MANIFEST):
            raise encrypted()
        pieces = package.pieces("content.xml")
    book = _Book(shown, package)
    parse(pieces, book.start, book.end, book.characters)
    return book.sheets


class OdsParts:
    """The text of each sheet that is outside its cells, such as comments and shapes."""

    def __init__(self, sheets: Sequence[OdsSheet]) -> None:
        self.losses = Losses({"embedded file": sum(sheet.embedded for sheet in sheets)})
        self._beside = {sheet.name: sheet.beside for sheet in sheets}

    def lines(self, sheet: str) -> list[str]:
        return self._beside.get(sheet, [])


class _Book:
    def __init__(self, shown: Callable[[float], str], package: Package | None) -> None:
        self.sheets: list[OdsSheet] = []
        self._shown = shown
        self._package = package
        self._limit = TextLimit(_MOST_TEXT)
        self._hidden: set[str] = set()
        self._scripts: dict[str, Callable[[str], str]] = {}  # by text style
        self._spans: list[tuple[Callable[[str], str] | None, int]] = []  # effect and first piece of each open span
        self._style = ""
        self._depth = 0  # of nested tables
        self._row: list[str] = []
        self._rows = self._columns = 1  # how often the open row and cell are repeated
        self._empty = self._blank = 0  # empty cells before the open cell, and empty rows before the open row
        self._cells = 0
        self._value: str | None = None  # of the open cell; None if its text is the value
        self._lines: list[list[list[str]]] = []  # paragraphs of the open cell and of its open shapes and comments
        self._comments: list[str] = []
        self._is_author = False
        self._is_text = False
        self._starts = {
            f"{_STYLE}style": self._begin_style,
            f"{_STYLE}table-properties": self._table_style,
            f"{_STYLE}text-properties": self._text_style,
            f"{_TABLE}table": self._begin_table,
            f"{_TABLE}table-row": self._begin_row,
            f"{_TABLE}table-cell": self._begin_cell,
            f"{_TABLE}covered-table-cell": self._begin_cell,
            f"{_TEXT}p": self._begin_paragraph,
            f"{_TEXT}span": self._begin_span,
            f"{_TEXT}s": self._spaces,
            f"{_TEXT}tab": self._spaces,
            f"{_TEXT}line-break": self._spaces,
            f"{_OFFICE}annotation": self._begin_comment,
            _CREATOR: self._begin_author,
            f"{_SHAPES}object": self._read_object,
            **dict.fromkeys((f"{_SHAPES}{name}" for name in _BOXES), self._begin_shape),
        }
        self._ends = {
            f"{_TABLE}table": self._end_table,
            f"{_TABLE}table-row": self._end_row,
            f"{_TABLE}table-cell": self._end_cell,
            f"{_TABLE}covered-table-cell": self._end_cell,
            f"{_TEXT}p": self._end_paragraph,
            f"{_TEXT}span": self._end_span,
            f"{_OFFICE}annotation": self._end_comment,
            _CREATOR: self._end_paragraph,
            **dict.fromkeys((f"{_SHAPES}{name}" for name in _BOXES), self._end_shape),
        }

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if (handle := self._starts.get(tag)) is not None:
            handle(attributes)

    def end(self, tag: str) -> None:
        if (handle := self._ends.get(tag)) is not None:
            handle()

    def characters(self, text: str) -> None:
        if self._is_text and self._lines:
            self._lines[-1][-1].append(text)

    def _begin_style(self, attributes: dict[str, str]) -> None:
        self._style = attributes.get(f"{_STYLE}name", "")

    def _table_style(self, attributes: dict[str, str]) -> None:
        if attributes.get(f"{_TABLE}display") == "false":
            self._hidden.add(self._style)

    def _text_style(self, attributes: dict[str, str]) -> None:
        if (script := script_of(attributes.get(f"{_STYLE}text-position", ""))) is not None:
            self._scripts[self._style] = script

    def _begin_table(self, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and (name := attributes.get(f"{_TABLE}name")) is not None:
            is_hidden = attributes.get(f"{_TABLE}style-name", "") in self._hidden
            self.sheets.append(OdsSheet(name, is_hidden))
            self._comments, self._blank = [], 0

    def _end_table(self) -> None:
        self._depth -= 1
        if self._depth == 0 and self.sheets:
            sheet = self.sheets[-1]
            sheet.beside += self._comments
            sheet.drop_empty()

    def _begin_row(self, attributes: dict[str, str]) -> None:
        if self._depth == 1:
            self._row, self._empty = [], 0
            self._rows = _repeated(attributes, "rows", _MOST_ROWS)

    def _end_row(self) -> None:
        if self._depth != 1 or not self.sheets:
            return
        rows = self.sheets[-1].rows
        if not self._row:
            self._blank = min(self._blank + self._rows, _MOST_ROWS - len(rows))
            return
        self._cells += len(self._row) * self._rows
        if self._cells > MOST_CELLS:
            raise too_many_cells()
        rows += [[]] * self._blank
        rows += [self._row] * min(self._rows, _MOST_ROWS - len(rows))
        self._blank = 0

    def _begin_cell(self, attributes: dict[str, str]) -> None:
        if self._depth == 1:
            self._columns = _repeated(attributes, "columns", _MOST_COLUMNS)
            self._value = None if "error" in map(attributes.get, _TYPES) else self._stated(attributes)
            self._lines = [[]]

    def _end_cell(self) -> None:
        if self._depth > 1:
            return
        value = "\n".join(map("".join, self._lines[0])) if self._value is None else self._value
        self._lines = []
        if not value:
            self._empty += self._columns
            return
        before = min(self._empty, _MOST_COLUMNS - len(self._row))
        again = min(self._columns, _MOST_COLUMNS - len(self._row) - before)
        self._row += [""] * before + [value] * again
        self._empty = 0

    def _stated(self, attributes: dict[str, str]) -> str | None:
        name = next((name for name in attributes if name in _VALUES), None)
        if name is None:
            return None
        value = attributes[name]
        if name == _VALUES[0]:
            try:
                return self._shown(float(value))
            except ValueError:
                return None
        if name == _VALUES[4]:
            return "TRUE" if value.lower() == "true" else "FALSE"
        return value if name == _VALUES[1] else moment(value)

    def _begin_paragraph(self, attributes: dict[str, str]) -> None:
        del attributes
        if self._lines:
            self._lines[-1].append([])
            self._is_text = True

    def _end_paragraph(self) -> None:
        self._is_text = False

    def _begin_span(self, attributes: dict[str, str]) -> None:
        begin = len(self._lines[-1][-1]) if self._is_text and self._lines else 0
        self._spans.append((self._scripts.get(attributes.get(f"{_TEXT}style-name", "")), begin))

    def _end_span(self) -> None:
        script, begin = self._spans.pop()
        if script is not None and self._is_text and self._lines:
            pieces = self._lines[-1][-1]
            pieces[begin:] = [script("".join(pieces[begin:]))]

    def _spaces(self, attributes: dict[str, str]) -> None:
        number = attributes.get(f"{_TEXT}c", "1")
        self.characters(" " * min(int(number), _MOST_SPACES) if number.isdecimal() else " ")

    def _begin_author(self, attributes: dict[str, str]) -> None:
        self._begin_paragraph(attributes)
        self._is_author = True

    def _begin_comment(self, attributes: dict[str, str]) -> None:
        del attributes
        self._lines.append([])
        self._is_author = False

    def _end_comment(self) -> None:
        lines = list(map("".join, self._lines.pop())) if self._lines else []
        author = f"{lines.pop(0)}: " if self._is_author and lines else ""
        if text := " ".join(" ".join(lines).split()):
            row = (len(self.sheets[-1].rows) if self.sheets else 0) + self._blank + 1
            column = len(self._row) + self._empty + 1
            self._comments.append(f"[comment {letters_of(column).decode()}{row}]: {author}{text}")

    def _read_object(self, attributes: dict[str, str]) -> None:
        reference = attributes.get(_REFERENCE)
        if not self.sheets or self._package is None or reference is None:
            return
        found = embedded_object(self._package, reference, self._limit)
        if found is None:
            self.sheets[-1].embedded += 1
        else:
            self.sheets[-1].beside += (*found.lines, *filter(None, (found.formula,)))

    def _begin_shape(self, attributes: dict[str, str]) -> None:
        del attributes
        self._lines.append([])

    def _end_shape(self) -> None:
        lines = list(map("".join, self._lines.pop())) if self._lines else []
        if self.sheets:
            self.sheets[-1].beside += filter(None, (" ".join(line.split()) for line in lines))


def too_many_cells() -> ExtractionError:
    return beyond_limit(f"It has more than {MOST_CELLS:,} cells with anything in them; split it, or exclude it.")


def _repeated(attributes: dict[str, str], what: str, most: int) -> int:
    number = attributes.get(f"{_TABLE}number-{what}-repeated", "1")
    return min(int(number), most) if number.isdecimal() and len(number) < 10 else most


def moment(value: str) -> str:
    """Return a date or duration as a spreadsheet shows it. Other values stay as written."""
    if (found := _MOMENT.fullmatch(value)) is not None:
        fraction = found[3] if found[3] and found[3].strip("0") else ""
        if found[2] == "00:00:00" and not fraction:
            return found[1]
        return f"{found[1]} {found[2]}" + (f".{fraction[:6]:0<6}" if fraction else "")
    if (found := _DURATION.fullmatch(value)) is not None:
        fraction = found[4] if found[4] and found[4][:6].strip("0") else ""
        return f"{int(found[1]):02}:{found[2]:0>2}:{found[3]:0>2}" + (f".{fraction[:6]:0<6}" if fraction else "")
    return value
