"""Reads many files in parallel in worker processes with limits, and yields the documents in the order of the files.

Plain UTF-8 text is read in this process because passing it to a worker would cost more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core import interrupts
from orchestrator.core.bounded.pool import WorkerCall, WorkerPool, WorkerTask
from orchestrator.core.bounded.process import Trip, Tripped, WorkerLimits
from orchestrator.documents.files import DocumentFile, read_plain
from orchestrator.documents.ignored import Ignored
from orchestrator.documents.kinds import CONTAINERS, CONVERTED
from orchestrator.documents.lines import read_all
from orchestrator.documents.part_by_part import PartByPart, Values
from orchestrator.documents.safe_open import Opener, open_file
from orchestrator.documents.tables import Columns, TableFile, check_columns
from orchestrator.documents.types import (
    Document,
    DocumentProblem,
    ExtractionError,
    RemoteObject,
    UnreadableDocument,
    beyond_limit,
)
from orchestrator.documents.unpacking import LEAST_UNPACKED
from orchestrator.documents.worker_functions import from_plain, unreadable

if TYPE_CHECKING:
    from orchestrator.documents.converter import Converted, Converter
    from orchestrator.documents.downloads import Downloads
    from orchestrator.ray.reading_pool import ClusterPool, ClusterTask
    from orchestrator.settings.config import ReadingSettings

_HERE = "orchestrator.documents.worker_functions:"
_PLAIN_AHEAD = 64
"""Maximum number of plain texts to pass over while looking for work for the worker processes."""
_FILES_AHEAD = 4
"""Number of files started for each call that the cluster can run at a time. A slow file then delays no other file."""
OCR_MEMORY = 2_000_000_000
"""Memory limit in bytes of a worker that reads scans. A full A4 page takes 1.3 GB, including the library's caches."""
_MOST_ODD = 3
"""After this many consecutive texts that are not UTF-8, all later texts go directly to worker processes."""
Documents = Iterator[Document | UnreadableDocument]


class TableRows(Struct, frozen=True):
    """A file of many documents. `wanted` are the keys of the documents to read; None means all.

    `ignored` counts contents that are not documents. `is_source` means that the source is this file, not a folder.
    """

    table: TableFile
    wanted: frozenset[str] | None = None
    ignored: Ignored | None = None
    is_source: bool = False

    @property
    def is_container(self) -> bool:
        """True if the file is an archive or mail, not a table."""
        return self.table.kind in CONTAINERS.values()


class RemoteOrder(Struct, frozen=True):
    """A remote file and how to read it after the download."""

    remote: RemoteObject
    order: DocumentFile | TableRows

    @property
    def limit(self) -> int | None:
        """Maximum bytes to download; None for a table, which is read row by row."""
        return self.order.max_bytes if isinstance(self.order, DocumentFile) else None

    def at(self, path: str | ExtractionError) -> LocalOrder:
        """Return the order for the downloaded file at `path`, or its problem."""
        order = self.order
        if isinstance(path, ExtractionError):
            return unreadable(order.key if isinstance(order, DocumentFile) else order.table.key, path)
        if isinstance(order, DocumentFile):
            return order._replace(path=path)
        return replace(order, table=order.table._replace(path=path))


LocalOrder = DocumentFile | TableRows | UnreadableDocument
Order = LocalOrder | RemoteOrder
"""A file to read. An UnreadableDocument is a file that has already failed."""
Task: TypeAlias = "WorkerTask | ClusterTask | Future[Converted]"


