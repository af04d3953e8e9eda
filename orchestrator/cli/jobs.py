"""Commands that make jobs and end them: submit, run, cancel, retry.

What runs a job (`running`, and the engine with it) is imported by who needs it: to queue a job takes none of it.
"""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator import overview
from orchestrator.cli.context import Context, json_option, opened, print_json, quiet_option, say
from orchestrator.cli.options import FILE, fail_on_option, job_options
from orchestrator.cli.plan import plan_json
from orchestrator.cli.rows import write_rows
from orchestrator.clock import now
from orchestrator.console import Progress, err, job_detail, out, plan_table, progress
from orchestrator.enginelock import running_engine
from orchestrator.errors import UsageError
from orchestrator.model import FailOn, Job, RequestState
from orchestrator.pipeline import merge
from orchestrator.pipeline.intake import How, Intake, Options, rehearse
from orchestrator.pipeline.intake import submit as take_in


@click.command()
@FILE
@job_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the rows here when done.")
@fail_on_option
@quiet_option
@json_option
def run(file: Path, options: Options, output: Path | None, fail_on: FailOn | None, quiet: bool, as_json: bool) -> int:
    """Submit a job or batch file, run it to its end, show the results.

    The same command again while the job is unfinished takes it up where it stopped.
    """
    from orchestrator.cli.running import finish

    if output is not None:
        merge.check_output(output, file)
    with opened() as context, progress(quiet=quiet or as_json) as view:
        intake = take_in(context.store, context.home, context.config, file, options, now, view.reading)
        _say_taken_in(view, intake)
        detail = finish(context, intake.job, view)
        view.stop()
        return _show(context, detail, output, fail_on, as_json)


@click.command()
@FILE
@job_options
@click.option("--wait", is_flag=True, help="Run it here, or follow the engine that does.")
@click.option("--dry-run", "dry", is_flag=True, help="Build and plan; queue and send nothing.")
@fail_on_option
@quiet_option
@json_option
def submit(
    file: Path, options: Options, wait: bool, dry: bool, fail_on: FailOn | None, quiet: bool, as_json: bool
) -> int:
    """Queue a job or batch file.

    It runs when an engine runs (`orch up`, or any `orch run`), or here with --wait.
    """
    _check_fail_on(fail_on, wait)
    with opened() as context, progress(quiet=quiet or as_json) as view:
        if dry:
            intake = rehearse(context.store, context.home, context.config, file, options, now, view.reading)
            view.stop()
            _show_rehearsal(intake, as_json)
            return 0
        intake = take_in(context.store, context.home, context.config, file, options, now, view.reading)
        if wait:
            from orchestrator.cli.running import finish

            _say_taken_in(view, intake)
            detail = finish(context, intake.job, view)
            view.stop()
            return _show(context, detail, None, fail_on, as_json)
        view.stop()
        _say_queued(context, intake, as_json)
        return 0


def _say_taken_in(view: Progress, intake: Intake) -> None:
    view.say(f"orch: {intake.reason}")
    if intake.plan is not None:
        view.say(plan_table(intake.plan, intake.job.deadline_at))


def _say_queued(context: Context, intake: Intake, as_json: bool) -> None:
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


def _check_fail_on(fail_on: FailOn | None, wait: bool) -> None:
    if fail_on is not None and not wait:
        raise UsageError("--fail-on: says what --wait ends with", hint="add --wait, or leave it out")


def _show(
    context: Context, detail: overview.JobDetail, output: Path | None, fail_on: FailOn | None, as_json: bool
) -> int:
    """The end of a job: where its rows are, what they cost, what failed. The exit code says whether all is well."""
    job = detail.line.job
    if output is not None and job.error is None:
        write_rows(context, job, output, None)
    if as_json:
        print_json(detail.to_json())
    else:
        out().print(job_detail(detail, events=0))
    return 0 if detail.is_well(fail_on or FailOn.UNACKNOWLEDGED) else 1


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
        from orchestrator.cli.running import see_it_end

        if job.home != context.home.identity():
            say("orch: the job is of another home, whose engine will end it")
            return 0
        see_it_end(context, job)
        detail = context.detail(job.id)
        if as_json:
            print_json(detail.to_json())
        else:
            counts = detail.line.counts
            click.echo(f"{job.id}: {detail.line.state}; {counts.succeeded:,} of {counts.total:,} rows were done")
        return 0


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--failed", is_flag=True, help="Only rows that failed, not those cancelled or expired.")
@click.option("--wait", is_flag=True, help="Run it here, or follow the engine that does.")
@fail_on_option
@quiet_option
@json_option
def retry(job_id: str, failed: bool, wait: bool, fail_on: FailOn | None, quiet: bool, as_json: bool) -> int:
    """Try rows of a finished job again: failed, cancelled and expired ones. Rows that succeeded are not sent."""
    _check_fail_on(fail_on, wait)
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
        from orchestrator.cli.running import finish

        detail = finish(context, context.store.jobs.get(job.id), view)
        view.stop()
        return _show(context, detail, None, fail_on, as_json)


def _try_again(context: Context, job: Job, failed: bool) -> bool:
    """Make a job's rows pending again; False where none is. A job that failed while it was built is built again."""
    others = () if failed else (RequestState.CANCELLED, RequestState.EXPIRED)
    number = context.store.rows.retry(job.id, [RequestState.FAILED, *others])
    if number:
        context.store.jobs.note(job.id, "retry", f"{number:,} rows are tried again", now())
        say(f"orch: {number:,} rows of {job.id} are tried again")
    return bool(number) or job.built_at is None
