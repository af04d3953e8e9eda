"""The text of RTF files as a reader sees it, with headers, notes, comments and text boxes.

As in Word documents, notes and comments leave a mark in the text (`[^1]`, `[comment 1]`) and follow at the end.
Deletions, hidden text, field codes and pictures are omitted. An invalid byte of a code page spoils one character.
Sources: the specification 1.9.1, and the files that Word and LibreOffice write.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from orchestrator.documents.code_pages import CHARSETS, byte_page
from orchestrator.documents.encoding import clean, named, whole
from orchestrator.documents.office import Losses, damaged
from orchestrator.documents.superscripts import lowered, raised

_TOKEN = re.compile(
    rb"\\(?P<word>[a-zA-Z]{1,32})(?P<number>-?\d{1,10})? ?|\\'(?P<hex>[0-9a-fA-F]{2})|\\(?P<symbol>.)"
    rb"|(?P<open>\{)|(?P<close>\})|[\r\n]+|(?P<text>[^\\{}\r\n]+)",
    re.DOTALL,
)
_CHARACTERS = {
    "par": "\n", "line": "\n", "sect": "\n\n", "page": "\n\n", "row": "\n", "cell": "|", "nestcell": "|", "tab": "\t",
    "emdash": "\u2014", "endash": "\u2013", "emspace": "\u2003", "enspace": "\u2002", "qmspace": "\u2005",
    "bullet": "\u2022", "lquote": "\u2018", "rquote": "\u2019", "ldblquote": "\u201c", "rdblquote": "\u201d",
}  # fmt: skip
_SYMBOLS = {"~": "\xa0", "\n": "\n", "\r": "\n", "{": "{", "}": "}", "\\": "\\", "-": "\xad", "_": "\u2011"}
_CODE_PAGES = {"mac": "mac_roman", "pc": "cp437", "pca": "cp850"}
# These groups are skipped, as is any group that begins with `\*` and is not named below.
_SKIPPED = frozenset(
    "colortbl stylesheet info pict sp shprslt filetbl nonesttables nesttableprops xe tc rxe mmathPict "
    "aftncn aftnsep aftnsepc ftncn ftnsep ftnsepc objclass objname objdata pntxta pntxtb template private "
    "formfield datafield".split()
)
_AROUND = frozenset(("shp", "shpinst", "shpgrp", "do", "object", "upr"))
"""Groups that have no text of their own, but whose inner groups may contain text."""
_WITHIN = frozenset(("result", "ud"))
_BOXES = frozenset(("shptxt", "dptxbxtext"))
_SHOWN = frozenset(("moMath", "moMathPara", "listtext", "pntext", "fldrslt"))
_HEADERS = frozenset(("header", "headerl", "headerr", "headerf"))
_FOOTERS = frozenset(("footer", "footerl", "footerr", "footerf"))
_EQUATIONS = {"msup": "^", "msub": "_", "mden": "/"}
_LINK = re.compile(r'HYPERLINK\s+("[^"]*")')

_LOST = re.compile(rb"\\(pict|nonshppict|objdata)(?![a-z])")


def extract(data: bytes, encoding: str | None, most: int = 0) -> tuple[str, dict[str, object]]:
    """Return the text. Raises ExtractionError (unreadable)."""
    del most  # a text has at most as many characters as bytes
    if not data.lstrip().startswith(b"{\\rtf"):
        raise damaged("RTF document")
    text = _Text(named(encoding) or "cp1252").read(data)
    return clean("\n".join(line.rstrip() for line in text.split("\n"))).strip(), {**_losses(data).notes()}


def _losses(data: bytes) -> Losses:
    words = Counter(word for (word,) in map(re.Match.groups, _LOST.finditer(data)))
    # Each copy for old programs and each embedded object adds a `pict`.
    pictures = words[b"pict"] - words[b"nonshppict"] - words[b"objdata"]
    return Losses({"picture": pictures, "embedded file": words[b"objdata"]})


def _nothing() -> None:
    """Do nothing at a group's end."""


