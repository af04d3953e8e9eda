"""Stage 1: documents, or a batch file, become request lines in a file and rows in the store.

An interrupted build leaves nothing valid and starts again. Answers are taken from earlier runs of the same job file,
or from other jobs with exactly the same request. Of equal requests in a job, only the first is sent.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import BinaryIO

from orchestrator.core import request_lines
from orchestrator.core.errors import InputError, StorageError
from orchestrator.core.few_collections import few_collections
from orchestrator.core.model import Job, JobId, JobKind, Row, Span, Why
from orchestrator.pipeline.backend_handles import Models
from orchestrator.pipeline.build import reused_answers
from orchestrator.pipeline.build.awaited_rows import Sharing
from orchestrator.pipeline.build.build_report import GONE, BuildReport
from orchestrator.pipeline.build.disk_room import RoomCheck, given_back, written_to
from orchestrator.pipeline.build.document_mistakes import Askable
from orchestrator.pipeline.build.ready_batch_file import batch_lines
from orchestrator.pipeline.build.reused_answers import Asked, holding
from orchestrator.pipeline.build.scan import BuiltRow, DocumentMemory, Sweep, built_chunks
from orchestrator.pipeline.build.source_checks import check_names, in_two_sources, located
from orchestrator.pipeline.plan.synchronous_backends import AT_ONCE
from orchestrator.pipeline.selection import Scope, Selection
from orchestrator.pipeline.succession import Edited
from orchestrator.policy.cache_keys import line_cache_key
from orchestrator.policy.request_limits import bounds
from orchestrator.policy.requests import Builder, Built
from orchestrator.settings.config import ReadingSettings
from orchestrator.settings.home import Home
from orchestrator.settings.stored_spec import spec_of
from orchestrator.store import Store
from orchestrator.store.records import Earlier

MANY = 5000
"""Number of rows from which a build updates the database's statistics, which takes up to a tenth of a second."""
Progress = Callable[[int, int, int | None], None]
"""Called with the numbers of documents and requests so far, and the total number of documents (None: unknown)."""


@contextmanager
def claim(home: Home, job: Job, *, wait: bool = False) -> Iterator[bool]:
    """Hold the right to build a job. Yield False if another process has it; with `wait`, wait instead.

    The right ends with the process, even if the process is killed.
    """
    with locked(home.build_lock(job.id), wait=wait) as mine:
        yield mine


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock file. Yield False if another process holds it; with `wait`, wait instead. Raises StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise StorageError(f"cannot use {path}: {error.strerror}", hint="set ORCH_HOME elsewhere") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def same_as(store: Store, job: Job, report: BuildReport) -> Job | None:
    """Return the finished run that a build reproduces exactly, or None if anything differs.

    The documents are the same, and every outcome of that run still holds.
    """
    if not report.requests or report.requests != report.carried:
        return None
    for other in store.jobs.of_series(job.series):
        if other.ran_to_its_end and other.identity == job.identity:
            rows = store.jobs.counts([other.id])[other.id].total
            alike = rows == report.requests == store.known.same(job.id, other.id)
            return other if alike else None
    return None


def discard(store: Store, home: Home, job: Job) -> None:
    """Remove an unbuilt job completely. A built job is kept."""
    stays = False
    try:
        stays = store.jobs.find(job.id) is not None and not store.jobs.discard(job.id)
    finally:
        # The files go even if the database fails: the next process builds an unbuilt job again.
        if not stays:
            _remove_files(home, job)


def _remove_files(home: Home, job: Job) -> None:
    home.requests(job.id).unlink(missing_ok=True)
    home.build_lock(job.id).unlink(missing_ok=True)
    folder = home.job(job.id)
    if folder.is_dir():
        with suppress(OSError):  # a daemon may be reading it; an empty folder does no harm
            folder.rmdir()