class Readers:
    """Reads files within `limits`, with at most `workers` worker processes (default: one per core).

    With a `cluster`, its nodes read files of one document each. Use from one thread only. `max_unpacked` limits the
    unpacked size of each file (see `unpacking`).

    All methods raise StorageError if no process can be started or the cluster is unusable. While they wait, they call
    `check` and let its errors through.
    """

    def __init__(
        self,
        workers: int | None = None,
        limits: WorkerLimits | None = None,
        check: Callable[[], None] = lambda: None,
        cluster: ClusterPool | None = None,
        max_unpacked: int = LEAST_UNPACKED,
        converter: str | None = None,
    ) -> None:
        self._limits = limits or WorkerLimits(more_memory=OCR_MEMORY)
        self._pool = WorkerPool(workers, self._limits, check)
        self._cluster = cluster
        self._max_unpacked = max_unpacked
        self._opener = Opener()
        self._odd = 0
        self._check = check
        self._downloads: Downloads | None = None
        self._program = converter
        self._converter: Converter | None = None

    @property
    def converts(self) -> bool:
        """True if LibreOffice converts formats that orch cannot read itself."""
        return self._program is not None

    @classmethod
    def of(cls, settings: ReadingSettings) -> Readers:
        """Return readers for orch.toml's settings. Reading stops if a signal asks this process to end."""
        limits = WorkerLimits(settings.max_memory, settings.max_seconds, more_memory=settings.ocr_memory)
        cluster = None if settings.ray_python is None else _cluster_pool(settings, settings.ray_python, limits)
        return cls(settings.workers, limits, interrupts.check, cluster, settings.max_unpacked, settings.converter)

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all worker processes immediately."""
        self._pool.close()
        if self._cluster is not None:
            self._cluster.close()
        self._opener.close()
        for helper in (self._downloads, self._converter):
            if helper is not None:
                helper.close()

    def read(self, orders: Iterable[Order]) -> Iterator[Documents]:
        """Yield the documents of each file, or its problem, in the order of the files.

        Consume a file's documents before you ask for the next file; unconsumed documents are lost. A file that
        crashes a reader yields a problem in its position and does not affect other files.
        """
        self._odd = 0
        under_way: deque[tuple[LocalOrder, Task | None]] = deque()
        for order in map(self._limited, self._with_local_files(orders)):
            under_way.append((order, self._begun(order)))
            while under_way and (len(under_way) > self._most_ahead or not self._has_room):
                yield from self._taken(*under_way.popleft())
        while under_way:
            yield from self._taken(*under_way.popleft())

    @property
    def _has_room(self) -> bool:
        return self._pool.has_room and (self._cluster is None or self._cluster.has_room)

    @property
    def _most_ahead(self) -> int:
        return _PLAIN_AHEAD if self._cluster is None else max(_PLAIN_AHEAD, _FILES_AHEAD * self._cluster.most)

    def rows(self, rows: TableRows | RemoteOrder, first: int) -> Documents:
        """Return the documents of a table from row index `first` on. This call has priority over all other work."""
        local = rows if isinstance(rows, TableRows) else rows.at(self._downloading.one(rows.remote, rows.limit))
        order = self._limited(local)
        if not isinstance(order, TableRows):
            return self._documents(order, None)
        return self._documents_of(order, self._pool.call(_call(order, first)), first)

    def _with_local_files(self, orders: Iterable[Order]) -> Iterator[LocalOrder]:
        waiting = iter(orders)
        for order in waiting:
            if isinstance(order, RemoteOrder):
                break
            yield order
        else:
            return
        for one, path in self._downloading.ahead(chain((order,), waiting), _remote_of):
            if isinstance(one, RemoteOrder):
                assert path is not None
                yield self._checked(one.at(path))
            else:
                yield one

    def _checked(self, order: LocalOrder) -> LocalOrder:
        """Return a downloaded order unchanged. Raises InputError if a table that is the whole source lacks a
        column.
        """
        if isinstance(order, TableRows) and order.is_source and not order.is_container:
            columns = self.columns(order.table)
            if columns is not None:
                check_columns([columns], order.table.named_columns, order.table.key)
        return order

    def _limited(self, order: LocalOrder) -> LocalOrder:
        if isinstance(order, TableRows):
            return replace(order, table=self._on_this_machine(order.table))
        if self._max_unpacked == LEAST_UNPACKED or isinstance(order, UnreadableDocument):
            return order
        return order._replace(max_unpacked=self._max_unpacked)

    def _on_this_machine(self, table: TableFile) -> TableFile:
        return table._replace(max_unpacked=self._max_unpacked, converts=self.converts)

    @property
    def _downloading(self) -> Downloads:
        if self._downloads is None:
            from orchestrator.documents.downloads import Downloads

            self._downloads = Downloads(self._check)
        return self._downloads

    def _taken(self, order: LocalOrder, task: Task | None) -> Iterator[Documents]:
        yield self._documents(order, task)
        # The caller has consumed the documents, so a downloaded file is no longer needed.
        if self._downloads is not None and not isinstance(order, UnreadableDocument):
            self._downloads.drop(order.path if isinstance(order, DocumentFile) else order.table.path)

    def columns(self, table: TableFile) -> Columns | None:
        """Return a table's columns; None if the table cannot be read."""
        call = WorkerCall(_HERE + "columns", _as_tuples(self._on_this_machine(table)))
        try:
            return next((Columns(tuple(names), fixed) for names, fixed in self._pool.call(call)), None)
        except Tripped:
            return None

    def keys(self, table: TableFile, remote: RemoteObject | None = None) -> Iterator[str]:
        """Yield the keys of a table's rows; the keys end early if the rest cannot be read."""
        if remote is not None:
            path = self._downloading.one(remote, None)
            if isinstance(path, ExtractionError):
                return
            table = table._replace(path=path)
        table = self._on_this_machine(table)
        try:
            for some in self._pool.call(WorkerCall(_HERE + "keys", _as_tuples(table))):
                yield from some
        except Tripped:
            return

    def _begun(self, order: LocalOrder) -> Task | None:
        if isinstance(order, UnreadableDocument):
            return None
        if self.converts and isinstance(order, DocumentFile) and order.kind == CONVERTED:
            return self._converting.submit(order)
        if isinstance(order, DocumentFile) and order.may_be_plain and self._odd < _MOST_ODD:
            return None
        if (
            self._cluster is not None
            and isinstance(order, DocumentFile)
            and (call := _call_with_bytes(order)) is not None
        ):
            return self._cluster.submit(call)
        return self._pool.submit(_call(order))

    def _documents(self, order: LocalOrder, task: Task | None) -> Documents:
        if isinstance(order, UnreadableDocument):
            return iter((order,))
        if isinstance(task, Future):
            assert isinstance(order, DocumentFile)
            return self._converting.documents(order, task, self._now)
        if task is not None:
            return self._documents_of(order, self._results(task))
        assert isinstance(order, DocumentFile)
        found = read_plain(order, self._opener)
        self._odd = self._odd + 1 if found is None else 0
        return iter((found,)) if found is not None else self._documents_of(order, self._pool.call(_call(order)))

    @property
    def _converting(self) -> Converter:
        if self._converter is None:
            from orchestrator.documents.converter import Converter

            assert self._program is not None, "it converts"
            self._converter = Converter(self._program, self._pool.most, self._limits, self._check)
        return self._converter

    def _now(self, file: DocumentFile) -> Documents:
        return self._documents_of(file, self._pool.call(_call(file)))

    def _results(self, task: WorkerTask | ClusterTask) -> Iterator[list[tuple[object, ...]]]:
        if isinstance(task, WorkerTask):
            return self._pool.results(task)
        assert self._cluster is not None, "it has given the task"
        return self._cluster.results(task)

    def _documents_of(
        self, order: DocumentFile | TableRows, values: Iterator[list[tuple[object, ...]]], first: int = 0
    ) -> Documents:
        if isinstance(order, TableRows) and order.is_container:
            yield from self._parts(order).documents(values, first)
            return
        key = order.key if isinstance(order, DocumentFile) else order.table.key
        try:
            for some in values:
                yield from map(from_plain, some)
        except Tripped as tripped:
            yield unreadable(key, problem_of(tripped, self._limits, order))

    def _parts(self, order: TableRows) -> PartByPart:
        def read(begin: int, end: int | None) -> Values:
            return self._pool.call(_parts_call(order, begin, end))

        def keys() -> Iterator[str]:
            for some in self._pool.call(WorkerCall(_HERE + "part_keys", _as_tuples(order.table))):
                yield from some

        def told(tripped: Tripped) -> ExtractionError:
            return problem_of(tripped, self._limits, order)

        def convert(key: str, path: str, data: bytes, fields: dict[str, object]) -> Documents:
            file = DocumentFile("", path, key, CONVERTED, None, order.table.max_bytes)
            for found in self._converting.documents(file, self._converting.submit(file, data), self._now):
                yield replace(found, fields={**found.fields, **fields}) if isinstance(found, Document) else found

        return PartByPart(order.table.key, read, keys, told, convert, order.ignored)


