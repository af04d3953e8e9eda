"""Text documents and presentations of OpenDocument (.odt, .odp), in the same form as Word documents."""

from __future__ import annotations

import re
from collections.abc import Callable

from orchestrator.documents.encoding import clean
from orchestrator.documents.list_numbers import Level, Lists
from orchestrator.documents.odf_objects import embedded_object
from orchestrator.documents.office import Losses, TextLimit, damage_as, encrypted
from orchestrator.documents.office_package import Package, parse
from orchestrator.documents.superscripts import script_of
from orchestrator.documents.word_fields import SYMBOLS

_SPACE = re.compile(r"[ \t\r\n]+")
_MOST_REPEATED = 100
_MASTER_TEXTS = frozenset("header footer header-left footer-left header-first footer-first".split())
"""Parts of a master page that pages show. All other parts are placeholders (`Click to edit Master title style`)."""
_MASTERS = ("master-page", "handout-master")
_STYLE = "style:1.0}"
_PRESENTATION = "urn:oasis:names:tc:opendocument:xmlns:presentation:1.0}"
_CLASS = f"{_PRESENTATION}class"
_SKIPPED = frozenset(
    "tracked-changes forms sequence-decls scripts font-face-decls meta date creator binary-data".split()
)
_BOXES = {int(code, 16): sign for code, sign in SYMBOLS.items()}
_DESCRIPTION = ("svg-compatible:1.0}title", "svg-compatible:1.0}desc")
"""Elements with a picture's alternative text, which orch leaves out of the text of every format."""
_SAME_FORMULA = "http://www.w3.org/1998/Math/MathML}annotation"
"""Element that repeats a formula in a language other than MathML."""
_FORMATS = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}


def extract(data: bytes, encoding: str | None, most: int = 50_000_000) -> tuple[str, dict[str, object]]:
    """Return the text, one line per paragraph or table row. Raises ExtractionError."""
    del encoding  # XML declares its own encoding
    with damage_as("OpenDocument text"):
        limit = TextLimit(most)
        if data.lstrip()[:1] == b"<":  # flat: the whole document is one XML file
            text = _Text(limit)
            parse((data,), text.start, text.end, text.characters)
            return _text_and_notes(text)
        package = Package(data)
        text = _Text(limit, package)
        if package.holds("META-INF/manifest.xml") and b"encryption-data" in package.whole("META-INF/manifest.xml"):
            raise encrypted()
        if package.holds("styles.xml"):
            package.parse("styles.xml", text.start, text.end, text.characters)
        package.parse("content.xml", text.start, text.end, text.characters)
        return _text_and_notes(text)


def _text_and_notes(text: _Text) -> tuple[str, dict[str, object]]:
    whole = clean("\n".join(line.rstrip() for line in text.done())).strip()
    if any(chr(code) in whole for code in _BOXES):
        whole = whole.translate(_BOXES)
    return whole, {**text.losses.notes()}