def build(
    store: Store,
    home: Home,
    job: Job,
    now: datetime,
    progress: Progress = lambda documents, requests, expected: None,
    *,
    asked: Asked = lambda model: (),
    models: Callable[[Job], Models] | None = None,
    hosted: Collection[str] = (),
    remember: bool = True,
    clock_ns: Callable[[], int] = time.time_ns,
    reading: ReadingSettings | None = None,
    shortage: Callable[[], str | None] = lambda: None,
) -> BuildReport:
    """Read the input and record every request.

    `remember` records the documents as seen. `asked` returns the backends that may answer a model's rows. Answers of
    other jobs count only from these backends. `models` returns a job's models; without it, no rows in flight are
    awaited. `hosted` names the Batch APIs among the backends. `clock_ns` is the clock of file timestamps, in
    nanoseconds. `reading` limits the reading of documents. `shortage` returns the reason why nothing more may be
    written to the home, or None.

    Raises InputError, StorageError or NoRoom, after removing what the build wrote.
    """
    report = BuildReport(limited_to=job.limited_to)
    sharing = None if models is None else Sharing(store, job, asked, models, hosted)
    recorder = _Recorder(store, home, job, asked, sharing, report, now)
    memory = DocumentMemory(store, job, now, remember=remember)
    if job.kind is JobKind.DOCUMENTS:
        lines = _from_documents(
            store, home, job, recorder.runs, asked, memory, report, clock_ns, reading or ReadingSettings()
        )
    else:
        lines = _from_batch_file(job, report)
    room = RoomCheck(shortage, home.root)

    def write(file: BinaryIO) -> None:
        for chunk in built_chunks(lines):
            room.require(len(chunk), sum(len(made.built.line) for made in chunk))
            recorder.record(file, chunk)
            progress(report.documents, report.requests, report.expected)

    with few_collections(), given_back(store, home, job):
        store.rows.clear(job.id)
        written_to(home.requests(job.id), write)
        memory.flush()
    if report.requests >= MANY:
        store.rows.loaded()
    recorder.compare()
    if job.kind is JobKind.DOCUMENTS:
        store.jobs.ignored(job.id, report.ignored.to_json())
    store.failures.trace(job)
    return report


class _Recorder:
    def __init__(
        self, store: Store, home: Home, job: Job, asked: Asked, sharing: Sharing | None, report: BuildReport,
        now: datetime,
    ) -> None:  # fmt: skip
        self._store = store
        self._home = home
        self._job = job
        self._asked = asked
        self._sharing = sharing
        self._report = report
        self._now = now
        self.runs = reused_answers.earlier_runs(store, job)
        self._last = reused_answers.last_asked(store, job)
        self._superseded = [] if sharing is None else sharing.superseded

    def record(self, file: BinaryIO, chunk: list[BuiltRow]) -> None:
        store, job, report = self._store, self._job, self._report
        rows, spans = [made.built.row for made in chunk], _written(file, chunk)
        carried = {made.built.row.custom_id: made.earlier for made in chunk if made.earlier is not None}
        unknown = [made.built.row for made in chunk if made.earlier is None]
        carried |= holding(self._home, reused_answers.to_carry(store, job, self._asked, self.runs, unknown))
        others = [row for row in rows if row.custom_id not in carried]
        cached = holding(self._home, reused_answers.answered(store, job, self._asked, others))
        unanswered = {row.seq for row in others if row.custom_id not in cached}
        found = [made.built for made in chunk if made.built.row.seq in unanswered]
        awaited = {} if self._sharing is None else self._sharing.of(found)
        twins = reused_answers.twins(
            store, job, [row for row in others if row.seq in unanswered and row.seq not in awaited]
        )
        same = {made.built.row.seq: made.known_content for made in chunk if made.known_content is not None}
        changed = reused_answers.whys(store, job, self._asked, self._last, others, same)
        whys = dict.fromkeys((row.seq for row in rows), Why.UNCHANGED) | changed
        try:
            placed = list(zip(rows, spans, strict=True))
            store.rows.add(job.id, placed, carried | cached, self._now, twins, whys, awaited)
        except InputError:
            raise _twice(store, job, rows) from None
        left = unanswered - twins.keys() - awaited.keys()
        if self._superseded:
            store.escalations.inherit(job.id, left, self._superseded)
        sent = [made.built for made in chunk if made.built.row.seq in left]
        report.requests += len(rows)
        report.carried += len(carried)
        report.of_other_models.update(self._of_other_models(rows, carried))
        report.cached += len(cached)
        report.twins += len(twins)
        report.awaited += len(awaited)
        report.whys.update(whys.values())
        askable = [built.row.seq for built in sent if built.row.problem is None]
        report.asks.update(whys[seq] for seq in askable)
        report.to_send += len(askable)
        report.unaskable += len(sent) - len(askable)
        report.input_bytes += sum(len(built.line) for built in sent)
        report.trimmed_tokens += sum(built.row.trimmed_tokens for built in sent)
        report.later += sum(built.row.parts is not None and built.row.part is None for built in sent)

    def _of_other_models(self, rows: list[Row], carried: Mapping[str, Earlier]) -> Iterator[tuple[str, str]]:
        """Yield a pair for each carried answer of a model that would not be asked now: that model and the current
        model.
        """
        for row in rows:
            known = carried.get(row.custom_id)
            if known is not None and reused_answers.is_other_model(known.answered_as, self._asked(row.model)):
                yield str(known.answered_as), " or ".join(sorted({model for _, model in self._asked(row.model)}))

    def compare(self) -> None:
        """Report documents of the last run that are gone. Does nothing in a limited run or beside another run."""
        last = None if self._job.is_limited or self._job.options.get(Edited.BESIDE) else self._last
        gone = () if last is None else self._store.known.gone(self._job.id, last)
        for key in gone:
            self._report.removed += 1
            if len(self._report.gone) < GONE:
                self._report.gone.append(key)


