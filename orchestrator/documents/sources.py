"""Reads a source of the job file: turns its path into a stream of documents."""

from __future__ import annotations

import hashlib
import heapq
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from orchestrator.core.addresses import is_address
from orchestrator.core.errors import InputError
from orchestrator.core.extras import require
from orchestrator.core.near_names import meant_file
from orchestrator.documents import files, remote, tables, unchanged_files
from orchestrator.documents.document_keys import MOST_KEY, printable, shortened
from orchestrator.documents.encoding import check_name
from orchestrator.documents.files import DocumentFile
from orchestrator.documents.globs import Globs
from orchestrator.documents.ignored import Ignored, IgnoredReason, never_document, told
from orchestrator.documents.kinds import RENDERED, SUFFIXES, Holds, Kind, is_supported, kind_of, split_name
from orchestrator.documents.plugins import Plugin, installed
from orchestrator.documents.readers import Order, Readers, RemoteOrder, TableRows
from orchestrator.documents.remote import AddressList, RemoteRoot, RemoteWalk
from orchestrator.documents.safe_open import is_system
from orchestrator.documents.types import Document, Render, UnreadableDocument
from orchestrator.documents.walk import FoundFile, Skipped, Unlisted, Walk
from orchestrator.documents.worker_functions import unreadable

if TYPE_CHECKING:
    from orchestrator.settings.job_spec import DocumentSource


def read(
    source: DocumentSource, base: Path, readers: Readers | None = None, ignored: Ignored | None = None
) -> Iterator[Document | UnreadableDocument]:
    """Yield the documents of `source` in the order of their keys (rows in the order of their table).

    `base` is the job file's folder. Each chosen but unreadable file yields an UnreadableDocument in its position.
    `ignored` counts everything that is not a document. `sample` takes the documents whose keys have the smallest
    hashes. A larger sample therefore includes every smaller sample. Folders and tables that cannot be opened are
    always reported, even with `sample`. Without `readers`, `read` creates its own.

    Raises InputError at once for a missing path, a bad pattern or encoding, or a table without `text_column`.
    Iteration raises InputError if the root cannot be listed, and at the end if nothing was found. Iteration raises
    StorageError if memory or processes run out.
    """
    return _read(_Opened(source, base, readers), readers, ignored)


def _read(
    opened: _Opened, readers: Readers | None, ignored: Ignored | None
) -> Iterator[Document | UnreadableDocument]:
    with nullcontext(readers) if readers is not None else Readers() as used:
        for documents in used.read(found.order for found in _listed(opened, 0, used, ignored)):
            yield from documents


def listed(
    source: DocumentSource, base: Path, now_ns: int, readers: Readers, ignored: Ignored | None = None
) -> Iterator[Listed]:
    """List the files that `source` chose, in order, without reading them.

    `now_ns` is the system's time in nanoseconds. Raises as `read`.
    """
    return _listed(_Opened(source, base, readers), now_ns, readers, ignored)


def survey(source: DocumentSource, base: Path, readers: Readers) -> SourceSurvey:
    """Return a survey of `source` without reading its documents.

    Raises InputError as `read` does, and for a column that no table of the source has.
    """
    opened = _Opened(source, base, readers)
    known: set[str] = set()
    number, has_many, is_known = 0, False, True
    columns: list[tables.Columns] = []
    named = {"text_column": source.text_column, "id_column": source.id_column}
    for entry in opened.entries():
        number += not isinstance(entry, Skipped)
        if not isinstance(entry, FoundFile):
            continue
        kind = opened.kind(entry)
        if kind.plugin is not None:
            return SourceSurvey(None, None)
        if kind.holds is Holds.ONE:
            known |= files.fields_of(kind.name)
            continue
        has_many = True
        if kind.holds is Holds.PARTS:
            if source.text_column is not None:  # the archive or mail may contain tables
                return SourceSurvey(None, None)
            known |= files.PART_FIELDS
        elif source.text_column is not None:
            if entry.remote is not None:  # reading the columns would download even an unchanged table
                return SourceSurvey(None, None)
            found = readers.columns(opened.table(entry, kind))
            if found is not None:
                columns.append(found)
                known |= {"row", *filter(None, found.names)}
            is_known = is_known and found is not None and found.fixed
            if not is_known and tables.has_all(columns, named):
                break
    if columns:
        tables.check_columns(columns, named, opened.prefix or source.called)
    if not is_known:
        return SourceSurvey(None, None)
    chosen = number if source.sample is None else min(number, source.sample)
    return SourceSurvey(frozenset(known - {"text"}), None if has_many else chosen)


