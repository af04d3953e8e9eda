"""An office document's package: a ZIP archive of parts that refer to each other, unpacked within limits."""

from __future__ import annotations

import io
import posixpath
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from xml.parsers import expat

from orchestrator.documents.types import DocumentProblem, ExtractionError, beyond_limit, unreadable

MAX_UNPACKED = 200_000_000  # bytes; a document that unpacks to more is a bomb, or does not fit in memory
MAX_RATIO = 200  # of unpacked to packed size; XML from office programs has 5 to 30
RATIO_FROM = 20_000_000  # unpacked bytes up to which a document may be arbitrarily repetitive
MAX_PARTS = 10_000
PIECE = 1 << 16
Start = Callable[[str, dict[str, str]], None]
End = Callable[[str], None]
MOST_DEFLATED = 1032
"""Maximum bytes that one byte of DEFLATE unpacks to."""
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
DAMAGE = (KeyError, ValueError, EOFError, NotImplementedError, expat.ExpatError, zipfile.BadZipFile, zlib.error)
"""Errors raised for missing or damaged parts."""


class Relation(NamedTuple):
    """A reference from one part to another: its kind, and the target's name in the archive."""

    kind: str
    target: str
    id: str = ""


class Package:
    """An office document's package.

    Every method may raise ExtractionError, for example if the package is locked or too large. Damage raises the
    errors of `zipfile` and `expat`.
    """

    def __init__(self, data: bytes) -> None:
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        entries = self._zip.infolist()
        if len(entries) > MAX_PARTS:
            raise _too_large(f"{len(entries):,} parts, more than {MAX_PARTS:,}")
        if any(entry.flag_bits & 1 for entry in entries):
            raise ExtractionError(
                DocumentProblem.ENCRYPTED,
                "The document's package is locked with a password; save a copy without one, or exclude it.",
            )
        self._names = {entry.filename.lower(): entry for entry in entries}
        self._spelled = {entry.filename: entry for entry in entries}
        self._left = min(MAX_UNPACKED, max(RATIO_FROM, MAX_RATIO * len(data)))
        self._most = self._left
        self._entries = entries
        self._read: set[zipfile.ZipInfo] = set()

    def main_part(self) -> str:
        """Return the name of the part with the document itself."""
        for relation in self.relations(""):
            if relation.kind == "officeDocument":
                return relation.target
        raise KeyError("officeDocument")

    def relations(self, part: str) -> list[Relation]:
        """Return a part's references to other parts, in file order; "" stands for the package."""
        folder, name = posixpath.split(part)
        path = posixpath.join(folder, "_rels", f"{name}.rels")
        if path.lower() not in self._names:
            return []
        found: list[Relation] = []

        def start(tag: str, attributes: dict[str, str]) -> None:
            target, kind = attributes.get("Target"), attributes.get("Type", "")
            if tag.rpartition("}")[2] == "Relationship" and target and attributes.get("TargetMode") != "External":
                to = target[1:] if target.startswith("/") else posixpath.join(folder, target)
                found.append(Relation(kind.rpartition("/")[2], posixpath.normpath(to), attributes.get("Id", "")))

        self.parse(path, start)
        return found

    def parts(self) -> list[str]:
        return [entry.filename for entry in self._names.values() if not entry.is_dir()]

    @property
    def has_twins(self) -> bool:
        """True if two part names differ only in case. A reference then means the part with exactly its spelling."""
        return len(self._spelled) > len(self._names)

    def holds(self, part: str) -> bool:
        return part.lower() in self._names

    def whole(self, part: str) -> bytes:
        """Return all bytes of a part. Raises KeyError if it is missing."""
        return b"".join(self.pieces(part))

    def head(self, part: str, size: int) -> bytes:
        """Return a part's first `size` bytes; the part still counts as unread. Raises KeyError if missing."""
        entry = self._entry(part)
        if entry.compress_type not in _PACKINGS:
            raise _odd_packing()
        with self._zip.open(entry) as stream:
            return stream.read(size)

    def parse(self, part: str, start: Start, end: End | None = None, characters: End | None = None) -> None:
        parse(self.pieces(part), start, end, characters)

    def check_unread(self) -> None:
        """Unpack unread parts, largest first, until the remaining parts together cannot exceed the limit."""
        unread = sorted(
            (entry for entry in self._entries if entry not in self._read), key=lambda one: one.compress_size
        )
        if any(entry.compress_type not in _PACKINGS for entry in unread):
            raise _odd_packing()
        most = MOST_DEFLATED * sum(entry.compress_size for entry in unread)
        while unread and most > self._left:
            entry = unread.pop()
            most -= MOST_DEFLATED * entry.compress_size
            for _ in self._pieces(entry):
                pass

    def pieces(self, part: str) -> Iterator[bytes]:
        """Yield a part's bytes, which count towards the document's limit."""
        return self._pieces(self._entry(part))

    def _entry(self, part: str) -> zipfile.ZipInfo:
        return self._spelled.get(part) or self._names[part.lower()]

    def _pieces(self, entry: zipfile.ZipInfo) -> Iterator[bytes]:
        if entry.compress_type not in _PACKINGS:
            raise _odd_packing()
        self._read.add(entry)
        with self._zip.open(entry) as stream:
            while piece := stream.read(PIECE):
                self._left -= len(piece)
                if self._left < 0:
                    raise _too_large(f"more than {self._most:,} bytes when it is unpacked")
                yield piece


def _odd_packing() -> zipfile.BadZipFile:
    return zipfile.BadZipFile("a compression method that office documents do not use")


def parse(pieces: Iterable[bytes], start: Start, end: End | None = None, characters: End | None = None) -> None:
    """Parse XML from front to back. Raises ExpatError, and ExtractionError if the XML defines entities."""
    parser = new_parser()
    parser.StartElementHandler = start
    if end is not None:
        parser.EndElementHandler = end
    if characters is not None:
        parser.CharacterDataHandler = characters
    for piece in pieces:
        parser.Parse(piece)
    parser.Parse(b"", True)


def new_parser() -> expat.XMLParserType:
    """Return an XML parser that writes tags as `namespace}name` and refuses entity definitions."""
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True

    def refuse(*about: object) -> None:
        raise unreadable("The document defines entities, as office programs never do; save it again, or exclude it.")

    parser.EntityDeclHandler = refuse
    return parser


def _too_large(what: str) -> ExtractionError:
    return beyond_limit(f"The document has {what}; split it, or exclude it.")
