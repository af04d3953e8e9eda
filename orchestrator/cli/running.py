"""Commands that see a job through: as the home's engine, or by following the engine that runs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from orchestrator.cli.build_processes import BuildProcesses
from orchestrator.cli.console_progress import LiveProgress
from orchestrator.cli.context import Context, log_to
from orchestrator.cli.failures import CommandInterrupted
from orchestrator.core import interrupts
from orchestrator.core.counts import number_of
from orchestrator.core.errors import BackendError
from orchestrator.core.model import Job
from orchestrator.core.shards import ShardState
from orchestrator.daemon.lock import Holder, engine_lock
from orchestrator.daemon.loop import Engine
from orchestrator.pipeline.plan.rows_without_backend import request_refused
from orchestrator.reports import status
from orchestrator.settings.backends import OwnServer

FOLLOW_SECONDS = 0.5


def finish(context: Context, job: Job, view: LiveProgress) -> status.JobDetail:
    """Run the job to its end as the engine, or follow the running engine. Return the job's final state."""
    rate = status.RateWindow()

    def tell(engine: Engine) -> None:
        for news in engine.news():
            view.say(f"orch: {news}")

    def look(engine: Engine) -> None:
        tell(engine)
        draw(engine.problem)

    def draw(problem: str | None) -> None:
        if view.is_due():
            detail = context.detail(job.id, problem)
            view.job(detail, rate.add(time.monotonic(), detail.line.done))

    def be_engine(over: Callable[[], bool]) -> None:
        with (
            BuildProcesses(context) as builds,
            Engine(context.config, context.store, builds=builds) as engine,
        ):
            engine.listeners += [context.use, builds.use]
            engine.run(over, look, mine=job)
        # The last spans are sent as the engine ends.
        tell(engine)

    def follow(holder: Holder, is_new: bool) -> None:
        if is_new:
            view.say(f"orch: {holder} is this home's engine and runs the job; following it")
        _check_held(context, job)
        draw(None)

    until_over(context, job, be_engine, follow)
    return context.detail(job.id)


def _check_held(context: Context, job: Job) -> None:
    """Raise RequestRefused if the only rows left of a job are rows that a backend refuses alike."""
    holds = context.store.holds.of(job.id)
    if not holds or any(not shard.state.is_final for shard in context.store.shards.of_job(job.id)):
        return
    waiting = context.store.sizes.open_work(job.id)
    held = {(hold.model, hold.task) for hold in holds}
    if waiting and all(rows.avoid and (rows.model, rows.task) in held for rows in waiting):
        raise request_refused(job, holds)


def until_over(
    context: Context,
    job: Job,
    be_engine: Callable[[Callable[[], bool]], None],
    follow: Callable[[Holder, bool], None],
) -> None:
    """Call `be_engine(over)` while this process holds the home's lock, else `follow(holder, is_new)`, until a job is
    over.

    Raises CommandInterrupted if a signal comes first; the job then stays as it is.
    """
    told: set[str] = set()
    followed: Holder | None = None

    def is_over() -> bool:
        current = context.store.jobs.get(job.id)
        return current.finished_at is not None or current.error is not None

    with interruptible() as interrupted:
        while not is_over() and not interrupted():
            with engine_lock(context.home) as holder:
                if holder is None:
                    followed = None
                    log_to(context.home)
                    be_engine(lambda: interrupted() or is_over())
                    continue
            follow(holder, str(holder) not in told)
            told.add(str(holder))
            followed = holder
            time.sleep(FOLLOW_SECONDS)  # polls the database: the other process cannot wake this one
        if interrupted() and not is_over():
            raise CommandInterrupted(_stop_message(context, job, followed))


def _stop_message(context: Context, job: Job, followed: Holder | None) -> str:
    """Say what continues after Ctrl-C, how to follow it, and how to end it."""
    goes_on = f"{followed} goes on with {job.id}" if followed else "run the same command again to continue"
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
    verb = "goes" if len(hosted) == 1 else "go"
    return (
        f"stopped here, but {batches} of {number_of(rows, 'row')} {verb} on at {names} and will be billed; "
        f"{goes_on}; follow it: `orch status {job.id}`; end it: `orch cancel {job.id}`"
    )


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Let SIGINT and SIGTERM ask for a clean stop; a second signal stops at once."""
    seen: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        interrupts.ask(to_end=True)

    before: dict[int, Any] = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        interrupts.ask(to_end=False)
        for number, handler in before.items():
            signal.signal(number, handler)


def see_it_end(context: Context, job: Job, view: LiveProgress) -> None:
    """See a cancelled job to its end: end it here, sending no row, or wait for the running engine."""
    rate = status.RateWindow()

    def draw(problem: str | None) -> None:
        if view.is_due():
            detail = context.detail(job.id, problem)
            view.job(detail, rate.add(time.monotonic(), detail.line.done))

    def be_engine(over: Callable[[], bool]) -> None:
        with Engine(context.config, context.store, dispatch=False) as engine:
            engine.run(
                lambda: over() or engine.pipeline.unreachable(job) is not None,
                lambda running: draw(running.problem),
                only=job,
            )
            if not over() and (why := engine.pipeline.unreachable(job)) is not None:
                raise BackendError(
                    f"cancellation requested, but a backend with its batches does not answer: {why}",
                    hint="the next `orch up`, `orch run` or `orch cancel` completes it",
                )

    def follow(holder: Holder, is_new: bool) -> None:
        if is_new:
            view.say(f"orch: {holder} is this home's engine and will end it")
        draw(None)

    until_over(context, job, be_engine, follow)