class SourceSurvey(Struct, frozen=True):
    """Template names of a source's documents, besides `text`, and the number of documents.

    `fields` is None if only reading reveals the names, for example for rows of JSONL or a plug-in's documents.
    `documents` is None if a file holds several documents, or if `fields` is None.
    """

    fields: frozenset[str] | None
    documents: int | None


class Listed(Struct, frozen=True):
    """A file that a source chose. Readers turn its `order` into documents.

    An unchanged `stamp` means unchanged documents; None if the stamp is unknown.
    """

    key: str
    stamp: str | None
    is_table: bool
    order: Order


class _Opened:
    def __init__(self, source: DocumentSource, base: Path, readers: Readers | None) -> None:
        by_name = source.encoding if isinstance(source.encoding, dict) else {}
        self._encodings = [(Globs([pattern], field="encoding"), name) for pattern, name in by_name.items()]
        for name in [source.encoding] if not isinstance(source.encoding, dict) else by_name.values():
            check_name(name)
        self.source = source
        self.place = _remote(source, base)
        self.path = _located(source, base) if self.place is None else self.place.path
        self.prefix = source.path.rstrip("/")
        if self.place is not None and self.place.is_list:
            self.prefix = self.prefix.rpartition("/")[0]
        self.is_file = _is_file(self.path, source.path) if self.place is None else self.place.is_file
        if self.is_file:
            _check_lone_file(source)
        include = Globs(source.include or ("**/*",), field="include")
        exclude = Globs(source.exclude, field="exclude", hidden=True)
        # A user's pattern may choose any file. Without a pattern only known kinds are read.
        plugins = self.plugins = installed()
        self.render = _render(source)
        sees, converts = self.render is not None, readers is not None and readers.converts

        def is_wanted(name: str) -> bool:
            return bool(source.include) or is_supported(name, plugins, pictures=sees, converts=converts)

        self._walk: Walk | RemoteWalk | AddressList
        if self.place is None:
            self._walk = Walk(self.path, include, exclude, is_wanted, follow_links=source.follow_links)
        elif self.place.is_list:
            self._walk = AddressList(self.place, include, exclude, is_wanted, follow_links=source.follow_links)
        else:
            self._walk = RemoteWalk(self.place, include, exclude, is_wanted, follow_links=source.follow_links)
        # The user named a lone file explicitly, so its link may lead anywhere.
        self.within = self._walk.within if isinstance(self._walk, Walk) and not self.is_file else None
        if self.is_file and source.text_column is None:
            self._check_table(readers)

    def _check_table(self, readers: Readers | None) -> None:
        file = FoundFile(self.path, os.path.basename(self.path))
        if (kind := self.kind(file)).holds is Holds.ROWS:
            table = self.table(file, kind)._replace(text_column="")
            found = readers.columns(table) if readers is not None and self.place is None else None
            raise InputError(
                f"{self.source.path} is a table; say which of its columns holds the text with `text_column`.",
                field="text_column",
                hint=None if found is None else tables.names_words(list(filter(None, found.names))),
            )

    def entries(self, *, with_info: bool = False) -> Iterator[FoundFile | Unlisted | Skipped]:
        """Return the files found, in order. With `with_info`, files of an address list have the metadata that reveals
        changes.

        Raises InputError if the root cannot be listed, JobFilesError if a storage does not answer.
        """
        if self.is_file:
            found = FoundFile(self.path, os.path.basename(self.path))
            return iter([found if self.place is None else remote.lone(self.place)])
        if isinstance(self._walk, AddressList):
            return self._walk.entries(with_info=with_info)
        return iter(self._walk)

    def key(self, relative: str) -> str:
        key = (self.source.path or self.source.called) if self.is_file else f"{self.prefix}/{relative}"
        return key if len(key) < MOST_KEY // 4 else shortened(key)

    def kind(self, found: FoundFile) -> Kind:
        return kind_of(found.relative, self.plugins, as_rows=self.source.text_column is not None)

    def encoding(self, found: FoundFile) -> str | None:
        stated = self.source.encoding
        if not isinstance(stated, dict):
            return stated
        return next((name for pattern, name in self._encodings if pattern.match(found.relative)), None)

    def table(self, found: FoundFile, kind: Kind) -> tables.TableFile:
        name, spec = printable(found.relative), self.source
        if kind.name == "parquet" and spec.text_column is not None:
            require("parquet", f"{self.key(name)}: Parquet")
        return tables.TableFile(
            path=found.path,
            kind=kind.name,
            key=self.key(name),
            name=name.rpartition("/")[2],
            text_column=spec.text_column,
            id_column=spec.id_column,
            encoding=self.encoding(found),
            max_bytes=spec.max_bytes,
            within=self.within,
            packing=kind.packing,
            plugins=tuple(self.plugins.values()),
            render=self.render,
        )

    def file(self, found: FoundFile, kind: Kind, relative: str, key: str) -> files.DocumentFile:
        return files.DocumentFile(
            path=found.path,
            relative=relative,
            key=key,
            kind=kind.name,
            encoding=self.encoding(found),
            max_bytes=self.source.max_bytes,
            within=self.within,
            packing=kind.packing,
            plugin=kind.plugin,
            render=self.render if kind.name in RENDERED else None,
        )