class _Group:
    """State of one group, which a pair of braces encloses.

    `out` collects the text; None if the group is skipped. `around` collects the text of inner groups. `skip` is the
    number of characters after each `\\u` that replace it for old programs. `is_new` is True until something was read,
    because only the first word may name the group's kind.
    """

    __slots__ = ("around", "at_end", "font", "is_new", "is_starred", "out", "script", "since", "skip", "unseen")

    around: list[str] | None
    font: int | None
    script: Callable[[str], str] | None
    skip: int
    unseen: frozenset[str]
    """Active control words that hide text."""

    def __init__(self, out: list[str] | None, parent: _Group | None = None) -> None:
        self.out = out
        self.since = 0 if out is None else len(out)
        self.is_new, self.is_starred = parent is not None, False
        self.at_end: Callable[[], None] = _nothing
        if parent is None:
            self.around = self.font = self.script = None
            self.skip, self.unseen = 1, frozenset()
        else:
            self.around, self.font, self.script = parent.around, parent.font, parent.script
            self.skip, self.unseen = parent.skip, parent.unseen

    def to(self, out: list[str] | None) -> None:
        self.out, self.script, self.unseen = out, None, frozenset()
        self.since = 0 if out is None else len(out)

    def scripted(self, script: Callable[[str], str] | None) -> None:
        """Make the following text superscript or subscript; None ends it."""
        if self.script is not None and self.out is not None and len(self.out) > self.since:
            self.out[self.since :] = [self.script("".join(self.out[self.since :]))]
        self.script = script
        self.since = 0 if self.out is None else len(self.out)


