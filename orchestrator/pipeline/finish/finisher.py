"""End of a job: merges its rows, delivers them as its job file says, and compares forecasts with the outcome.

If the job file names known answers, the job's answers are first compared with them. If too few are right, the rows
are merged but not delivered. If delivery fails, the rows stay in the home, and the job ends with the fault's code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.core.errors import (
    InputError,
    JobFilesError,
    OutputError,
    OutputFault,
    StateConflict,
    StorageError,
    UsageError,
)
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job, JobId, JobKind, RequestState
from orchestrator.pipeline.finish import merge
from orchestrator.pipeline.finish.confidences import checks_of, merging_checks
from orchestrator.pipeline.finish.delivery import FIRST_PAUSE, LONGEST_PAUSE, begun, deliver, output_of
from orchestrator.pipeline.plan import forecast_records
from orchestrator.policy.requests import custom_id
from orchestrator.settings import known_answers
from orchestrator.settings.home import Home
from orchestrator.settings.job_spec import JobSpec
from orchestrator.settings.stored_spec import spec_of
from orchestrator.store import Store
from orchestrator.store.quality import Quality

log = logging.getLogger(__name__)

CHUNK = 500
PROMPT_SECONDS, POLL_SECONDS = 1.0, 0.05
"""Seconds to wait for a delivery in its first step, and in each later step."""
LONGEST_DELIVERY = timedelta(hours=2)
"""Time after which a delivery counts as hanging."""
KEPT = timedelta(days=1)
"""How long orch retries a failed delivery automatically."""
ASKED = (RequestState.SUCCEEDED, RequestState.FAILED)


class JobEnd(Struct, frozen=True):
    """End of a job: the destination of its rows, and the error if they were not delivered."""

    place: str
    error: OutputError | None = None

    def __str__(self) -> str:
        return self.place if self.error is None else f"{self.place}; {self.error.code}: {self.error.message}"


class _Delivery(Struct, frozen=True):
    future: Future[str]
    since: datetime


class Finisher:
    """Ends jobs whose rows all have an outcome.

    Deliveries run in threads, so a storage service that does not answer delays no other job. A failed delivery does
    not keep a job open.
    """

    def __init__(
        self, store: Store, home: Home, now: Callable[[], datetime], may_act: Callable[[], bool] = lambda: True
    ) -> None:
        """`may_act` returns False if another daemon may have taken over the home."""
        self._may_act = may_act
        self._store = store
        self._home = home
        self._now = now
        self._under_way: dict[JobId, _Delivery] = {}
        self._again: dict[JobId, tuple[datetime, timedelta]] = {}

    def step(self, job: Job) -> JobEnd | None:
        """Merge a job's rows, deliver them and end the job. Return None while the delivery runs.

        Raises JobFilesError if the job's own files are gone or cannot be written. The job then stays open.
        """
        delivery, wait = self._under_way.get(job.id), POLL_SECONDS
        if delivery is None:
            try:
                path, withheld = self._merged(job)
            except StorageError as error:
                raise JobFilesError(error.message, hint=error.hint) from error
            if withheld or output_of(job) is None or self._has_nothing(job):
                return self._end(job, JobEnd(str(path)))
            delivery, wait = self._begun(job), PROMPT_SECONDS
        try:
            ended = JobEnd(delivery.future.result(wait))
        except OutputError as error:
            ended = JobEnd(str(self._path(job)), error)
        except TimeoutError:
            hangs = self._now() - delivery.since >= LONGEST_DELIVERY
            if job.cancel_requested_at is None and not hangs:
                return None
            # A hanging delivery is not started again. If it ends later, its result counts.
            said = f"{_wanted(job)} has not taken the rows since {delivery.since:%H:%M} UTC"
            return self._end(job, JobEnd(str(self._path(job)), OutputError(OutputFault.UNREACHABLE, said)))
        del self._under_way[job.id]
        return self._end(job, ended)

    def deliver_again(self) -> None:
        """Retry failed deliveries whose fault may have passed. Retries continue for a day, with growing pauses."""
        now, codes = self._now(), [fault for fault in OutputFault if fault.may_pass]
        for job in self._store.jobs.undelivered(self._home.identity(), codes, now - KEPT):
            due, pause = self._again.get(job.id, (now, FIRST_PAUSE))
            delivery = self._under_way.get(job.id)
            if delivery is None and now < due:
                continue
            if delivery is None:
                self._begun(job)
            elif delivery.future.done():
                del self._under_way[job.id]
                self._again[job.id] = now + pause, min(LONGEST_PAUSE, 2 * pause)
                with suppress(StateConflict):  # the job was reopened meanwhile
                    self._tried_again(job, delivery.future)

    def _tried_again(self, job: Job, delivery: Future[str]) -> None:
        try:
            place = delivery.result()
        except OutputError as error:
            if error.code != job.error_code:
                self._store.jobs.not_delivered(job.id, error.message, error.code)
                self._note(job, EventKind.OUTPUT, f"{error.code}: {error.message}")
            return
        self._again.pop(job.id, None)
        self._store.jobs.delivered(job.id, place)
        self._note(job, EventKind.DELIVERED, f"its rows are in {place} now")

    def _has_nothing(self, job: Job) -> bool:
        """True if a job was cancelled before any row succeeded. An earlier delivery is then kept."""
        return job.cancel_requested_at is not None and not self._store.jobs.counts([job.id])[job.id].succeeded

    def _begun(self, job: Job) -> _Delivery:
        def lines(style: str) -> Iterator[bytes]:
            yield from merged_lines(self._store, self._home, job, style=style)
            if not self._may_act():  # this process was paused, so the output may have newer rows
                raise OutputError(OutputFault.UNREACHABLE, "another daemon may have taken over this home")

        def work() -> str:
            try:
                return deliver(self._store, job, lines, self._now())
            except OutputError:
                raise
            except (StorageError, InputError, UsageError) as error:
                raise OutputError(OutputFault.FAILED, error.message, hint=error.hint) from error
            except Exception as error:  # a defect here or in a library is also reported by code
                log.exception("the rows of %s could not be delivered", job.id)
                raise OutputError(OutputFault.FAILED, f"{type(error).__name__}: {error}") from error

        self._under_way[job.id] = delivery = _Delivery(begun(work, f"deliver-{job.id}"), self._now())
        return delivery

    def _merged(self, job: Job) -> tuple[Path, bool]:
        style = "batch" if job.kind is JobKind.BATCH else "jsonl"
        merge.write(self._path(job), merged_lines(self._store, self._home, job, style=style))
        found = _compared(self._store, self._home, job, self._now())
        return self._path(job), found is not None and found.withheld is not None

    def _path(self, job: Job) -> Path:
        return self._home.merged(job.id, "batch" if job.kind is JobKind.BATCH else "jsonl")

    def _end(self, job: Job, ended: JobEnd) -> JobEnd:
        store, now, error = self._store, self._now(), ended.error
        forecast_records.job_over(store, job, now)
        if error is None or job.cancel_requested_at is not None:
            store.jobs.finish(job.id, ended.place, now)  # a user who cancelled the job need not hear of the fault
        else:
            store.jobs.finish(job.id, ended.place, now, error=str(error), code=error.code)
        if error is not None:
            self._note(job, EventKind.OUTPUT, f"{error.code}: {error.message}")
        return ended

    def _note(self, job: Job, kind: EventKind, reason: str) -> None:
        self._store.jobs.note(job.id, kind, reason, self._now())


def _wanted(job: Job) -> str:
    output = output_of(job)
    assert output is not None, "it has one"
    return output.path or f"table {output.table}"


def _compared(store: Store, home: Home, job: Job, now: datetime) -> Quality | None:
    spec = spec_of(job)
    if spec is None or spec.gold is None:
        return None
    try:
        known = known_answers.read(Path(job.source).parent / spec.gold, known_answers.tasks_of(spec))
    except InputError as error:
        return _unjudged(store, job, spec, f"cannot read the known answers: {error}", now)
    by_id = {custom_id(one.document, one.task): one for one in known}
    score = known_answers.score((by_id[name], answer) for name, answer in _answers(store, home, job, sorted(by_id)))
    absent, withheld = len(known) - score.rows, None
    if spec.quality_threshold is not None and not score.fields and not job.is_limited:
        withheld = f"none of {absent:,} known answers could be compared"
    elif spec.quality_threshold is not None and score.fields and score.hits < spec.quality_threshold * score.fields:
        withheld = f"{score.hits / score.fields:.1%} is below the threshold of {spec.quality_threshold:.1%}"
    found = Quality(score.hits, score.fields, score.rows, absent, withheld)
    store.quality.note(job.id, found, now)
    flag = "" if withheld is None else f"; not delivered: {withheld}"
    store.jobs.note(job.id, EventKind.QUALITY, f"{known_answers.score_words(score, absent)}{flag}", now)
    return found


def _unjudged(store: Store, job: Job, spec: JobSpec, why: str, now: datetime) -> Quality:
    found = Quality(0, 0, 0, 0, None if spec.quality_threshold is None else why)
    store.quality.note(job.id, found, now)
    store.jobs.note(job.id, EventKind.QUALITY, why, now)
    return found


def _answers(store: Store, home: Home, job: Job, custom_ids: list[str]) -> Iterator[tuple[str, Any]]:
    for start in range(0, len(custom_ids), CHUNK):
        rows = [row for row in store.rows.finished(job.id, custom_ids[start : start + CHUNK]) if row.state in ASKED]
        for row, line in zip(rows, merge.lines(home.results, rows, checks_of(job), style="jsonl"), strict=True):
            yield row.custom_id, msgspec.json.decode(line)["output"] if row.state is RequestState.SUCCEEDED else None


def merged_lines(store: Store, home: Home, job: Job, *, style: str) -> Iterator[bytes]:
    """Return a job's merged rows in input order. Rows without an outcome appear as pending."""
    checks = {} if style == "batch" else merging_checks(store, home, job)
    return merge.lines(home.results, store.rows.finished(job.id), checks, style=style)