class _Text:
    """Collects lines from XML events. Notes and comments come at the end.

    A cell, note or comment collects its own lines. They are placed when it ends.
    """

    def __init__(self, limit: TextLimit, package: Package | None = None) -> None:
        self.losses = Losses()
        self._limit = limit
        self._package = package
        self._lists = Lists()
        self._lines: list[list[str]] = [[]]  # of the document, then of each open cell, note and comment
        self._paragraphs: list[tuple[str, list[str]]] = []  # prefix and pieces of each open paragraph
        self._charts: list[str] = []  # lines of charts in the open paragraph
        self._rows: list[list[str]] = []
        self._open_lists: list[str] = []  # the style of each
        self._item_begins = False
        self._repeats: list[int] = []
        self._notes: list[str] = []
        self._comments: list[str] = []
        self._footers: list[str] = []
        self._skipped = 0
        self._style = ""
        self._scripts: dict[str, Callable[[str], str]] = {}  # by text style
        self._hidden: set[str] = set()  # styles of hidden text
        # Effect of each open span, with its paragraph's pieces and their number at the start of the span.
        self._spans: list[tuple[Callable[[str], str] | None, list[str], int]] = []
        self._is_master = False
        self._is_footer = False  # inside a master slide's footer
        self._master = ""
        self._master_footers: dict[str, list[str]] = {}
        self._with_footer: set[str] = set()  # styles of slides that show their master's footer
        self._break = ""  # prefix of the next line: a form feed at the start of a slide
        self._ends: list[str] = []

    def done(self) -> list[str]:
        return [*self._lines[0], *self._notes, *self._comments, *self._footers]

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._limit.element()
        name = _name(tag)
        if self._is_master and name == "frame" and attributes.get(_CLASS) == "footer" and not self._skipped:
            self._is_master, self._is_footer = False, True
            self._lines.append([])
            return
        is_unseen = tag == _SAME_FORMULA or tag.endswith(_DESCRIPTION)
        is_left_out = name in _SKIPPED or is_unseen or (self._is_master and name not in _MASTER_TEXTS)
        # Presentation fields in a footer differ from slide to slide.
        if self._skipped or is_left_out or (self._is_footer and tag.startswith(_PRESENTATION)):
            self._skipped += 1
            return
        if name in _MASTER_TEXTS:
            self._is_master = False
        about = {key.rpartition("}")[2]: value for key, value in attributes.items()}
        match name:
            case "p" | "h" | "span" if about.get("style-name") in self._hidden:
                self._skipped = 1
            case "section" | "hidden-text" if about.get("display") == "none" or about.get("is-hidden") == "true":
                self._skipped = 1
            case "p" | "h":
                self._paragraphs.append((self._prefix(name, about), []))
            case "s":
                self._add(" " * _number(about.get("c")))
            case "span":
                pieces = self._paragraphs[-1][1] if self._paragraphs else []
                self._spans.append((self._scripts.get(about.get("style-name", "")), pieces, len(pieces)))
            case "style" | "list-style":
                self._style = about.get("name", "")
            case "text-properties":
                if script := script_of(about.get("text-position", "")):
                    self._scripts[self._style] = script
                if about.get("display") == "none":
                    self._hidden.add(self._style)
            case "master-page" | "handout-master":
                self._is_master = True
                self._master = about.get("name", "")
            case "drawing-page-properties" if about.get("display-footer") == "true":
                self._with_footer.add(self._style)
            case "tab" | "line-break":
                self._add("\t" if name == "tab" else "\n")
            case "list-level-style-number" | "list-level-style-bullet":
                self._define(name, about)
            case "list":
                self._open_lists.append(about.get("style-name") or (self._open_lists[-1] if self._open_lists else ""))
            case "list-item":
                self._item_begins = True
            case "image":
                self.losses["picture"] += 1
            case "object" | "object-ole":
                self.losses["picture"] -= 1  # the picture in place of the object
                self._read_object(about.get("href", ""))
            case "table-row":
                self._rows.append([])
            case "table-cell" | "covered-table-cell":
                self._repeats.append(_number(about.get("number-columns-repeated")))
                self._lines.append([])
            case "note-body" | "annotation" | "footer" | "header":
                self._lines.append([])
            case "note-citation":
                self._paragraphs.append(("", []))
            case "page" if "master-page-name" in about:
                self._begin_slide(about)
            case "notes" if len(self._lines) == 1:
                self._lines[-1].append("Notes:")

    def _read_object(self, reference: str) -> None:
        if not reference:
            return  # in a flat file the object's elements follow
        found = embedded_object(self._package, reference, self._limit) if self._package else None
        if found is None:
            self.losses["embedded file"] += 1
        elif found.formula and self._paragraphs:
            self._add(found.formula)
        else:
            self._charts += (*found.lines, *filter(None, (found.formula,)))
            self._emit_charts()

    def _emit_charts(self) -> None:
        if not self._paragraphs:
            charts, self._charts = self._charts, []
            for line in charts:
                self._emit(line)

    def _begin_slide(self, about: dict[str, str]) -> None:
        self._break = "\f" if self._lines[-1] else ""
        if about.get("style-name") in self._with_footer:
            own = self._master_footers.get(about["master-page-name"], ())
            self._footers += (line for line in own if line not in self._footers)

    def end(self, tag: str) -> None:
        if self._skipped:
            self._skipped -= 1
            return
        name = _name(tag)
        if self._is_footer and name == "frame":
            self._master_footers.setdefault(self._master, []).extend(filter(None, self._lines.pop()))
            self._is_master, self._is_footer = True, False
            return
        if name in _MASTER_TEXTS or name in _MASTERS:
            self._is_master = name not in _MASTERS  # after a header, the rest of the master continues
        match name:
            case "span":
                script, pieces, begin = self._spans.pop()
                if script is not None:
                    pieces[begin:] = [script("".join(pieces[begin:]))]
            case "p" | "h":
                mark, pieces = self._paragraphs.pop()
                if (text := "".join(pieces).strip()) or not mark:
                    self._emit(mark + text)
                self._emit_charts()
            case "list":
                self._open_lists.pop()
            case "list-item":
                self._item_begins = False
            case "table-cell" | "covered-table-cell":
                cell = " ".join(" ".join(self._lines.pop()).split())
                if self._rows:
                    self._rows[-1] += [cell] * (self._repeats.pop() if cell else 1)
            case "table-row":
                row = self._rows.pop()
                while row and not row[-1]:
                    row.pop()
                self._emit(" | ".join(row))
            case "note-citation":
                _, pieces = self._paragraphs.pop()
                self._ends.append("".join(pieces).strip() or f"{len(self._notes) + 1}")
                self._add(f"[^{self._ends[-1]}]")
            case "note-body":
                self._notes.append(f"[^{self._ends.pop()}]: " + " ".join(" ".join(self._lines.pop()).split()))
            case "annotation":
                self._comments.append(
                    f"[comment {len(self._comments) + 1}]: " + " ".join(" ".join(self._lines.pop()).split())
                )
                self._add(f"[comment {len(self._comments)}]")
            case "notes" if self._lines[-1][-1:] == ["Notes:"]:  # the slide has no notes
                self._lines[-1].pop()
            case "header":
                self._lines[0] += filter(None, self._lines.pop())
            case "footer":
                self._footers += filter(None, self._lines.pop())

    def characters(self, text: str) -> None:
        if not self._skipped and self._paragraphs:
            self._add(_SPACE.sub(" ", text))

    def _add(self, text: str) -> None:
        if self._paragraphs:
            self._limit.text(text)
            self._paragraphs[-1][1].append(text)

    def _emit(self, line: str) -> None:
        self._lines[-1].append(self._break + line)
        self._break = ""

    def _prefix(self, name: str, about: dict[str, str]) -> str:
        if name == "h":
            return "#" * min(6, _number(about.get("outline-level"))) + " "
        if not self._item_begins or not self._open_lists:
            return ""
        self._item_begins = False
        return self._lists.mark(self._open_lists[-1], len(self._open_lists) - 1)

    def _define(self, name: str, about: dict[str, str]) -> None:
        shape = _FORMATS.get(about.get("num-format", ""), "") if name.endswith("number") else "bullet"
        level = _number(about.get("level")) - 1
        shown = _number(about.get("display-levels"))
        places = ".".join(f"%{place + 1}" for place in range(max(0, level + 1 - shown), level + 1))
        pattern = about.get("num-prefix", "")[:20] + places + about.get("num-suffix", "")[:20]
        self._lists.define(self._style, level, Level(shape, pattern, _number(about.get("start-value"))))


def _name(tag: str) -> str:
    """Return an element's local name.

    Empty for a field that only shows a header or footer, because it shares the name of the element with the text.
    """
    name = tag.rpartition("}")[2]
    return name if name not in _MASTER_TEXTS or tag.endswith(_STYLE + name) else ""


def _number(text: str | None) -> int:
    return max(1, min(int(text), _MOST_REPEATED)) if text is not None and text.isdigit() else 1
