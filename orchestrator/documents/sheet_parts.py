"""Contents of a workbook's sheets (.xlsx, .xlsb) besides cells: comments, text boxes, charts and SmartArt."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

from orchestrator.documents.office import Losses, TextLimit
from orchestrator.documents.office_package import DAMAGE, Package, Relation, parse
from orchestrator.documents.shapes_text import drawn_lines, shape_lines
from orchestrator.documents.workbook_repair import BUNDLE_SHEET, binary_records, letters_of, with_scripts

_KINDS = re.compile(b"drawing|omment|oleObject|relationships/package")
"""Kinds of a sheet's relations that have text or count as lost; other kinds are printer settings and links."""
_AUTHOR, _COMMENT, _COMMENT_TEXT = 632, 635, 637
"""Records of comments in binary workbooks ([MS-XLSB] 2.3.2)."""


def is_about_sheet(part: str) -> bool:
    """Return True for a relations part that belongs neither to the package nor to the workbook."""
    return part.endswith(".rels") and not part.endswith(("/workbook.xml.rels", "/workbook.bin.rels", "_rels/.rels"))


class SheetParts:
    """A workbook's contents outside its cells. Raises the package's errors if the workbook itself is damaged."""

    def __init__(self, package: Package, most: int) -> None:
        self.losses = Losses()
        self._limit = TextLimit(most)
        self._package = package
        self._sheets = self._parts_by_sheet()
        self._people: dict[str, str] = {}

    def lines(self, sheet: str) -> list[str]:
        """Return the lines for a sheet. A damaged part counts as lost."""
        found: list[str] = []
        try:
            part = self._sheets.get(sheet)
            relations = [] if part is None else self._package.relations(part)
            for line in chain(self._drawings(relations), self._comments(relations)):
                found.append(line)
        except DAMAGE:
            self.losses["damaged part"] += 1
        return found

    def _parts_by_sheet(self) -> dict[str, str]:
        beside = filter(is_about_sheet, self._package.parts())
        if not any(_KINDS.search(self._package.whole(part)) for part in beside):
            return {}
        main = self._package.main_part()
        targets = {relation.id: relation.target for relation in self._package.relations(main)}
        found: dict[str, str] = {}

        def start(tag: str, attributes: dict[str, str]) -> None:
            if tag.endswith("}sheet") and "name" in attributes:
                ident = next((value for name, value in attributes.items() if name.endswith("}id")), "")
                found[attributes["name"]] = targets.get(ident, "")

        if self._package.holds(main) and main.endswith(".xml"):
            self._package.parse(main, start)
        for record in self._records(main, BUNDLE_SHEET) if main.endswith(".bin") else ():
            ident, name = _binary_texts(record[1], 8, 2)
            found[name] = targets.get(ident, "")
        return found

    def _records(self, part: str, *kinds: int) -> Iterator[tuple[int, bytes]]:
        with suppress(IndexError):  # the part is damaged from here on
            yield from ((kind, data) for kind, data, _ in binary_records(self._package.whole(part)) if kind in kinds)

    def _drawings(self, relations: list[Relation]) -> Iterator[str]:
        for relation in relations:
            if relation.kind == "drawing" and self._package.holds(relation.target):
                yield from shape_lines(self._package, relation.target, self._limit, self.losses)
                yield from drawn_lines(self._package, relation.target, self._limit, self.losses)
            elif relation.kind in ("oleObject", "package"):
                self.losses["embedded file"] += 1

    def _comments(self, relations: list[Relation]) -> Iterator[str]:
        """Yield a line for each comment. Workbooks store threads twice, the second time as legacy comments."""
        kinds = {relation.kind: relation.target for relation in relations}
        target = kinds.get("threadedComment") or kinds.get("comments", "")
        if not self._package.holds(target):
            return
        if target.endswith(".bin"):
            found = self._binary_comments(target)
        else:
            comments = _Comments(self._limit, self._persons() if "threadedComment" in kinds else {})
            parse((with_scripts(self._package.whole(target)),), comments.start, comments.end, comments.characters)
            found = comments.found
        for place, author, text in found:
            yield f"[comment {place}]: " + (f"{author}: " if author and not text.startswith(author) else "") + text

    def _binary_comments(self, part: str) -> list[tuple[str, str, str]]:
        authors, place, author = list[str](), "", ""
        found: list[tuple[str, str, str]] = []
        for kind, record in self._records(part, _AUTHOR, _COMMENT, _COMMENT_TEXT):
            self._limit.element()
            if kind == _AUTHOR:
                authors += _binary_texts(record, 0, 1)
            elif kind == _COMMENT:
                number, row, _, column = struct.unpack("<4I", record[:16].ljust(16, b"\0"))
                place = f"{letters_of(column + 1).decode()}{row + 1}"
                author = authors[number] if number < len(authors) else ""
            elif text := " ".join(_binary_texts(record, 1, 1)[0].split()):
                self._limit.text(text)
                found.append((place, author, text))
        return found

    def _persons(self) -> dict[str, str]:
        if not self._people:

            def start(tag: str, attributes: dict[str, str]) -> None:
                if tag.endswith("}person"):
                    self._people[attributes.get("id", "")] = attributes.get("displayName", "")

            for relation in self._package.relations(self._package.main_part()):
                if relation.kind == "person" and self._package.holds(relation.target):
                    self._package.parse(relation.target, start)
        return self._people


def _binary_texts(record: bytes, at: int, count: int) -> list[str]:
    """Return consecutive texts, each preceded by its length. Raises UnicodeDecodeError."""
    found = []
    for _ in range(count):
        end = at + 4 + 2 * int.from_bytes(record[at : at + 4], "little")
        found.append(record[at + 4 : end].decode("utf-16-le"))
        at = end
    return found


class _Comments:
    def __init__(self, limit: TextLimit, people: dict[str, str]) -> None:
        self.found: list[tuple[str, str, str]] = []
        self._limit = limit
        self._people = people
        self._authors: list[str] = []
        self._place = self._author = ""
        self._pieces: list[str] = []
        self._is_text = self._is_thread = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._limit.element()
        name = tag.rpartition("}")[2]
        self._is_text = name in ("author", "t") or (name == "text" and self._is_thread)
        if name in ("comment", "threadedComment"):
            self._is_thread = name == "threadedComment"
            number = attributes.get("authorId", "")
            old = self._authors[int(number)] if number.isdigit() and int(number) < len(self._authors) else ""
            self._place, self._author = (
                attributes.get("ref", ""),
                self._people.get(attributes.get("personId", ""), old),
            )
            self._pieces = []
        elif name == "author":
            self._pieces = []

    def end(self, tag: str) -> None:
        name = tag.rpartition("}")[2]
        self._is_text = False
        text = " ".join("".join(self._pieces).split())
        if name == "author":
            self._authors.append(text)
        elif name in ("comment", "threadedComment") and text:
            self.found.append((self._place, self._author, text))

    def characters(self, text: str) -> None:
        if self._is_text:
            self._limit.text(text)
            self._pieces.append(text)
