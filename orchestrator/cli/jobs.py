"""Commands that make, run and end jobs: run, submit, cancel, retry, up."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal, InvalidOperation
from functools import wraps
from pathlib import Path
from typing import Any

import click

from orchestrator import hooks, overview
from orchestrator.cli.context import Context, json_option, log_to, opened, print_json, quiet_option, say
from orchestrator.cli.rows import write_rows
from orchestrator.clock import now
from orchestrator.console import Progress, err, job_detail, money, out, plan_table, progress
from orchestrator.engine import Engine, Holder, engine_lock, running_engine
from orchestrator.errors import UsageError
from orchestrator.jobspec import MAX_BUDGET
from orchestrator.model import Job, RequestState
from orchestrator.pipeline import house, merge
from orchestrator.pipeline.intake import How, Intake, Options, rehearse
from orchestrator.pipeline.intake import submit as take_in
from orchestrator.scheduler import Scheduler

FOLLOW_SECONDS = 0.5


class Dollars(click.ParamType[Decimal]):
    name = "dollars"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        try:
            amount = Decimal(str(value).lstrip("$"))
        except InvalidOperation:
            self.fail(f"{value!r} is no amount of dollars", param, ctx)
        if not amount.is_finite() or not 0 <= amount <= MAX_BUDGET:
            self.fail(f"{value!r} is no amount of dollars up to {MAX_BUDGET:,}", param, ctx)
        return amount


FILE = click.argument("file", type=click.Path(path_type=Path))


def job_options(function: Callable[..., int]) -> Callable[..., int]:
    """What the command line says of a job, as `options`."""

    @wraps(function)
    def command(
        deadline: str | None, budget: Decimal | None, backend: str | None, new: bool, verify: bool, **others: Any
    ) -> int:
        return function(options=Options(deadline, budget, backend, new, verify), **others)

    for option in (
        click.option("--verify", is_flag=True, help="Read every file, also those that did not move."),
        click.option("--new", is_flag=True, help="Another job, though one is unfinished or nothing changed."),
        click.option("--backend", metavar="NAME", help="This backend alone."),
        click.option("--budget", type=Dollars(), help="A hard cap in dollars."),
        click.option("--deadline", metavar="WHEN", help="8h, 90m, 06:00 or an ISO time."),
    ):
        command = option(command)
    return command


@click.command()
@FILE
@job_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the rows here when done.")
@quiet_option
@json_option
def run(file: Path, options: Options, output: Path | None, quiet: bool, as_json: bool) -> int:
    """Submit a job or batch file, run it to its end, show the results.

    The same command again while the job is unfinished takes it up where it stopped.
    """
    if output is not None:
        merge.check_output(output, file)
    with opened() as context, progress(quiet=quiet or as_json) as view:
        intake = take_in(context.store, context.home, context.config, file, options, now, view.reading)
        _say_taken_in(view, intake)
        detail = _finish(context, intake.job, view)
        view.stop()
        return _show(context, detail, output, as_json)


@click.command()
@FILE
@job_options
@click.option("--wait", is_flag=True, help="Run it here, or follow the engine that does.")
@click.option("--dry-run", "dry", is_flag=True, help="Build and plan; queue and send nothing.")
@quiet_option
@json_option
def submit(file: Path, options: Options, wait: bool, dry: bool, quiet: bool, as_json: bool) -> int:
    """Queue a job or batch file.

    It runs when an engine runs (`orch up`, or any `orch run`), or here with --wait.
    """
    with opened() as context, progress(quiet=quiet or as_json) as view:
        if dry:
            intake = rehearse(context.store, context.home, context.config, file, options, now, view.reading)
            view.stop()
            _show_rehearsal(intake, as_json)
            return 0
        intake = take_in(context.store, context.home, context.config, file, options, now, view.reading)
        if wait:
            _say_taken_in(view, intake)
            detail = _finish(context, intake.job, view)
            view.stop()
            return _show(context, detail, None, as_json)
        view.stop()
        _say_queued(context, intake, as_json)
        return 0


def _say_taken_in(view: Progress, intake: Intake) -> None:
    view.say(f"orch: {intake.reason}")
    if intake.plan is not None:
        view.say(plan_table(intake.plan, intake.job.deadline_at))


def _say_queued(context: Context, intake: Intake, as_json: bool) -> None:
    from orchestrator.cli.plan import plan_json

    holder = running_engine(context.home)
    if as_json:
        plan = None if intake.plan is None else plan_json(intake.plan)
        print_json(
            {"job": intake.job.id, "how": intake.how, "reason": intake.reason, "engine": str(holder or ""),
             "plan": plan}
        )  # fmt: skip
        return
    click.echo(intake.job.id)
    say(f"orch: {intake.reason}")
    if intake.plan is not None:
        err().print(plan_table(intake.plan, intake.job.deadline_at))
    if intake.how is not How.UNCHANGED:
        say(
            f"orch: {holder} runs it"
            if holder
            else "orch: queued; no engine is running: `orch up`, or submit with --wait, runs it"
        )


def _show_rehearsal(intake: Intake, as_json: bool) -> None:
    from orchestrator.cli.plan import plan_json

    report, plan = intake.report, intake.plan
    assert report is not None
    assert plan is not None
    if as_json:
        print_json(
            {
                "documents": report.documents,
                "requests": report.requests,
                "unchanged": report.carried,
                "cached": report.cached,
                "twins": report.twins,
                "trimmed_tokens": report.trimmed_tokens,
                "why": dict(report.whys),
                "unread": report.unread,
                "removed": report.removed,
                "gone": report.gone,
                "input_bytes": report.input_bytes,
                "plan": plan_json(plan),
                "problems": [{"document": key, "code": code, "message": text} for key, code, text in report.problems],
            }
        )
        return
    click.echo(f"documents  {report.documents:,}")
    click.echo(f"requests   {report.requests:,}" + "".join(f", {told}" for told in (*report.saved, *report.changes)))
    click.echo(f"input      about {report.input_bytes // 4:,} tokens")
    for key, code, text in report.problems:
        click.echo(f"problem    {key}: {code}: {text}")
    out().print(plan_table(plan, intake.job.deadline_at))


def _finish(context: Context, job: Job, view: Progress) -> overview.JobDetail:
    """Until the job is over: be the engine, or follow the one that runs. Gives the job's end."""
    rate = overview.RateWindow()

    def draw(problem: str | None) -> None:
        detail = context.detail(job.id, problem)
        view.job(detail, rate.add(time.monotonic(), detail.line.done))

    def be_engine(over: Callable[[], bool]) -> None:
        with Engine(context.config, context.store) as engine:
            engine.run(over, lambda running: draw(running.problem), mine=job)

    def follow(holder: Holder, is_new: bool) -> None:
        if is_new:
            view.say(f"orch: {holder} has this home's engine and runs the job; following it")
        draw(None)

    _until_over(context, job, be_engine, follow)
    return context.detail(job.id)


