"""A source of the job file, read: from the path as it was written to a stream of documents."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import os
import stat
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.documents import files, stamps, tables
from orchestrator.documents.encoding import check_name
from orchestrator.documents.globs import Globs
from orchestrator.documents.types import Document, ExtractionError, UnreadableDocument
from orchestrator.documents.walk import Found, Unlisted, Walk
from orchestrator.errors import InputError

if TYPE_CHECKING:
    from orchestrator.jobspec import DocumentSource


def read(source: DocumentSource, base: Path) -> Iterator[Document | UnreadableDocument]:
    """Stream the documents of `source` in the order of their keys (rows in the order of their table).

    `base` is the job file's folder. Everything that was chosen and not read comes as an UnreadableDocument
    in its place. With `sample`, those documents come whose key has the smallest hashes, so a larger sample
    holds every smaller one; folders and tables that cannot be opened are reported besides.

    Raises InputError: at once for a missing path, a bad pattern or encoding, or a table without
    `text_column`; on iteration for a root that cannot be listed, and at the end if there was nothing.
    """
    return (document for found in listed(source, base, 0) for document in found.read())


def listed(source: DocumentSource, base: Path, now_ns: int) -> Iterator[Listed]:
    """The files that `source` chose, in order and not read yet; `now_ns` is the system's time. Raises as `read`."""
    return _listed(_Opened(source, base), now_ns)


def fields_of(source: DocumentSource, base: Path) -> frozenset[str] | None:
    """The names that a template may use for some document of `source`, besides `text`.

    None when only the rows can tell (JSONL, or a table that cannot be opened). Raises InputError as `read`.
    """
    opened = _Opened(source, base)
    known: set[str] = set()
    for entry in opened.entries():
        if isinstance(entry, Unlisted):
            continue
        table = opened.table(entry)
        if table is None:
            known |= files.fields_of(entry.relative)
        elif source.text_column is not None:
            try:
                columns = tables.open_table(table, keys_only=True).columns
            except (OSError, ExtractionError):
                return None
            if columns is None:
                return None
            known |= {"row", *filter(None, columns)}
    return frozenset(known - {"text"})


@dataclass(frozen=True, slots=True)
class Listed:
    """A file that a source chose. `read` gives its one document, or those of a table.

    While the `stamp` stays the same, so do the documents; it is None where that cannot be told.
    """

    key: str
    stamp: str | None
    is_table: bool
    read: Callable[[], Iterator[Document | UnreadableDocument]]


class _Opened:
    """A source whose settings were checked. Raises InputError."""

    def __init__(self, source: DocumentSource, base: Path) -> None:
        check_name(source.encoding)
        self.source = source
        self.path = _located(source, base)
        self.prefix = source.path.rstrip("/")
        self.is_file = _is_file(self.path)
        if self.is_file:
            _check_lone_file(source, self.path)
        include = Globs(source.include or ("**/*",), field="include")
        exclude = Globs(source.exclude, field="exclude", hidden=True)
        # A pattern of the user's own may choose any file; without one only known kinds are meant.
        self._walk = Walk(self.path, include, exclude, (lambda name: True) if source.include else _is_supported)

    def entries(self) -> Iterator[Found | Unlisted]:
        """What was chosen, in order. Raises InputError when the root cannot be listed."""
        if self.is_file:
            return iter([Found(self.path, os.path.basename(self.path))])
        return iter(self._walk)

    def key(self, relative: str) -> str:
        return self.source.path if self.is_file else f"{self.prefix}/{relative}"

    def table(self, found: Found) -> tables.TableFile | None:
        """The table that `found` is, or None for other files."""
        kind = tables.SUFFIXES.get(files.split_name(found.relative)[1].lower())
        if kind is None:
            return None
        name, spec = printable(found.relative), self.source
        return tables.TableFile(
            path=found.path,
            kind=kind,
            key=self.key(name),
            name=name.rpartition("/")[2],
            text_column=spec.text_column,
            id_column=spec.id_column,
            encoding=spec.encoding,
            max_bytes=spec.max_bytes,
        )


