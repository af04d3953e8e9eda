"""Handles of a home's jobs for Python: their progress, their rows, and waiting for their end."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from orchestrator.core.clock import now
from orchestrator.core.counts import number_of
from orchestrator.core.errors import JobFailed, UsageError
from orchestrator.core.model import Job, JobId
from orchestrator.core.money import money, plain
from orchestrator.daemon import manual_actions
from orchestrator.library.answers import Answers, AnswerType, EndedRow, answer_rows, finished_lines
from orchestrator.library.call_words import told_by_arguments
from orchestrator.library.context import Context, logging_to, ready, say_exposure
from orchestrator.library.job_folders import name_prefix
from orchestrator.library.partial_rows import rows_so_far
from orchestrator.library.progress_views import LogView, progress_html, view_for
from orchestrator.library.run_to_end import Driver
from orchestrator.policy.planner import Outlook
from orchestrator.reports.status import JobLine
from orchestrator.store.gc import CLEARED

T = TypeVar("T")
LOOK_SECONDS = 1.0
LOOK_SHARE = 10
"""Pause between two polls, as a multiple of the last poll's duration. Each poll reads all answers of running
batches.
"""


@contextmanager
def session() -> Iterator[Context]:
    """Open the home for a call. Prints the same warnings as the command line."""
    with ready() as context, told_by_arguments(context.home.frames):
        say_exposure(context)
        yield context


def see_through(context: Context, job: Job, view: LogView, interrupted: Callable[[], bool] = lambda: False) -> Job:
    """Run a job to its end as the home's daemon, or follow the running daemon. Return its final record.

    Raises JobFailed if the job cannot continue.
    """
    try:
        _driver(context, view, interrupted).finish(job)
    finally:
        view.stop()
    ended = context.store.jobs.get(job.id)
    if ended.error is not None and not ended.is_undelivered:
        raise JobFailed(f"job {ended.id}: {ended.error}", job_id=ended.id, code=ended.error_code)
    return ended


def _driver(context: Context, view: LogView, interrupted: Callable[[], bool]) -> Driver:
    program = " ".join(["python", *sys.argv]).strip()
    return Driver(context, view, interrupted, lambda: logging_to(context.home), program)


class JobHandle(Generic[T]):
    """A job of this home. Every process can open it, and `orch status` shows it.

    `id` is the job's id in `orch status`. `runner` says who runs the job, as of its submission. `await job` waits
    for its rows, and `async for row in job` yields each row once it has an outcome.
    """

    def __init__(self, job_id: JobId, type_: AnswerType[T], runner: str = "") -> None:
        self.id = job_id
        self.runner = runner
        self._type = type_

    @property
    def progress(self) -> JobLine:
        """Current state, counts, cost and remaining time."""
        with ready() as context:
            line = context.detail(self.id).line
        return replace(line, cost=plain(line.cost), running=plain(line.running))

    @property
    def reused(self) -> int:
        """Number of rows that were not sent because an earlier run or another job had answered them."""
        with ready() as context:
            return context.detail(self.id).carried

    @property
    def outlook(self) -> Outlook | None:
        """Probability of finishing by the deadline, and the expected cost; None once the job is over."""
        with ready() as context:
            found = context.outlook(context.store.jobs.get(self.id))
        return None if found is None else replace(found, expected=plain(found.expected))

    @property
    def is_done(self) -> bool:
        """True if the job is in a final state."""
        return self.progress.state.is_final

    def wait(self, *, progress: bool | None = None) -> Answers[T]:
        """Run the job to its end, or follow the daemon that runs it. Return the job's rows. Raises JobFailed."""
        return self._wait(lambda: False, progress)

    def rows(self, *, partial: bool = False) -> Iterator[EndedRow[T]]:
        """Yield the rows in input order.

        With `partial`, yield only rows that have an outcome so far, even in running batches. Without `partial`,
        raises UsageError if the job is not over. Raises UsageError if the job's files were removed.
        """
        with ready() as context:
            job = context.store.jobs.get(self.id)
            if job.finished_at is None and not partial:
                raise UsageError(
                    f"job {job.id} is not finished",
                    hint="wait() works until it is; rows(partial=True) gives what is done so far",
                )
            if (cleared := job.options.get(CLEARED)) is not None:
                raise UsageError(f"the result files of job {job.id} were removed by [retention] at {cleared}")
            if job.finished_at is None:
                with rows_so_far(context, job) as lines:
                    yield from answer_rows(lines, self._type, name_prefix(job))
            else:
                yield from answer_rows(finished_lines(context, job), self._type, name_prefix(job))

    def cancel(self) -> None:
        """Cancel the job; finished rows are kept."""
        with session() as context:
            job = context.store.jobs.get(self.id)
            manual_actions.cancel(context.store, job, manual_actions.USER, now())
            _driver(context, view_for(wanted=False), lambda: False).see_end(job)

    def __await__(self) -> Generator[Any, None, Answers[T]]:
        return self._in_thread().__await__()

    async def __aiter__(self) -> AsyncIterator[EndedRow[T]]:
        """Yield each row once it has an outcome."""
        working = asyncio.ensure_future(self._in_thread())
        seen: set[str] = set()
        pause = LOOK_SECONDS
        try:
            while not working.done():
                await asyncio.wait([working], timeout=pause)
                began = time.monotonic()
                found = await asyncio.to_thread(self._new_rows, seen)
                pause = max(LOOK_SECONDS, LOOK_SHARE * (time.monotonic() - began))
                for row in found:
                    yield row
            await working
            for row in await asyncio.to_thread(self._new_rows, seen):
                yield row
        finally:
            working.cancel()

    async def _in_thread(self) -> Answers[T]:
        stopped = threading.Event()
        try:
            return await asyncio.to_thread(self._wait, stopped.is_set, None)
        finally:
            stopped.set()

    def _wait(self, interrupted: Callable[[], bool], progress: bool | None) -> Answers[T]:
        with session() as context:
            job = context.store.jobs.get(self.id)
            is_merged = job.finished_at is None
            job = see_through(context, job, view_for(wanted=progress), interrupted)
            if job.finished_at is None:  # the wait was interrupted
                return Answers([], self._type)
            return Answers(
                list(answer_rows(finished_lines(context, job, is_merged=is_merged), self._type, name_prefix(job))),
                self._type,
            )

    def _new_rows(self, seen: set[str]) -> list[EndedRow[T]]:
        with ready() as context:
            line = context.detail(self.id).line
            if (line.counts.ended if line.state.is_final else line.done) == len(seen):
                return []
            if line.state.is_final:
                rows = list(self.rows())
            else:
                with rows_so_far(context, line.job, is_followed=True) as lines:
                    rows = list(answer_rows(lines, self._type, name_prefix(line.job)))
        found = [row for row in rows if row.custom_id not in seen]
        seen.update(row.custom_id for row in found)
        return found

    def __repr__(self) -> str:
        return f"<job {_told(self.progress)}>"

    def _repr_html_(self) -> str:
        line = self.progress
        return progress_html(_told(line), line.done, line.counts.total)


def _told(line: JobLine) -> str:
    return f"{line.job.id}: {line.state}, {line.done:,}/{number_of(line.counts.total, 'row')}, {money(line.cost)}"