def _until_over(
    context: Context,
    job: Job,
    be_engine: Callable[[Callable[[], bool]], None],
    follow: Callable[[Holder, bool], None],
) -> None:
    """Until a job is over: `be_engine(over)` while the home's lock is ours, `follow(holder, is_new)` while it is not.

    Raises KeyboardInterrupt where a signal asked for the end first; the job then stands where it is.
    """
    told: set[str] = set()

    def is_over() -> bool:
        current = context.store.jobs.get(job.id)
        return current.finished_at is not None or current.error is not None

    with _interruptible() as interrupted:
        while not is_over() and not interrupted():
            with engine_lock(context.home) as holder:
                if holder is None:
                    log_to(context.home)
                    be_engine(lambda: interrupted() or is_over())
                    continue
            follow(holder, str(holder) not in told)
            told.add(str(holder))
            time.sleep(FOLLOW_SECONDS)  # the other process's database is what is looked at; it cannot wake us
        if interrupted() and not is_over():
            raise KeyboardInterrupt


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """SIGINT and SIGTERM ask for a clean stop; a second one does not wait for it."""
    seen: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before: dict[int, Any] = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(context: Context, detail: overview.JobDetail, output: Path | None, as_json: bool) -> int:
    """The end of a job: where its rows are, what they cost, what failed. The exit code says whether all is well."""
    job = detail.line.job
    if output is not None and job.error is None:
        write_rows(context, job, output, None)
    if as_json:
        print_json(detail.to_json())
    else:
        out().print(job_detail(detail, events=0))
    return 0 if detail.is_well else 1


@click.command()
@click.argument("job_id", metavar="JOB")
@json_option
def cancel(job_id: str, as_json: bool) -> int:
    """End a job; rows that are done stay and can be fetched."""
    with opened() as context:
        job = context.store.jobs.get(job_id)
        if job.finished_at is not None or job.error is not None:
            raise UsageError(f"job {job.id} is over already")
        if context.store.jobs.request_cancel(job.id, "cancelled by the user", now()):
            context.store.jobs.note(job.id, "cancel", "asked for by the user", now())
        if job.home != context.home.identity():
            say("orch: the job is of another home, whose engine will end it")
            return 0
        _see_it_end(context, job)
        detail = context.detail(job.id)
        if as_json:
            print_json(detail.to_json())
        else:
            counts = detail.line.counts
            click.echo(f"{job.id}: {detail.line.state}; {counts.succeeded:,} of {counts.total:,} rows were done")
        return 0


