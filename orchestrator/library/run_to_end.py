"""Runs jobs to their end: this process is the home's daemon, or follows the running daemon."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from orchestrator.core.clock import now
from orchestrator.core.counts import number_of
from orchestrator.core.errors import BackendError
from orchestrator.core.model import SUPERSEDED_BY, Job
from orchestrator.core.shards import AT_BACKEND, HoldCode, batches_words
from orchestrator.daemon.lock import Holder, daemon_lock
from orchestrator.daemon.loop import Daemon
from orchestrator.daemon.running_settings import differences, other_settings
from orchestrator.library.build_processes import BuildProcesses
from orchestrator.library.context import Context
from orchestrator.pipeline.collect.abandoned import likely_cost, row_cost
from orchestrator.pipeline.plan.routes import all_held, request_refused
from orchestrator.reports import status
from orchestrator.settings.backends import HostedBackend

FOLLOW_SECONDS = 0.5
STANDSTILL_SECONDS = 5.0
"""Seconds between two checks for a daemon's problem. A problem is reported if both checks find it."""
MOST_NAMED = 5
"""Maximum batches or jobs that a message names."""


class ProgressView(Protocol):
    """Shows a job's progress to the user."""

    def say(self, text: str) -> None:
        """Show a permanent message."""

    def warn(self, text: str) -> None:
        """Show a permanent message, even to a user who does not watch the progress."""

    def is_due(self) -> bool:
        """Return True if drawing now would show something."""

    def job(self, detail: status.JobDetail, rate: float) -> None:
        """Show the state of a job; `rate` is in rows per second."""


class Driver:
    """Runs jobs of a home to their end, unless `interrupted` returns True.

    `logging` opens the home's log while this process is the daemon. `followed` is the last daemon that this process
    followed; None if this process was the daemon.
    """

    def __init__(
        self,
        context: Context,
        view: ProgressView,
        interrupted: Callable[[], bool],
        logging: Callable[[], AbstractContextManager[object]],
        command: str | None = None,
    ) -> None:
        self._context = context
        self._view = view
        self._interrupted = interrupted
        self._logging = logging
        self._command = command
        self._rate = status.RateWindow()
        self.followed: Holder | None = None
        self._standstill_at = 0.0
        self._problem: str | None = None
        self._warned: set[str] = set()

    def finish(self, job: Job, *, alone: bool = False) -> None:
        """Run the job to its end as the daemon, or follow the running daemon.

        Unless `alone`, this process also continues the home's other unfinished jobs.
        """
        context, view = self._context, self._view

        def look(daemon: Daemon) -> None:
            tell(daemon)
            self._draw(job, daemon.problem)

        def tell(daemon: Daemon) -> None:
            for news in daemon.news():
                view.warn(f"orch: {news}")

        def say(line: str) -> None:
            view.say(f"orch: {line}")

        def be_daemon(over: Callable[[], bool]) -> None:
            with (
                BuildProcesses(context) as builds,
                Daemon(context.config, context.store, builds=builds, only=job if alone else None) as daemon,
            ):
                if not alone and (others := _others_message(context, job)) is not None:
                    say(others)
                daemon.listeners += [context.use, builds.use]
                daemon.say = say
                daemon.run(over, look, mine=job)
                daemon.may_wait = lambda: not self._interrupted()  # this job is over, but other jobs' rows may run
            # The daemon sends its last spans when it ends, so there may be news.
            tell(daemon)

        def follow(holder: Holder, is_new: bool) -> None:
            if is_new:
                view.say(f"orch: {holder} is this home's daemon and runs the job; following it")
                for line in differences(context.home, holder, context.path):
                    view.say(f"orch: {line}")
            if holds := all_held(context.store, job):
                raise request_refused(context.config, job, holds)
            self._draw(job, None)
            self._warn_of_standstill(job)

        self._until_over(job, be_daemon, follow)

    def see_end(self, job: Job) -> None:
        """Wait for a cancelled job's end. Without a running daemon, end the job here without sending rows."""
        context, view = self._context, self._view

        def be_daemon(over: Callable[[], bool]) -> None:
            if (told := _wait_message(context, job)) is not None:
                view.say(f"orch: {told}")
            with Daemon(context.config, context.store, dispatch=False, only=job) as daemon:
                daemon.run(
                    lambda: over() or daemon.pipeline.unreachable(job) is not None,
                    lambda running: self._draw(job, running.problem),
                )
                if not over() and (why := daemon.pipeline.unreachable(job)) is not None:
                    raise _not_ended(context, job, why)

        def follow(holder: Holder, is_new: bool) -> None:
            if is_new:
                view.say(f"orch: {holder} is this home's daemon and will end it")
            if (why := _removed_reason(context, job)) is not None:
                raise _not_ended(context, job, why)
            self._draw(job, None)

        self._until_over(job, be_daemon, follow)

    def is_over(self, job: Job) -> bool:
        current = self._context.store.jobs.get(job.id)
        return current.finished_at is not None or current.error is not None

    def _draw(self, job: Job, problem: str | None) -> None:
        if self._view.is_due():
            detail = self._context.detail(job.id, problem)
            self._view.job(detail, self._rate.add(time.monotonic(), detail.done_in_batches))

    def _warn_of_standstill(self, job: Job) -> None:
        """Warn once about a problem that keeps the daemon from running a job, because the problem may last
        forever.
        """
        if time.monotonic() < self._standstill_at:
            return
        self._standstill_at = time.monotonic() + STANDSTILL_SECONDS
        seen, self._problem = self._problem, self._context.detail(job.id).problem
        if self._problem is not None and self._problem == seen and seen not in self._warned:
            self._warned.add(seen)
            self._view.warn(f"orch: {job.id}: {seen}")

    def _until_over(
        self,
        job: Job,
        be_daemon: Callable[[Callable[[], bool]], None],
        follow: Callable[[Holder, bool], None],
    ) -> None:
        """Call `be_daemon` or `follow` until the job is over or interrupted.

        `be_daemon(over)` is called with the home's lock held. If a daemon has the lock, `follow(holder, is_new)` is
        called instead.
        """
        told: set[str] = set()
        while not self.is_over(job) and not self._interrupted():
            with daemon_lock(self._context.home, self._command) as holder:
                if holder is None:
                    self.followed = None
                    with self._logging():
                        be_daemon(lambda: self._interrupted() or self.is_over(job))
                    continue
            follow(holder, str(holder) not in told)
            told.add(str(holder))
            self.followed = holder
            time.sleep(FOLLOW_SECONDS)  # poll the database, because the daemon cannot wake this process