class _Text:
    """Reads one file. Unknown control words have no effect."""

    def __init__(self, code_page: str) -> None:
        self._code_page = code_page
        self._fonts: dict[int, str] = {}
        self._in_fonts = 0  # open groups of the font table
        self._default_font: int | None = None
        self._body: list[str] = []
        self._headers: list[list[str]] = []
        self._footers: list[list[str]] = []
        self._notes: list[list[str]] = []
        self._comments: list[list[str]] = []
        self._counts = [0, 0]  # of footnotes and of endnotes
        self._mark: tuple[list[str], int] | None = None  # list and index of the latest note's mark
        self._author: list[str] = []
        self._link = ""
        self._groups = [_Group(None)]
        self._bytes = bytearray()
        self._left = 0  # characters to skip

    def read(self, data: bytes) -> str:
        at = data.index(b"{")
        while (found := _TOKEN.match(data, at)) is not None:
            at = found.end()
            match found.lastgroup:
                case "text":
                    self._plain(found["text"])
                case "hex":
                    self._plain(bytes.fromhex(found["hex"].decode()))
                case "open":
                    self._begin()
                case "close":
                    self._end()
                    if len(self._groups) == 1:
                        break
                case "word" | "number":
                    number = found["number"]
                    at += self._word(found["word"].decode(), None if number is None else int(number))
                case "symbol":
                    self._symbol(found["symbol"].decode("latin-1"))
        while len(self._groups) > 1:  # the file is truncated
            self._end()
        headers, footers = (
            list(dict.fromkeys(text for one in some if (text := "".join(one).strip())))
            for some in (self._headers, self._footers)
        )
        notes = [f"{label}: {''.join(rest).strip()}" for label, *rest in (*self._notes, *self._comments)]
        return whole("\n".join([*headers, "".join(self._body).strip("\n"), *notes, *footers]))

    @property
    def _group(self) -> _Group:
        return self._groups[-1]

    def _put(self, text: str) -> None:
        group = self._group
        if group.out is not None and not group.unseen:
            group.out.append(text)

    def _flush(self) -> None:
        """Decode the collected bytes. Bytes are collected because some code pages use two bytes per character."""
        if not self._bytes:
            return
        data, self._bytes = bytes(self._bytes), bytearray()
        if data.isascii():
            self._put(data.decode("ascii"))
            return
        font = self._fonts.get(-1 if self._group.font is None else self._group.font, self._code_page)
        for code_page in (font, self._code_page):
            try:
                self._put(data.decode(code_page))
                return
            except ValueError:
                continue
        self._put(data.decode(font, "replace"))

    def _begin(self) -> None:
        self._flush()
        self._left = 0
        parent = self._group
        self._groups.append(_Group(self._body if len(self._groups) == 1 else parent.out, parent))
        self._in_fonts += self._in_fonts > 0

    def _end(self) -> None:
        self._flush()
        self._left = 0
        self._in_fonts -= self._in_fonts > 0
        self._group.scripted(None)
        self._groups.pop().at_end()

    def _plain(self, data: bytes) -> None:
        self._group.is_new = self._group.is_new and data.isspace()
        passed = min(self._left, len(data))
        self._left -= passed
        self._bytes += data[passed:]

    def _symbol(self, symbol: str) -> None:
        self._flush()
        self._left = 0
        if symbol == "*":
            self._group.is_starred = self._group.is_new
            return
        self._group.is_new = False
        self._put(_SYMBOLS.get(symbol, ""))

    def _word(self, word: str, number: int | None) -> int:
        """Handle a control word and return the number of bytes after it to skip."""
        group = self._group
        self._flush()
        self._left = 0
        is_first, group.is_new = group.is_new, False
        if is_first and self._open_destination(word):
            return 0
        if word == "bin":
            return max(0, number or 0)
        if word == "u":
            if number is not None:
                self._put(chr(number % 0x10000))
            self._left = group.skip
        elif word in _CHARACTERS:
            self._put(_CHARACTERS[word])
        else:
            self._property(word, number)
        return 0

    def _property(self, word: str, number: int | None) -> None:
        group = self._group
        match word:
            case "f":
                group.font = number
            case "fcharset" if self._in_fonts and group.font is not None:
                if (code_page := CHARSETS.get(number or 0)) is not None:
                    self._fonts[group.font] = code_page
            case "cpg" if self._in_fonts and group.font is not None:
                self._fonts[group.font] = byte_page(number or 1252) or self._code_page
            case "deff":
                group.font = self._default_font = number
            case "ansicpg":
                self._code_page = byte_page(number or 1252) or self._code_page
            case "mac" | "pc" | "pca":
                self._code_page = _CODE_PAGES[word]
            case "uc":
                group.skip = max(0, number or 0)
            case "plain":
                group.unseen, group.font = frozenset(), self._default_font
                group.scripted(None)
            case "deleted" | "v":
                group.unseen = group.unseen - {word} if number == 0 else group.unseen | {word}
            case "super" | "sub":
                script = raised if word == "super" else lowered
                group.scripted(None if number == 0 else script)
            case "nosupersub":
                group.scripted(None)
            case "ftnalt" if self._notes and group.out is self._notes[-1]:
                self._is_endnote(group.out)

    def _open_destination(self, word: str) -> bool:
        """Redirect or skip the group if this word names its kind; return False if the word does not."""
        group = self._group
        place = group.around if group.out is None else group.out
        if word in _AROUND:
            group.around = place
            group.to(None)
        elif word in _WITHIN:
            group.to(group.around)
        elif word in _BOXES:
            self._elsewhere(lambda text: _framed(place, text))
        elif word in _SKIPPED or (word.startswith("m") and word.endswith("Pr")):
            group.around = None
            group.to(None)
        elif word == "fonttbl":
            self._in_fonts = 1
            group.to(None)
        elif word in _HEADERS or word in _FOOTERS:
            some = self._headers if word in _HEADERS else self._footers
            some.append([])
            group.to(some[-1])
        elif word == "footnote":
            self._note(place)
        elif word == "annotation":
            self._comment(place)
        elif word == "atnauthor":
            self._author = []
            group.to(self._author)
        elif word == "fldinst":
            self._elsewhere(self._instructed)
        elif word == "field":
            group.at_end = self._linked
        elif word in _EQUATIONS:
            self._put(_EQUATIONS[word])
        elif word in _SHOWN:
            pass
        elif group.is_starred:
            group.around = None
            group.to(None)
        else:
            return False
        return True

    def _elsewhere(self, then: Callable[[str], None]) -> None:
        """Pass the group's text to `then` at the end of the group."""
        out: list[str] = []
        self._group.to(out)
        self._group.at_end = lambda: then("".join(out))

    def _note(self, place: list[str] | None) -> None:
        """Start a footnote; a word inside may turn it into an endnote."""
        self._counts[0] += 1
        label = f"[^{self._counts[0]}]"
        note = [label]
        self._notes.append(note)
        self._mark = (place, len(place)) if place is not None else None
        if place is not None:
            place.append(label)
        self._group.to(note)

    def _is_endnote(self, note: list[str]) -> None:
        self._counts = [self._counts[0] - 1, self._counts[1] + 1]
        note[0] = f"[^e{self._counts[1]}]"
        if self._mark is not None:
            self._mark[0][self._mark[1]] = note[0]

    def _comment(self, place: list[str] | None) -> None:
        label = f"[comment {len(self._comments) + 1}]"
        author, self._author = "".join(self._author).strip(), []
        comment = [label, f"{author}: " if author else ""]
        self._comments.append(comment)
        if place is not None:
            place.append(label)
        self._group.to(comment)

    def _instructed(self, instruction: str) -> None:
        found = _LINK.search(instruction)
        self._link = "" if found is None else found[1]

    def _linked(self) -> None:
        link, self._link = self._link, ""
        if link:
            self._put(f"({link})")


def _framed(place: list[str] | None, text: str) -> None:
    if place is not None:
        place.extend(("\n", text.strip("\n"), "\n"))