def _written(file: BinaryIO, chunk: list[BuiltRow]) -> list[Span]:
    spans, offset = [], file.tell()
    for made in chunk:
        line = made.built.line
        spans.append(Span(offset, len(line)))
        if line:
            file.write(line + b"\n")
            offset += len(line) + 1
    return spans


def _twice(store: Store, job: Job, rows: list[Row]) -> InputError:
    known = set(store.known.known_ids(job.id, [row.custom_id for row in rows]))
    for row in rows:
        if row.custom_id in known:
            break
        known.add(row.custom_id)
    return in_two_sources(Path(job.source), row.document)


def _from_documents(
    store: Store, home: Home, job: Job, runs: list[JobId], asked: Asked, memory: DocumentMemory,
    report: BuildReport, clock_ns: Callable[[], int], reading: ReadingSettings,
) -> Iterator[BuiltRow]:  # fmt: skip
    from orchestrator.documents import Readers

    spec = spec_of(job)
    assert spec is not None, "its kind is documents"
    base = Path(job.source).parent
    scope = Scope.of(job)
    selection = Selection(scope, needs_text=AT_ONCE in job.options)
    with Readers.of(reading) as readers:
        report.expected = check_names(spec, Path(job.source), readers, scope)
        builder = Builder(spec, reused_answers.learned_bound(store, job))
        askable = Askable(Path(job.source), spec)
        for index, source in enumerate(spec.documents):
            if tasks := scope.tasks_of(spec, source):
                asking = builder.asking(tasks)
                sweep = Sweep(store, home, job, asking, selection, runs, asked, memory, report, clock_ns, readers)
                with located(Path(job.source), index):
                    for made in sweep.made(source, base):
                        askable.note(index, made.built)
                        yield made
    selection.check()
    askable.require()


def _from_batch_file(job: Job, report: BuildReport) -> Iterator[BuiltRow]:
    selection, number = Selection(Scope.of(job)), count()
    for checked, raw in batch_lines(Path(job.source)):
        if selection.takes(checked.custom_id, checked.custom_id):
            report.documents += 1
            yield BuiltRow(Built(_batch_row(next(number), checked, raw), raw))
    selection.check()


def _batch_row(seq: int, line: request_lines.CheckedLine, raw: bytes) -> Row:
    mark = sha256(raw).hexdigest()[:32]
    inputs, most = bounds(line.url, line.body)
    return Row(
        seq, line.custom_id, line.custom_id, "", line.url, line.model or "", mark, "", inputs=inputs, max_output=most,
        cache_key=line_cache_key(line.url, line.body), content=mark,
    )  # fmt: skip