def _others_message(context: Context, job: Job) -> str | None:
    store = context.store
    found = [
        one
        for one in store.jobs.unfinished(context.home.identity())
        if one.id != job.id and not one.options.get("dry_run") and one.options.get(SUPERSEDED_BY) != job.id
    ]
    others = [
        one for one in found if other_settings(store, one, context.path, now()) is None and not all_held(store, one)
    ]
    if not others:
        return None
    told = [
        one.id + (f" ({number_of(context.detail(one.id).line.left, 'row')} left)" if one.built_at is not None else "")
        for one in others[:MOST_NAMED]
    ]
    if len(others) == 1:
        return f"also continues the unfinished job {told[0]}; `orch cancel {others[0].id}` ends it"
    more = "" if len(others) <= MOST_NAMED else f", and {len(others) - MOST_NAMED:,} more (`orch status`)"
    return f"also continues {len(others):,} unfinished jobs: {', '.join(told)}{more}; `orch cancel JOB` ends one"


def _removed_reason(context: Context, job: Job) -> str | None:
    """Return the reason why the daemon cannot end a job whose backends have all left orch.toml; None if it can."""
    shards = [one for one in context.store.shards.of_job(job.id) if not one.state.is_final]
    known = {} if context.readable is None else context.readable.backends
    is_removed = all(
        one.state in AT_BACKEND and one.held_code is HoldCode.REMOVED and one.backend not in known for one in shards
    )
    return shards[0].held if shards and is_removed else None


def _wait_message(context: Context, job: Job) -> str | None:
    known = {} if context.readable is None else context.readable.backends
    shards = [
        one
        for one in context.store.shards.of_job(job.id)
        if one.state in AT_BACKEND and isinstance(known.get(one.backend), HostedBackend)
    ]
    if not shards:
        return None
    after = "After Ctrl-C, `orch cancel` or `orch up` continues."
    return f"waits for the end of {batches_words(shards)}, which may take minutes. {after}"


def _not_ended(context: Context, job: Job, why: str) -> BackendError:
    shards = [one for one in context.store.shards.of_job(job.id) if one.state in AT_BACKEND]
    told = [
        f"{one.batch_id or f'shard {one.number:03d} (perhaps sent)'} of {number_of(one.rows, 'row')} at {one.backend}"
        + ("" if one.account is None else f" (account {one.account})")
        for one in shards[:MOST_NAMED]
    ]
    more = "" if len(shards) <= MOST_NAMED else f", and {len(shards) - MOST_NAMED:,} more (`orch status {job.id}`)"
    cure = "the next `orch up`, `orch run` or `orch cancel` completes it"
    if any(one.held_code is HoldCode.REMOVED for one in shards):
        cure = f"put it back, then run `orch cancel {job.id}` again"
    cost = likely_cost(row_cost(context.store, job), sum(one.rows for one in shards))
    return BackendError(
        f"the cancellation is not complete: {why}; not ended: {', '.join(told)}{more}",
        hint=f"{cure}. A provider's batch continues and is billed, {cost}; its rows stay "
        f"pending until orch can collect it. `orch cancel {job.id} --abandon` gives it up",
    )