def _listed(opened: _Opened, now_ns: int) -> Iterator[Listed]:
    source = opened.source
    wanted = None if source.sample is None else frozenset(heapq.nsmallest(source.sample, _keys(opened), key=_rank))
    way = stamps.way_of(source)
    is_empty = True
    for entry in opened.entries():
        is_empty = False
        relative = printable(entry.relative)
        key = opened.key(relative)
        if isinstance(entry, Unlisted):
            yield Listed(key, None, is_table=False, read=partial(_unlisted, key, entry.error))
        elif (table := opened.table(entry)) is not None:
            # Which rows a sample holds, only the table itself can tell.
            stamp = None if wanted is not None else stamps.stamp(entry.path, way, now_ns)
            yield Listed(key, stamp, is_table=True, read=partial(_rows, table, wanted))
        elif wanted is None or key in wanted:
            read_it = partial(_file, entry.path, relative, key, source.encoding, source.max_bytes)
            yield Listed(key, stamps.stamp(entry.path, way, now_ns), is_table=False, read=read_it)
    if is_empty:
        raise _nothing(opened)


def _file(
    path: str, relative: str, key: str, encoding: str | None, max_bytes: int
) -> Iterator[Document | UnreadableDocument]:
    yield files.read(path, relative, key, encoding=encoding, max_bytes=max_bytes)


def _unlisted(key: str, error: ExtractionError) -> Iterator[Document | UnreadableDocument]:
    yield _unreadable(key, error)


def _rows(table: tables.TableFile, wanted: AbstractSet[str] | None) -> Iterator[Document | UnreadableDocument]:
    try:
        yield from tables.documents(table, wanted)
    except ExtractionError as error:
        yield _unreadable(table.key, error)
    except OSError as error:
        yield _unreadable(table.key, files.io_problem(error))


def _unreadable(key: str, error: ExtractionError) -> UnreadableDocument:
    return UnreadableDocument(key, key.rpartition("/")[2], error.code, error.message, error.size)


def _keys(opened: _Opened) -> Iterator[str]:
    """The keys of all documents, with no more reading than they need."""
    for entry in opened.entries():
        if isinstance(entry, Unlisted):
            continue
        table = opened.table(entry)
        if table is None:
            yield opened.key(printable(entry.relative))
        else:
            # What is wrong with the whole table is told when it is read.
            with contextlib.suppress(ExtractionError, OSError):
                yield from tables.keys(table)


def _rank(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=8).digest()


def printable(name: str) -> str:
    """A file name that is not valid UTF-8 with its odd bytes as `\\udcXX`: keys must go into databases."""
    if name.isascii():
        return name
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _located(source: DocumentSource, base: Path) -> str:
    # Strings from here on: a Path object for each of 100,000 files costs more than reading them.
    path = os.path.normpath(os.path.join(base, os.path.expanduser(source.path)))
    if "\0" in path:
        raise InputError("The path holds a NUL character; correct it.", field="path")
    if not source.path.strip():
        raise InputError("The path is empty; name a folder or a file ('.' is the job file's folder).", field="path")
    return path


def _is_file(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"There is no file or folder {path}; correct the path, which starts at the job file's folder."
        raise InputError(message, file=path, field="path") from error
    except OSError as error:
        message = f"The path {path} cannot be reached ({error.strerror}); give this user access to it."
        raise InputError(message, file=path, field="path") from error
    if stat.S_ISDIR(mode):
        return False
    if stat.S_ISREG(mode):
        return True
    raise InputError(f"{path} is neither a file nor a folder; name one.", file=path, field="path")


def _check_lone_file(source: DocumentSource, path: str) -> None:
    if source.include or source.exclude:
        field = "include" if source.include else "exclude"
        raise InputError(f"{path} is a file, and patterns choose within a folder; leave them out.", field=field)
    if source.text_column is None and files.split_name(path)[1].lower() in tables.SUFFIXES:
        message = f"{path} is a table; say which of its columns holds the text with `text_column`."
        raise InputError(message, file=path, field="text_column")


def _is_supported(name: str) -> bool:
    suffix = files.split_name(name)[1].lower()
    return suffix in files.SUFFIXES or suffix in tables.SUFFIXES


def _nothing(opened: _Opened) -> InputError:
    source = opened.source
    wanted = " or ".join(source.include) or "files ending in " + " ".join((*files.SUFFIXES, *tables.SUFFIXES))
    but = f", leaving out {' and '.join(source.exclude)}" if source.exclude else ""
    hint = None
    if any("{" in pattern for pattern in source.include):
        hint = "braces are no wildcard; write one pattern for each alternative"
    return InputError(
        f"There are no documents in {opened.path}: looked for {wanted}{but}; add files or correct `include`.",
        file=opened.path,
        field="include" if source.include else "path",
        hint=hint,
    )