def _cluster_pool(settings: ReadingSettings, python: str, limits: WorkerLimits) -> ClusterPool:
    from orchestrator.ray.reading_pool import Cluster, ClusterPool

    cluster = Cluster(Path(python).expanduser(), settings.address)
    return ClusterPool(cluster, settings.workers, limits, interrupts.check)


def _call_with_bytes(order: DocumentFile) -> WorkerCall | None:
    try:
        data = read_all(open_file, order.path, order.within, order.max_bytes)
    except (ExtractionError, OSError):
        return None  # reading the file here then reports the problem
    return WorkerCall(_HERE + "sent", (_as_tuples(order._replace(path="", within=None)), data))


def _remote_of(order: Order) -> tuple[RemoteObject, int | None] | None:
    return (order.remote, order.limit) if isinstance(order, RemoteOrder) else None


def _call(order: DocumentFile | TableRows, first: int = 0) -> WorkerCall:
    if isinstance(order, DocumentFile):
        return WorkerCall(_HERE + "file", _as_tuples(order))
    if order.is_container:
        return _parts_call(order, 0, None)
    return WorkerCall(_HERE + "rows", (_as_tuples(order.table), order.wanted, first))


def _parts_call(order: TableRows, begin: int, end: int | None) -> WorkerCall:
    return WorkerCall(_HERE + "parts", (_as_tuples(order.table), order.wanted, begin, end))


