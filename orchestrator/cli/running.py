"""Runs a job to its end, or until a signal requests a stop. Shared by several commands."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from orchestrator.cli.console_progress import LiveProgress
from orchestrator.cli.failed_commands import CommandInterrupted
from orchestrator.core import interrupts
from orchestrator.core.counts import number_of
from orchestrator.core.model import Job
from orchestrator.core.shards import ShardState
from orchestrator.daemon.lock import Holder
from orchestrator.library.context import Context, log_to
from orchestrator.library.run_to_end import Driver
from orchestrator.reports import status
from orchestrator.settings.backends import OwnServer

CONTINUE = "run the same command again to continue (`orch up` or another `orch run` continues it, too)"


def finish(context: Context, job: Job, view: LiveProgress, *, alone: bool = False) -> status.JobDetail:
    """Run the job to its end as the daemon, or follow the running daemon. Return the job's final state.

    If `alone`, do not send rows of the home's other unfinished jobs.
    """
    with _driver(context, job, view) as driver:
        driver.finish(job, alone=alone)
    return context.detail(job.id)


def see_it_end(context: Context, job: Job, view: LiveProgress) -> None:
    """Wait until a cancelled job has ended. Without a daemon, end the job here without sending rows."""
    with _driver(context, job, view) as driver:
        driver.see_end(job)


@contextmanager
def _driver(context: Context, job: Job, view: LiveProgress) -> Iterator[Driver]:
    def logging() -> AbstractContextManager[object]:
        log_to(context.home)
        return nullcontext()

    with interruptible() as interrupted:
        driver = Driver(context, view, interrupted, logging)
        yield driver
        if interrupted() and not driver.is_over(job):
            raise CommandInterrupted(_stop_message(context, job, driver.followed))


def _stop_message(context: Context, job: Job, followed: Holder | None) -> str:
    goes_on = f"{followed} continues {job.id}" if followed else CONTINUE
    sent = (ShardState.SUBMITTING, ShardState.SUBMITTED)
    backends = {} if (settings := context.readable) is None else settings.backends
    own = {name for name, backend in backends.items() if isinstance(backend, OwnServer)}
    hosted = [
        shard for shard in context.store.shards.of_job(job.id) if shard.state in sent and shard.backend not in own
    ]
    if not hosted:
        return f"stopped; {goes_on}"
    rows, names = sum(shard.rows for shard in hosted), ", ".join(sorted({shard.backend for shard in hosted}))
    batches = number_of(len(hosted), "batch")
    ends, continues, has, it = (
        ("ends", "continues", "has", "it") if len(hosted) == 1 else ("end", "continue", "have", "they")
    )
    if context.store.jobs.get(job.id).cancel_requested_at is not None:
        return (
            f"stopped here; {batches} of {number_of(rows, 'row')} {ends} at {names}, and what {it} {has} answered is "
            f"billed; `orch cancel {job.id}` or `orch up` collects it; follow it: `orch status {job.id}`"
        )
    return (
        f"stopped here, but {batches} of {number_of(rows, 'row')} {continues} at {names} and will be billed; "
        f"{goes_on}; follow it: `orch status {job.id}`; end it: `orch cancel {job.id}`"
    )


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after a signal has requested a clean stop.

    A second signal stops at once, except signals of a closed terminal.
    """
    seen: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        if number != signal.SIGHUP and any(one != signal.SIGHUP for one in seen):
            raise KeyboardInterrupt
        seen.append(number)
        interrupts.ask(to_end=True)

    with interrupts.handled(on_signal):
        try:
            yield lambda: bool(seen)
        finally:
            interrupts.ask(to_end=False)
