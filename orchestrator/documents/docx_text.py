"""Paragraphs and tables of a Word document in order, with headers, notes, comments and text boxes.

Headings start with one `#` per level, and list items with their number or a dash. Notes and comments leave a mark in
the text (`[^1]`, `[comment 1]`) and follow at the end.

The XML is read from front to back, and only its text is kept. Time and memory therefore grow with the document's
size, not with the nesting of its elements. The result is the text that a reader of the document sees. It includes
tracked insertions and content controls, which hold the variable parts of contracts. It leaves out deletions and field
codes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from enum import IntEnum, auto

from orchestrator.documents.encoding import clean
from orchestrator.documents.files import extractor
from orchestrator.documents.kinds import Holds, kind_of
from orchestrator.documents.office import Losses, TextLimit, check_container, damage_as
from orchestrator.documents.office_package import Package, new_parser
from orchestrator.documents.shapes_text import drawn_lines
from orchestrator.documents.superscripts import lowered, raised
from orchestrator.documents.types import NOTES, ExtractionError
from orchestrator.documents.word_fields import SYMBOLS, FormField, is_on
from orchestrator.documents.word_styles import NoteNumbers, Properties, Styles, value_of

_WORD = (
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "http://purl.oclc.org/ooxml/wordprocessingml/main",
)
_CHOICE = "http://schemas.openxmlformats.org/markup-compatibility/2006}Choice"
_BOXES = tuple(f"{name}}}txbxContent" for name in _WORD)
_TYPES = tuple(f"{name}}}type" for name in _WORD)
_MARKS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


class _In(IntEnum):
    """Roles of elements, which decide how their children are read. An IntEnum hashes faster than an Enum."""

    BLOCKS = auto()  # the body, a cell, a note, and any wrapper of paragraphs and tables
    INLINE = auto()  # a paragraph, and any wrapper of its text
    TEXT = auto()
    TABLE = auto()
    ROW = auto()
    DRAWING = auto()  # may contain text boxes at any depth
    CHOICES = auto()  # the same content for new and for old programs
    PAGE = auto()  # the root of the document
    NOTES = auto()  # the root of footnotes, endnotes or comments
    EQUATION = auto()
    PROPERTIES = auto()  # a paragraph's properties
    RUN = auto()  # a run's properties
    FIELD = auto()  # a legacy form field


_WRAPPERS = "sdt sdtContent ins moveTo customXml smartTag".split()
# `del` and `moveFrom` are missing on purpose: the document no longer contains their text.
_INLINE = "r hyperlink ins moveTo smartTag sdt sdtContent fldSimple customXml dir bdo ruby rubyBase Choice".split()
_CHILDREN: dict[_In, dict[str, _In]] = {
    _In.BLOCKS: {**dict.fromkeys(_WRAPPERS, _In.BLOCKS), "p": _In.INLINE, "tbl": _In.TABLE},
    _In.INLINE: {
        **dict.fromkeys(_INLINE, _In.INLINE),
        **dict.fromkeys(("drawing", "pict", "object"), _In.DRAWING),
        **dict.fromkeys(("oMath", "oMathPara"), _In.EQUATION),
        "t": _In.TEXT,
        "AlternateContent": _In.CHOICES,
        "pPr": _In.PROPERTIES,
        "rPr": _In.RUN,
        "fldChar": _In.FIELD,
    },
    _In.TABLE: {**dict.fromkeys(_WRAPPERS, _In.TABLE), "tr": _In.ROW},
    _In.ROW: {**dict.fromkeys(_WRAPPERS, _In.ROW), "tc": _In.BLOCKS},
    _In.PAGE: {"body": _In.BLOCKS},
    _In.NOTES: {"footnote": _In.BLOCKS, "endnote": _In.BLOCKS, "comment": _In.BLOCKS},
    _In.PROPERTIES: {"numPr": _In.PROPERTIES},
    _In.FIELD: dict.fromkeys(("ffData", "checkBox", "ddList"), _In.FIELD),
}
MOST_DEPTH = 3  # of documents embedded in documents
_SCRIPTS = {"superscript": raised, "subscript": lowered}
_EQUATIONS = {"num": "", "den": "/", "sup": "^", "sub": "_", "deg": "root "}
"""Prefix of each part of an equation that becomes one line of text. Parts longer than a character get brackets."""
_REFERENCES = {"footnoteReference": "footnote", "endnoteReference": "endnote", "commentReference": "comment"}


def extract(data: bytes, encoding: str | None, most: int = 50_000_000) -> tuple[str, dict[str, object]]:
    """Return the text, with one line per paragraph or table row, and notes of what was not read.

    Raises ExtractionError (encrypted, unreadable ...).
    """
    del encoding  # XML declares its own encoding
    check_container(data, "a Word 97-2003 document; save it as .docx or PDF")
    losses = Losses()
    with damage_as("Word document"):
        lines = list(_lines(Package(data), TextLimit(most), losses))
    return clean("\n".join(line.rstrip() for line in lines)).strip(), {**losses.notes()}


def _lines(package: Package, limit: TextLimit, losses: Losses, depth: int = 1) -> Iterator[str]:
    main = package.main_part()
    relations = package.relations(main)
    styles, notes = Styles(package, relations), NoteNumbers()
    kept = {relation.id: relation.target for relation in relations if relation.kind == "aFChunk"}

    def kept_lines(ident: str) -> list[str]:
        lines = _alt_chunk_lines(package, kept.get(ident, ""), limit, losses, depth)
        losses["part in another format"] += not any(lines)
        return lines

    for kind in ("header", "document", "footnotes", "endnotes", "comments", "footer"):
        names = [main] if kind == "document" else [relation.target for relation in relations if relation.kind == kind]
        seen = set()
        for part in dict.fromkeys(names):
            text = _Text(kind, limit, styles, notes, losses, kept_lines)
            digest = _read(package, part, text)
            if digest not in seen:  # sections may share a header
                yield from text.lines
            seen.add(digest)
        if kind == "document":
            yield from drawn_lines(package, main, limit, losses)


def _alt_chunk_lines(package: Package, part: str, limit: TextLimit, losses: Losses, depth: int) -> list[str]:
    if not package.holds(part) or depth > MOST_DEPTH:
        return []
    data, kind = package.whole(part), kind_of(part, {}, as_rows=False)
    try:
        if kind.name == "docx":
            return list(_lines(Package(data), limit, losses, depth + 1))
        if kind.holds is not Holds.ONE:
            return []
        text, more = extractor(kind.name)(data, None, len(data) * 10)
    except ExtractionError:
        return []
    limit.text(text)
    losses["part in another format"] += NOTES in more
    return text.split("\n")


def _read(package: Package, part: str, text: _Text) -> bytes:
    digest = hashlib.sha256()
    parser = new_parser()
    parser.StartElementHandler, parser.EndElementHandler = text.start, text.end
    parser.CharacterDataHandler = text.characters
    for piece in package.pieces(part):
        digest.update(piece)
        parser.Parse(piece)
    parser.Parse(b"", True)
    return digest.digest()


class _Text:
    """Collects lines from XML events.

    Each paragraph or table row becomes a line. Nested content (text boxes, tables in cells) is appended to the same
    pieces. So no text is copied more than a few times. Raises ExtractionError.
    """

    def __init__(
        self, kind: str, limit: TextLimit, styles: Styles, notes: NoteNumbers, losses: Losses,
        kept_lines: Callable[[str], list[str]],
    ) -> None:  # fmt: skip
        self.lines: list[str] = []
        self._kind = kind
        self._limit = limit
        self._styles = styles
        self._notes = notes
        self._losses = losses
        self._kept_lines = kept_lines
        self._field = FormField()
        self._is_hidden = False  # the open run
        self._label = ""  # prefix of the note that begins
        self._mark = ""  # prefix of the open line
        self._properties = Properties()
        self._open: list[tuple[_In, Callable[[], None]]] = []  # each element's role, and its action at the end
        self._ignored = 0  # number of open elements from the first ignored one on
        self._is_text = False
        self._script: Callable[[str], str] | None = None  # superscript or subscript of the open run
        self._run = 0  # index of the open run's first piece
        self._pieces: list[str] = []
        self._outside: list[str] = []  # the pieces around the outermost open cell
        self._cells = 0  # number of nested open cells
        self._inner: list[str] = []  # line separator of each open box or cell
        self._has_line: list[bool] = []  # for each open box or cell
        self._has_cell: list[bool] = []  # for each open row

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._limit.element()
        self._is_text = False  # text after a child does not belong to the text element
        if self._ignored:
            self._ignored += 1
        elif not self._open:
            self._open.append((self._root(tag), _nothing))
        elif (now := self._child(tag, attributes)) is not None:
            self._open.append((now, self._begin(now, tag.rpartition("}")[2])))
        else:
            self._ignored = 1

    def end(self, tag: str) -> None:
        if self._ignored:
            self._ignored -= 1
        else:
            self._open.pop()[1]()

    def characters(self, text: str) -> None:
        if self._is_text:
            self._limit.text(text)
            self._pieces.append(text)

    def _root(self, tag: str) -> _In:
        if self._kind == "document":
            if tag.rpartition("}")[2] != "document":
                raise ValueError(tag)
            return _In.PAGE
        return _In.NOTES if self._kind in ("footnotes", "endnotes", "comments") else _In.BLOCKS

    def _child(self, tag: str, attributes: dict[str, str]) -> _In | None:
        parent, name = self._open[-1][0], tag.rpartition("}")[2]
        if parent is _In.RUN:  # first, because these elements are the most frequent
            if name == "vertAlign":
                self._script = _SCRIPTS.get(value_of(attributes))
            elif name == "vanish":
                self._is_hidden = is_on(value_of(attributes))
        elif parent is _In.INLINE:
            if (mark := _MARKS.get(name)) is None and name in _REFERENCES:
                mark = self._notes.label(_REFERENCES[name], value_of(attributes, "id"))
            if mark is not None:
                self._pieces.append(mark)
                return None
        elif parent is _In.DRAWING:
            self._count_loss(name, attributes)
            return _In.BLOCKS if tag in _BOXES else _In.DRAWING
        elif parent is _In.CHOICES:
            return _In.INLINE if tag == _CHOICE else None
        elif parent is _In.PROPERTIES:
            self._properties.take(name, value_of(attributes))
        elif parent is _In.NOTES and not self._begins_note(name, attributes):
            return None
        children = _CHILDREN.get(parent)
        now = children.get(name) if children is not None else None
        return now or self._rare_child(parent, name, attributes)

    def _rare_child(self, parent: _In, name: str, attributes: dict[str, str]) -> _In | None:
        if parent is _In.EQUATION:
            return _In.TEXT if name == "t" else None if name.endswith("Pr") else _In.EQUATION
        if parent is _In.INLINE and name == "sym" and "ingdings" in value_of(attributes, "font"):
            self._pieces.append(SYMBOLS.get(value_of(attributes, "char").upper(), ""))
        elif parent is _In.FIELD:
            self._field.take(name, value_of(attributes))
        elif parent is _In.BLOCKS and name == "altChunk":
            lines = self._kept_lines(value_of(attributes, "id"))
            if self._inner:
                self._pieces.append(self._inner[-1].join(lines))
            else:
                self.lines += lines
        return None

    def _count_loss(self, name: str, attributes: dict[str, str]) -> None:
        if name in ("blip", "imagedata"):
            self._losses["picture"] += 1
        elif name == "OLEObject" and not attributes.get("ProgID", "").startswith("Equation"):
            self._losses["embedded file"] += 1
            self._losses["picture"] -= 1  # the object's preview picture

    def _begins_note(self, name: str, attributes: dict[str, str]) -> bool:
        if any(name in attributes for name in _TYPES):  # a line that separates notes from the page
            return False
        self._label = self._notes.label(name, value_of(attributes, "id")) + ": "
        if author := value_of(attributes, "author"):
            self._label += f"{author}: "
        return True

    def _begin(self, now: _In, name: str) -> Callable[[], None]:
        if now is _In.EQUATION and name in _EQUATIONS:
            begin = len(self._pieces)
            return lambda: self._end_of_equation(_EQUATIONS[name], begin)
        match name:
            case "p" if now is _In.INLINE:
                return self._begin_line()
            case "r" if now is _In.INLINE:
                self._script, self._is_hidden, self._run = None, False, len(self._pieces)
                return self._end_run
            case "pPr" if now is _In.PROPERTIES:
                self._properties = Properties()
                return self._end_properties
            case "fldChar":
                self._field = FormField()
                return self._end_field
            case "checkBox" | "ddList":
                self._field.take(name, "")
            case "t" if now is _In.TEXT:
                self._is_text = True
                return self._end_text
            case "tbl" if now is _In.TABLE:
                return self._end_table
            case "tr" if now is _In.ROW:
                self._has_cell.append(False)
                self._begin_line()
                return self._end_row
            case "tc" if now is _In.BLOCKS:
                return self._begin_cell()
            case "txbxContent" if now is _In.BLOCKS:
                return self._begin_box()
        return _nothing

    def _end_field(self) -> None:
        self._pieces.append(self._field.text())

    def _end_run(self) -> None:
        if self._is_hidden:
            del self._pieces[self._run :]
            self._is_hidden = False
        if self._script is not None:
            self._pieces[self._run :] = [self._script("".join(self._pieces[self._run :]))]
            self._script = None

    def _end_of_equation(self, sign: str, begin: int) -> None:
        text = "".join(self._pieces[begin:])
        self._pieces[begin:] = [sign + (f"({text})" if len(text) > 1 else text)] if text else []

    def _end_text(self) -> None:
        self._is_text = False

    def _end_properties(self) -> None:
        mark = self._styles.mark(self._properties)
        if not self._inner:
            self._mark = mark
        self._limit.text(mark)
        self._pieces.append(mark)

    def _begin_line(self) -> Callable[[], None]:
        if self._inner:
            if self._has_line[-1]:
                self._pieces.append(self._inner[-1])
            self._has_line[-1] = True
        if self._label:
            self._pieces.append(self._label)
            self._label = ""
        return self._end_line

    def _end_line(self) -> None:
        if not self._inner:
            line = "".join(self._pieces)
            self.lines.append("" if line == self._mark else line)
            self._pieces, self._mark = [], ""

    def _end_row(self) -> None:
        self._has_cell.pop()
        self._end_line()

    def _end_table(self) -> None:
        self._begin_line()
        self._end_line()

    def _begin_cell(self) -> Callable[[], None]:
        if self._has_cell[-1]:
            self._pieces.append(" | ")
        self._has_cell[-1] = True
        if not self._cells:
            self._outside, self._pieces = self._pieces, []
        self._cells += 1
        self._inner.append(" ")
        self._has_line.append(False)
        return self._end_cell

    def _end_cell(self) -> None:
        self._inner.pop()
        self._has_line.pop()
        self._cells -= 1
        if not self._cells:
            # A run of spaces and line breaks in a cell becomes one space.
            self._outside.append(" ".join("".join(self._pieces).split()))
            self._pieces, self._outside = self._outside, []

    def _begin_box(self) -> Callable[[], None]:
        self._pieces.append("\n")
        self._inner.append("\n")
        self._has_line.append(False)
        return self._end_box

    def _end_box(self) -> None:
        self._inner.pop()
        self._has_line.pop()
        self._pieces.append("\n")


def _nothing() -> None:
    """Do nothing at the end of an element."""
