"""Delivery of a job's rows to the destination that its job file names.

The destination is tested before any row is paid for. Foreign files are overwritten only if the user allows it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from orchestrator.core.clock import night_of
from orchestrator.core.errors import InputError, OutputError, OutputFault
from orchestrator.core.model import Job, JobId
from orchestrator.pipeline.finish import outputs
from orchestrator.pipeline.finish.own_files import is_foreign, remember
from orchestrator.settings.job_spec import Output
from orchestrator.settings.stored_spec import spec_of
from orchestrator.store import Store

PROBE_SECONDS = 30.0
"""Seconds to wait for a destination to show that it can be written."""
PATIENCE = timedelta(hours=1)
"""How long a job waits for an output whose fault may pass, before it asks its first row."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=1), timedelta(minutes=15)
OVERWRITE = "overwrite"
"""Job option: the user allows the output to overwrite a foreign file."""
Result = TypeVar("Result")


def output_of(job: Job) -> Output | None:
    """Return the output that a job's file names, or None.

    A limited run has no output, because it would replace the rows of a whole night.
    """
    spec = None if job.is_limited else spec_of(job)
    return None if spec is None else spec.output


def require(store: Store | None, job: Job) -> None:
    """Raise OutputError if a job's rows cannot or must not be delivered as its file says.

    Without a store, any existing file counts as foreign.
    """
    output = output_of(job)
    if output is None:
        return
    try:
        place = outputs.place_of(output, job, night_of(job.created_at))
        named = f"table {output.table}" if place is None else str(place)
        _within(PROBE_SECONDS, named, lambda: outputs.probe(output, job, night_of(job.created_at)))
        if place is not None:
            _refuse_foreign(store, job, output, place)
    except InputError as error:
        raise OutputError(OutputFault.NOT_SET, f"{error.where}: {error.message}", hint=error.hint) from error


def _refuse_foreign(store: Store | None, job: Job, output: Output, place: str | Path) -> None:
    if output.overwrite or job.options.get(OVERWRITE):
        return
    if _within(PROBE_SECONDS, str(place), lambda: is_foreign(store, job.home, job.series, place)):
        raise OutputError(
            OutputFault.EXISTS,
            f"{place} already exists, and orch did not write it",
            hint="move it, name another file, or allow overwriting: --force, or `overwrite: true` in `output`",
        )


def deliver(store: Store, job: Job, lines: Callable[[str], Iterable[bytes]], now: datetime) -> str:
    """Deliver a job's rows as its file says, and return the destination. `lines` returns the rows in a style.

    Raises OutputError, and the errors of `lines`.
    """
    output = output_of(job)
    assert output is not None, "there is an output to deliver to"
    try:
        place = outputs.place_of(output, job, night_of(job.created_at))
        if place is not None:
            _refuse_foreign(store, job, output, place)
        style = "batch" if output.format == "batch" else "jsonl"
        written = outputs.deliver(output, job, lines(style), night_of(job.created_at))
    except InputError as error:
        raise OutputError(OutputFault.NOT_SET, f"{error.where}: {error.message}", hint=error.hint) from error
    if place is not None:
        remember(store, job.home, job.series, job.id, place, now)
    return written.place


def begun(work: Callable[[], Result], name: str) -> Future[Result]:
    """Start work in its own thread, which ends with the process. Return its future."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  (raised again where the result is read)
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _within(seconds: float, place: str, work: Callable[[], Result]) -> Result:
    future = begun(work, "output")
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():
            raise  # the storage service's own timeout
        said = f"{place} has not answered for {seconds:.0f} s"
        raise OutputError(OutputFault.UNREACHABLE, said, hint="check that it exists and responds") from None


class _Waiting(Struct):
    since: datetime
    next_at: datetime
    pause: timedelta
    error: OutputError


class Gate:
    """Keeps a job from asking its first row while its output cannot be written."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self._waiting: dict[JobId, _Waiting] = {}

    def hold(self, job: Job) -> OutputError | None:
        """Return the error that delays a job's start, or None. Raises it if it cannot pass, or after `PATIENCE`."""
        now = self._now()
        known = self._waiting.get(job.id)
        if known is not None and now < known.next_at:
            return known.error
        try:
            require(self._store, job)
        except OutputError as error:
            return self._wait(job, error, now)
        self.forget(job)
        return None

    def _wait(self, job: Job, error: OutputError, now: datetime) -> OutputError:
        known = self._waiting.get(job.id)
        since = now if known is None else known.since
        if not OutputFault(error.code).may_pass or now - since >= PATIENCE:
            self.forget(job)
            raise error
        pause = FIRST_PAUSE if known is None else min(LONGEST_PAUSE, 2 * known.pause)
        self._waiting[job.id] = _Waiting(since, now + pause, pause, error)
        return error

    def forget(self, job: Job) -> None:
        self._waiting.pop(job.id, None)
