"""Archives and mail: each file in them is a document, a table, or another archive.

A part's key is its file's key, `#`, and its name inside: `in/mail.zip#offer.eml#terms.pdf`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from msgspec.structs import replace

from orchestrator.documents import files, seven_zip, tables
from orchestrator.documents.archives import Member, tar_parts, zip_parts
from orchestrator.documents.content import Content
from orchestrator.documents.document_keys import DistinctKeys, printable, shortened
from orchestrator.documents.ignored import IgnoredReason, never_document
from orchestrator.documents.kinds import (
    CONVERTED,
    OUTLOOK_DATA,
    RENDERED,
    Holds,
    Kind,
    is_read_unasked,
    kind_of,
    split_name,
)
from orchestrator.documents.mail import begins_with_a_header, mail_parts, mbox_parts
from orchestrator.documents.msg_mail import msg_parts
from orchestrator.documents.office import OLE
from orchestrator.documents.outlook_mail import winmail_parts
from orchestrator.documents.tables import TableFile
from orchestrator.documents.types import Document, DocumentProblem, ExtractionError, UnreadableDocument, beyond_limit
from orchestrator.documents.unpacking import UnpackLimit

MAX_DEPTH = 4
"""Maximum levels of nested archives; deeper nesting is an attack."""


class Passed(NamedTuple):
    """A part that is not a document, such as an unsupported kind of file or a link."""

    key: str
    reason: IgnoredReason
    ending: str


class Begin(NamedTuple):
    """Announces the part with this index: all documents of earlier parts have been yielded."""

    number: int


class Unconverted(NamedTuple):
    """A part that LibreOffice must convert first. `path` is its name inside the file."""

    key: str
    path: str
    data: bytes
    fields: Mapping[str, object]


FromPart = Document | UnreadableDocument | Passed | Unconverted
Found = FromPart | Begin


def documents(
    file: TableFile, wanted: AbstractSet[str] | None = None, begin: int = 0, end: int | None = None
) -> Iterator[Found]:
    """Yield the documents of the parts from index `begin` up to `end`; `wanted` limits them to these keys.

    Raises OSError, MemoryError, and ExtractionError for problems of the whole file.
    """
    walk = _Walk(file)
    for index, part in enumerate(walk.parts(file.content, file.kind)):
        if end is not None and index >= end:
            return
        key = walk.key(file.key, part)  # even for skipped parts, so that later keys stay the same
        if index < begin:
            continue
        yield Begin(index)
        for found in walk.found(key, part, 1):
            if wanted is None or isinstance(found, Passed) or found.key in wanted:
                yield found
    if begin == 0 and walk.is_empty:
        raise ExtractionError(DocumentProblem.EMPTY, "It is empty; add content, or exclude it.")


def keys(file: TableFile) -> Iterator[str]:
    """Yield the keys of a file's parts without reading the parts."""
    walk = _Walk(file)
    for part in walk.parts(file.content, file.kind):
        yield walk.key(file.key, part)


class _Walk:
    def __init__(self, file: TableFile) -> None:
        self._file = file
        self._unpacking = UnpackLimit.of_file(file.path, file.max_unpacked)
        self._plugins = {plugin.ending: plugin for plugin in file.plugins}
        self._keys = DistinctKeys()
        self.is_empty = True

    def parts(self, content: Content, kind: str) -> Iterator[Member]:
        yield from self._counted(_READ[kind](content, self._unpacking))

    def _counted(self, parts: Iterator[Member]) -> Iterator[Member]:
        for part in parts:
            self._unpacking.count_part()
            self.is_empty = False
            yield part

    def key(self, outer: str, part: Member) -> str:
        return self._keys.distinct(shortened(f"{outer}#{printable(part.name)}"))

    def found(self, key: str, part: Member, depth: int) -> Iterator[FromPart]:
        name = part.name.rpartition("/")[2]
        kind = part.kind or kind_of(name, self._plugins, as_rows=self._file.text_column is not None)
        if _is_hidden(part.name):
            return
        reason = part.passed or never_document(name)
        if reason is not None:
            yield Passed(key, reason, "")
        elif part.kind is None and not self._is_read(kind):
            yield Passed(key, IgnoredReason.KIND, split_name(name)[1])
        else:
            try:
                yield from self._documents(key, part, kind, depth)
            except (ExtractionError, OSError) as error:
                problem = error if isinstance(error, ExtractionError) else files.io_problem(error)
                yield UnreadableDocument(key, name, problem.code, problem.message, problem.size, problem.setting)

    def _is_read(self, kind: Kind) -> bool:
        return is_read_unasked(kind, pictures=self._file.render is not None, converts=self._file.converts)

    def _documents(self, key: str, part: Member, kind: Kind, depth: int) -> Iterator[FromPart]:
        file = self._file
        data = part.read()
        if kind.name == CONVERTED:
            yield Unconverted(key, part.name, data, {**part.fields, "inside": file.name})
            return
        content = Content("", None, kind.packing, file.max_bytes, data, file.max_unpacked)
        if kind.holds is Holds.PARTS:
            if depth >= MAX_DEPTH:
                raise beyond_limit(
                    f"It is nested {depth} archives deep, and at most {MAX_DEPTH - 1} are opened; unpack it "
                    "yourself, or exclude it."
                )
            for inner in self._counted(self._inside(part, content, kind)):
                yield from self.found(self.key(key, inner), inner, depth + 1)
            return
        if kind.holds is Holds.ROWS:
            name = part.name.rpartition("/")[2]
            table = file._replace(kind=kind.name, key=key, name=name, packing=kind.packing)
            yield from filter(None, tables.documents(table, content=content, unpacking=self._unpacking))
            return
        one = files.DocumentFile(
            path="",
            relative=part.name,
            key=key,
            kind=kind.name,
            encoding=file.encoding,
            max_bytes=file.max_bytes,
            packing=kind.packing,
            max_unpacked=file.max_unpacked,
            plugin=kind.plugin,
            render=file.render if kind.name in RENDERED else None,
        )
        found = files.read_bytes(one, data)
        if isinstance(found, Document):
            self._unpacking.add(len(found.text) + sum(len(picture.data) for picture in found.pictures))
            found = replace(found, fields={**found.fields, **part.fields, "inside": file.name})
        yield found

    def _inside(self, part: Member, content: Content, kind: Kind) -> Iterator[Member]:
        if part.parts is not None:
            return part.parts()
        if kind == OUTLOOK_DATA:
            return winmail_parts(content, part.known)
        return _READ[kind.name](content, self._unpacking)


def _is_hidden(path: str) -> bool:
    return any((part.startswith(".") and part != "..") or part == "__MACOSX" for part in path.split("/"))


def _mail(content: Content, unpacking: UnpackLimit) -> Iterator[Member]:
    """Yield the parts of an .eml file. Some programs save Outlook's format under this ending."""
    data = content.whole()
    yield from (msg_parts if data.startswith(OLE) else mail_parts)(_unpacked(content, data), unpacking)


def _outlook_mail(content: Content, unpacking: UnpackLimit) -> Iterator[Member]:
    """Yield the parts of an .msg file. Many contain the mail as it was sent, not Outlook's format."""
    data = content.whole()
    yield from (mail_parts if begins_with_a_header(data) else msg_parts)(_unpacked(content, data), unpacking)


def _unpacked(content: Content, data: bytes) -> Content:
    return content._replace(data=data, packing="")


_READ = {
    "zip": zip_parts,
    "7z": seven_zip.parts,
    "tar": tar_parts,
    "eml": _mail,
    "mbox": mbox_parts,
    "msg": _outlook_mail,
}