def _see_it_end(context: Context, job: Job) -> None:
    """Until a cancelled job is over: end it here, sending no row, or wait for the engine that does."""
    told: set[str] = set()

    def tell(engine: Engine) -> None:
        if engine.problem is not None and engine.problem not in told:
            told.add(engine.problem)
            say(f"orch: {engine.problem}")

    def be_engine(over: Callable[[], bool]) -> None:
        with Engine(context.config, context.store, dispatch=False) as engine:
            engine.run(over, tell, only=job)

    def follow(holder: Holder, is_new: bool) -> None:
        if is_new:
            say(f"orch: {holder} has this home's engine and will end it")

    _until_over(context, job, be_engine, follow)


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--failed", is_flag=True, help="Only rows that failed, not those cancelled or expired.")
@click.option("--wait", is_flag=True, help="Run it here, or follow the engine that does.")
@quiet_option
@json_option
def retry(job_id: str, failed: bool, wait: bool, quiet: bool, as_json: bool) -> int:
    """Try rows of a finished job again: failed, cancelled and expired ones. Rows that succeeded are not sent."""
    with opened() as context, progress(quiet=quiet or as_json) as view:
        job = context.store.jobs.get(job_id)
        is_over = job.finished_at is not None or job.error is not None
        if not is_over and not wait:
            raise UsageError(f"job {job.id} is not finished", hint="`orch status` shows how far it is")
        if is_over and not _try_again(context, job, failed):
            view.say(f"orch: job {job.id} has no rows to try again")
            return 0
        if not wait:
            holder = running_engine(context.home)
            view.say(f"orch: {holder} runs it" if holder else "orch: queued; `orch up` or --wait runs it")
            return 0
        detail = _finish(context, context.store.jobs.get(job.id), view)
        view.stop()
        return _show(context, detail, None, as_json)


def _try_again(context: Context, job: Job, failed: bool) -> bool:
    """Make a job's rows pending again; False where none is. A job that failed while it was built is built again."""
    others = () if failed else (RequestState.CANCELLED, RequestState.EXPIRED)
    number = context.store.rows.retry(job.id, [RequestState.FAILED, *others])
    if number:
        context.store.jobs.note(job.id, "retry", f"{number:,} rows are tried again", now())
        say(f"orch: {number:,} rows of {job.id} are tried again")
    return bool(number) or job.built_at is None


class _Address(click.ParamType[tuple[str, int]]):
    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):([0-9]{1,5})", str(value))
        if found is None or int(found[3]) > 65535:
            self.fail(f"{value!r} is no address such as 127.0.0.1:8090 or [::1]:8090", param, ctx)
        return found[1] or found[2], int(found[3])


@click.command()
@click.option(
    "--webhooks", type=_Address(), metavar="HOST:PORT", help="Take providers' webhooks here, at /webhooks/BACKEND."
)
@quiet_option
def up(webhooks: tuple[str, int] | None, quiet: bool) -> int:
    """Be the engine until stopped (Ctrl-C or SIGTERM): run queued jobs, any that come, and what is scheduled.

    With --webhooks, batches that a provider says are over are looked at at once. Port 0 takes a free one.
    """
    with (
        opened() as context,
        _interruptible() as interrupted,
        engine_lock(context.home) as holder,
        ExitStack() as stack,
    ):
        if holder is not None:
            raise UsageError(f"{holder} is this home's engine already")
        log_to(context.home)
        engine = stack.enter_context(Engine(context.config, context.store))
        if webhooks is not None:
            secrets = hooks.secrets_of(context.config)
            url = stack.enter_context(hooks.listening(*webhooks, secrets, engine.pipeline.looks.push))
            for name in secrets:
                say(f"orch: webhooks of {name} are taken at {url}{name}")
        scheduler = Scheduler(context.store, context.home, context.config, now)
        daily = house.Daily(context.store, context.home, context.config.retention)
        said: dict[str, str] = {}

        def nights() -> None:
            for text in scheduler.tick():
                if not quiet:
                    say(f"orch: {text}")

        def tick(engine: Engine) -> None:
            nights()
            daily.tick(now())
            if (engine.problem or "") != said.get("", "") and not quiet:
                said[""] = engine.problem or ""
                say(f"orch: {engine.problem or 'all is well again'}")
            for line in context.lines():
                text = f"{line.job.id}: {line.state}"
                if said.setdefault(line.job.id, text if line.state.is_final else "") != text:
                    said[line.job.id] = text
                    if not quiet:
                        say(f"orch: {text}, {line.done:,}/{line.counts.total:,} rows, {money(line.cost)}")

        say(f"orch: engine of {context.home.root} is up; Ctrl-C stops it")
        nights()  # before any round: a job that a night had made when it was cut off is the night's, not another's
        engine.run(interrupted, tick)
    say("orch: stopped; nothing is lost")
    return 0