def _listed(opened: _Opened, now_ns: int, readers: Readers, ignored: Ignored | None) -> Iterator[Listed]:
    source, skipped = opened.source, ignored or Ignored()
    wanted = None
    in_order: list[str] = []
    if source.sample is not None:
        wanted = frozenset(heapq.nsmallest(source.sample, _keys(opened, readers), key=_rank))
        in_order = sorted(wanted)

    @cache
    def way(kind: str, plugin: Plugin | None) -> str:
        return unchanged_files.way_of(source, kind, plugin, converts=readers.converts)

    def stamp(found: FoundFile, kind: Kind) -> str | None:
        return _stamp(found, way(kind.name, kind.plugin), now_ns)

    is_empty = True
    for entry in opened.entries(with_info=True):
        relative = printable(entry.relative)
        key = opened.key(relative)
        if isinstance(entry, Skipped):
            skipped.add(entry.reason, key, split_name(relative.rpartition("/")[2])[1])
            continue
        is_empty = False
        if isinstance(entry, Unlisted):
            yield Listed(key, None, is_table=False, order=unreadable(key, entry.error))
        elif (kind := opened.kind(entry)).holds is not Holds.ONE:
            table = opened.table(entry, kind)
            # A stamp covers a whole table. It cannot show which rows a sample chose.
            marked = stamp(entry, kind) if wanted is None else None
            rows = None if wanted is None else frozenset(_inside(in_order, table.key))
            order = TableRows(table, rows, skipped, opened.is_file)
            yield Listed(key, marked, is_table=True, order=_order(entry, order))
        elif wanted is None or key in wanted:
            file = opened.file(entry, kind, relative, key)
            yield Listed(key, stamp(entry, kind), is_table=False, order=_order(entry, file))
    if is_empty:
        raise _nothing(opened, skipped)


def _order(found: FoundFile, order: DocumentFile | TableRows) -> Order:
    return order if found.remote is None else RemoteOrder(found.remote, order)


def _stamp(found: FoundFile, way: str, now_ns: int) -> str | None:
    if found.remote is not None:
        return remote.stamp(found.remote, way, now_ns)
    return unchanged_files.stamp(found.path, way, now_ns)


def _keys(opened: _Opened, readers: Readers) -> Iterator[str]:
    for entry in opened.entries():
        if not isinstance(entry, FoundFile):
            continue
        kind = opened.kind(entry)
        if kind.holds is not Holds.ONE:
            yield from readers.keys(opened.table(entry, kind), entry.remote)
        else:
            yield opened.key(printable(entry.relative))


def _inside(keys: Sequence[str], table: str) -> Iterator[str]:
    """Yield the sorted `keys` that belong to a table. The search bisects, because there can be as many tables as
    keys.
    """
    prefix = f"{table}#"
    for index in range(bisect_left(keys, prefix), len(keys)):
        if not keys[index].startswith(prefix):
            return
        yield keys[index]


