"""A pass over a job's documents: finds the answers of unchanged files, and reads all other files.

The store has the content of a file with the same stamp, whichever job read it. The content's mark is enough for the
fingerprints, which find the answers of earlier runs. A document without an answer is read, so the rows are the same
as if every file had been read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from orchestrator.core import interrupts
from orchestrator.core.model import Job, JobId, RequestState
from orchestrator.pipeline.build.reused_answers import REASK, Asked, holding, may_keep
from orchestrator.policy.requests import Builder, Built
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import Earlier, FileMark, SeenDocument

if TYPE_CHECKING:
    from orchestrator.documents import Document, Listed, Readers, UnreadableDocument
    from orchestrator.documents.readers import Documents
    from orchestrator.pipeline.build.build_report import BuildReport
    from orchestrator.pipeline.selection import Selection
    from orchestrator.settings.job_spec import DocumentSource

CHUNK = 500
CHUNK_BYTES = 8_000_000
"""Bytes of request lines held before they are written. The line of a scan of twenty pages has ten million."""
KEPT = 2500
"""Number of unread documents per transaction.

Each transaction waits for the disk. A killed process loses no reading, because these documents were not read.
"""
Item = TypeVar("Item")


class BuiltRow(msgspec.Struct, frozen=True):
    """A request, with the earlier outcome that it carries over, if one was found.

    `known_content` is the content that an earlier run read from the same bytes, or None. It is empty if that run
    could not read the bytes.
    """

    built: Built
    earlier: Earlier | None = None
    known_content: str | None = None


class DocumentMemory:
    """Facts about documents, which a build records in chunks, or discards without `remember`."""

    def __init__(self, store: Store, job: Job, now: datetime, *, remember: bool) -> None:
        self._store = store
        self._series = job.series
        self._now = now
        self._remember = remember
        self._seen: list[SeenDocument] = []
        self._kept: list[str] = []

    def saw(self, document: SeenDocument) -> None:
        """Record a document that was read, or that could not be read."""
        self._seen.append(document)
        if len(self._seen) >= CHUNK:
            self.flush()

    def kept(self, key: str) -> None:
        """Record a document whose file is unchanged."""
        self._kept.append(key)
        if len(self._kept) >= KEPT:
            self.flush()

    def flush(self) -> None:
        if self._remember:
            self._store.jobs.saw_documents(self._series, self._seen, self._now)
            if self._kept:
                self._store.jobs.still_there(self._series, self._kept, self._now)
        self._seen.clear()
        self._kept.clear()


class Sweep:
    """The requests of a source, which `builder` makes from the documents that `selection` takes.

    Answers of `runs` may still hold. Without runs, every document is read.
    """

    def __init__(
        self, store: Store, home: Home, job: Job, builder: Builder, selection: Selection, runs: Sequence[JobId],
        asked: Asked, memory: DocumentMemory, report: BuildReport, clock_ns: Callable[[], int], readers: Readers,
    ) -> None:  # fmt: skip
        self._store = store
        self._home = home
        self._series = job.series
        self._builder = builder
        self._selection = selection
        self._runs = runs
        self._asked = asked
        self._memory = memory
        self._report = report
        self._clock_ns = clock_ns
        self._readers = readers
        self._reasks = bool(job.options.get(REASK))
        self._trusts = bool(runs) and not job.options.get("verify")

    def made(self, source: DocumentSource, base: Path) -> Iterator[BuiltRow]:
        """Yield the source's requests in order. Raises InputError, StorageError."""
        from orchestrator.documents import listed

        selection = self._selection
        entries = listed(source, base, self._clock_ns(), self._readers, self._report.ignored)
        chosen = (found for found in entries if selection.may_hold(found.key, is_table=found.is_table))
        for part in chunks(chosen, CHUNK):
            marks = self._store.jobs.marks(self._series, [found.key for found in part]) if self._runs else {}
            contents = {
                found.key: marks[found.key].content
                for found in part
                if self._trusts and found.key in marks and found.stamp == marks[found.key].stamp is not None
            }
            answers = self._answers(
                (found.key, contents[found.key]) for found in part if found.key in contents and not found.is_table
            )
            moved = [one for one in part if one.key not in answers and not (one.is_table and one.key in contents)]
            texts = self._readers.read(found.order for found in moved)
            for found in part:
                interrupts.check()
                if selection.is_over:
                    return
                if found.key in answers:
                    selection.takes(found.key, found.key)
                    yield from self._keep(found.key, contents[found.key] or "", answers[found.key])
                elif found.is_table and found.key in contents:
                    yield from self._rows_of_unchanged_table(found)
                else:
                    yield from self._rows_of_file(found, next(texts), self._before(found, marks.get(found.key)))

    def _before(self, found: Listed, mark: FileMark | None) -> dict[str, FileMark]:
        if not found.is_table:
            return {} if mark is None else {found.key: mark}
        from orchestrator.documents.readers import TableRows

        if isinstance(found.order, TableRows) and found.order.is_container and self._runs:
            return self._store.jobs.marks_in(self._series, found.key)
        return {}  # the text of a table's row is its bytes

    def _answers(self, known: Iterable[tuple[str, str | None]]) -> dict[str, list[Earlier]]:
        asked = {key: self._builder.identities(key, content) for key, content in known if content is not None}
        every = {one.custom_id: one for identities in asked.values() for one in identities}
        known_rows = self._store.known.earlier(self._runs, {name: one.fingerprint for name, one in every.items()})
        held = holding(self._home, known_rows)
        # A failed row keeps its request even if the failure still holds, so that `orch retry` can send it.
        good = {
            name: row
            for name, row in held.items()
            if row.state is RequestState.SUCCEEDED
            and may_keep(row, self._asked, every[name].model, caches=every[name].caches, reasks=self._reasks)
        }
        return {
            key: [good[one.custom_id] for one in identities]
            for key, identities in asked.items()
            if all(one.custom_id in good for one in identities)
        }

    def _keep(self, key: str, content: str, answers: Sequence[Earlier]) -> Iterator[BuiltRow]:
        self._report.documents += 1
        self._report.unread += 1
        self._report.ignored.document(key, None, next((one.notes for one in answers if one.notes), ""))
        self._memory.kept(key)
        for built, answer in zip(self._builder.unread(key, content, answers), answers, strict=True):
            yield BuiltRow(built, answer)

    def _rows_of_unchanged_table(self, table: Listed) -> Iterator[BuiltRow]:
        from orchestrator.documents.readers import RemoteOrder, TableRows

        place = 0
        while part := self._store.jobs.of_table(self._series, table.key, table.stamp or "", place, CHUNK):
            answers = self._answers(part)
            if len(answers) < len(part):
                assert isinstance(table.order, TableRows | RemoteOrder)
                yield from self._rows_of_file(table, self._readers.rows(table.order, place), {}, place)
                return
            for key, content in part:
                if self._selection.takes(key, table.key):
                    yield from self._keep(key, content or "", answers[key])
            place += len(part)
            if self._selection.is_over:
                return
        self._memory.kept(table.key)

    def _rows_of_file(
        self, found: Listed, texts: Documents, before: Mapping[str, FileMark], first: int = 0
    ) -> Iterator[BuiltRow]:
        place, whole = first, True
        for document in texts:
            # An unreadable table yields one problem under its own key.
            is_row = document.key != found.key
            whole = whole and is_row
            problem = getattr(document, "code", None)
            # A missing column is a mistake of the job file, so it is reported and not skipped.
            is_misread = problem is not None and getattr(document, "setting", None) is None
            if is_misread and self._selection.passes_over(document.key, getattr(document, "message", "")):
                self._report.ignored.document(document.key, problem)
                whole, place = False, place + 1
                continue
            if (is_row or not found.is_table) and not self._selection.takes(document.key, found.key):
                whole, place = False, place + 1
                if self._selection.is_over:
                    break
                continue
            mark = before.get(document.key)
            known = (mark.content or "") if mark is not None and _has_same_bytes(found, document, mark) else None
            made = [BuiltRow(built, known_content=known) for built in self._builder.build(document)]
            self._report.documents += 1
            self._report.ignored.document(document.key, problem, getattr(document, "notes", ""))
            self._memory.saw(self._fact_of(found, document, made[0].built.row.content, place))
            yield from made
            place += 1
        if found.is_table and whole:
            self._memory.saw(SeenDocument(found.key, "", None, None, found.stamp))

    def _fact_of(
        self, found: Listed, document: Document | UnreadableDocument, content: str | None, place: int
    ) -> SeenDocument:
        from orchestrator.documents import UnreadableDocument

        of_table = (found.key, place) if document.key != found.key else (None, None)
        if isinstance(document, UnreadableDocument):
            self._report.problems.append((document.key, document.code.value, document.message))
            # No stamp: the cause may go away without a change of the file, so the file is read each time.
            stamp = found.stamp if of_table[0] else None
            return SeenDocument(document.key, "", document.size, document.code.value, stamp, None, *of_table)
        return SeenDocument(document.key, document.digest, document.size, None, found.stamp, content, *of_table)


def _has_same_bytes(found: Listed, document: Document | UnreadableDocument, mark: FileMark) -> bool:
    """True if a document has the bytes of `mark`.

    A file that could not be read has neither digest nor stamp, so its time of last change decides.
    """
    from orchestrator.documents.unchanged_files import is_same_file, is_unchanged

    if mark.digest == getattr(document, "digest", None) or is_same_file(found.stamp, mark.stamp):
        return True
    return mark.content is None and not found.is_table and is_unchanged(found.stamp, mark.size, mark.seen_at)


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def built_chunks(items: Iterable[BuiltRow]) -> Iterator[list[BuiltRow]]:
    """Yield lists of requests.

    A list ends at CHUNK requests without an earlier outcome, at KEPT requests, or at CHUNK_BYTES of lines.
    """
    chunk: list[BuiltRow] = []
    read, size = 0, 0
    for item in items:
        chunk.append(item)
        read += item.earlier is None
        size += len(item.built.line)
        if read == CHUNK or len(chunk) == KEPT or size >= CHUNK_BYTES:
            yield chunk
            chunk, read, size = [], 0, 0
    if chunk:
        yield chunk