def _as_tuples(about: DocumentFile | TableFile) -> tuple[object, ...]:
    *rest, plugins, render = about
    if isinstance(about, TableFile):
        return (*rest, tuple(map(tuple, about.plugins)), render and tuple(render))
    return (*rest, plugins and tuple(plugins), render and tuple(render))


def problem_of(tripped: Tripped, limits: WorkerLimits, order: DocumentFile | TableRows) -> ExtractionError:
    """Return the error for a reader that exceeded a limit or crashed.

    Its text depends on the arguments only, so that repeated failures can be recognised.
    """
    is_table = isinstance(order, TableRows) and not order.is_container
    rest = "; the rows from there on are not read" if is_table else ""
    match tripped.trip:
        case Trip.TIME:
            return ExtractionError(
                DocumentProblem.TIME_LIMIT,
                f"Reading it takes longer than the {limits.seconds:,} seconds allowed{rest}; simplify or exclude it, "
                "or raise `max_seconds` under [documents] in orch.toml.",
            )
        case Trip.MEMORY:
            render = order.render if isinstance(order, DocumentFile) else order.table.render
            most, setting = limits.memory, "max_memory"
            if render is not None and render.is_ocr and not is_table and limits.more_memory > most:
                most, setting = limits.more_memory, "ocr_memory"
            return ExtractionError(
                DocumentProblem.MEMORY_LIMIT,
                f"Reading it takes more than the {most:,} bytes of memory allowed{rest}; split or exclude it, "
                f"or raise `{setting}` under [documents] in orch.toml.",
            )
        case Trip.VALUE:
            return beyond_limit(f"Its text has more than {limits.value:,} bytes{rest}; split or exclude it.")
        case Trip.CRASH:
            why = f" ({tripped.detail})" if tripped.detail else ""
            return ExtractionError(
                DocumentProblem.READER_CRASHED,
                f"The reader failed on it{why}{rest}; save the file anew, or exclude it.",
            )