def _rank(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=8).digest()


def _render(source: DocumentSource) -> Render | None:
    if source.render == "text":
        return None
    about = source.pictures
    return Render(source.render, about.resolution, about.longest_side, about.pages, about.grayscale, about.max_bytes)


def _remote(source: DocumentSource, base: Path) -> RemoteRoot | None:
    if source.query is not None:
        from orchestrator.documents import query

        return query.located(source, base)
    return remote.located(source.path, follow_links=source.follow_links) if is_address(source.path) else None


def _located(source: DocumentSource, base: Path) -> str:
    # Strings from here on: a Path object for each of 100,000 files costs more than reading them.
    path = os.path.normpath(os.path.join(base, os.path.expanduser(source.path)))
    if "\0" in path:
        raise InputError("The path holds a NUL character; correct it.", field="path")
    if not source.path.strip():
        raise InputError("The path is empty; name a folder or a file ('.' is the job file's folder).", field="path")
    return path


def _is_file(path: str, named: str) -> bool:
    """Return True for a file, False for a folder. Raises InputError that shows `named`, the path in the job file."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        start = "" if os.path.isabs(named) else ", which starts at the job file's folder"
        message = f"There is no file or folder {named}; correct the path{start}."
        raise InputError(message, field="path", hint=_path_hint(path)) from error
    except OSError as error:
        message = f"The path {named} cannot be reached ({error.strerror}); give this user access to it."
        raise InputError(message, field="path") from error
    if is_system(os.path.realpath(path), found.st_dev):
        message = f"{named} belongs to the system (/proc, /sys, /dev), which holds no documents; name another."
        raise InputError(message, field="path")
    if stat.S_ISDIR(found.st_mode):
        return False
    if stat.S_ISREG(found.st_mode):
        return True
    raise InputError(f"{named} is neither a file nor a folder; name one.", field="path")


def _path_hint(path: str) -> str | None:
    if any(mark in path for mark in "*?["):
        return "a pattern goes into `include`, and the folder that it is for into `path`"
    if "$" in path or "%" in path:
        return "variables are not filled in: write the path itself; ~ is your home folder"
    if "\\" in path:
        return "write / between folders"
    if "file:/" in path:
        return "write the path alone, without file://"
    return meant_file(path, (".yaml", ".yml", ".toml"))


def _check_lone_file(source: DocumentSource) -> None:
    path = source.path
    if source.include or source.exclude:
        field = "include" if source.include else "exclude"
        raise InputError(f"{path} is a file, and patterns choose within a folder; leave them out.", field=field)
    if never_document(os.path.basename(path)) is IgnoredReason.SECRET:
        message = f"{path} is a key or certificate by its name, and is never sent to a model; name another file."
        raise InputError(message, field="path")


def _nothing(opened: _Opened, ignored: Ignored) -> InputError:
    source = opened.source
    wanted = " or ".join(source.include) or "files ending in " + " ".join((*SUFFIXES, *opened.plugins))
    but = f", leaving out {' and '.join(source.exclude)}" if source.exclude else ""
    hint = None
    if any("{" in pattern for pattern in source.include):
        hint = "braces are not a wildcard; write one pattern for each alternative"
    elif any(";" in pattern or "|" in pattern for pattern in source.include):
        hint = 'write a list of patterns:  include: ["*.txt", "*.pdf"]'
    elif any(pattern.endswith("$") or ".*" in pattern for pattern in source.include):
        hint = "a pattern is not a regular expression: write *.txt, or **/letter-?.txt"
    elif any(pattern.startswith(".") and "*" not in pattern for pattern in source.include):
        hint = f"write *{source.include[0]}: a pattern is for whole names"
    elif words := told(ignored.to_json()):
        hint = f"it has only files that are not read: {words}"
        if ignored.counts[IgnoredReason.LINK]:
            hint += "; `follow_links: true` follows links"
    field = "include" if source.include or not source.exclude else "exclude"
    return InputError(
        f"There are no documents in {source.path!r}: looked for {wanted}{but}; add files or correct `{field}`.",
        field=field if source.include or source.exclude else "path",
        hint=hint,
    )
