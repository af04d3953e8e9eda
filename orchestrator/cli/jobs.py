"""Commands that create and end jobs: submit, run, cancel, retry.

Queueing needs neither `running` nor the daemon, so both are imported only if a job runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from msgspec.structs import replace

from orchestrator.cli.console import out
from orchestrator.cli.console_jobs import job_detail
from orchestrator.cli.console_progress import LiveProgress, progress
from orchestrator.cli.edited_files import of_edited
from orchestrator.cli.options import FILE, FORCE, TableFlags, fail_on_option, job_options, table_options
from orchestrator.cli.output import JOB, JOB_HELP, json_option, print_json, quiet_option, say, show
from orchestrator.cli.plan import exit_code, notes
from orchestrator.cli.rows import form_of, may_overwrite, place_of, require_own, table_for, write_rows
from orchestrator.core.clock import now
from orchestrator.core.counts import number_of
from orchestrator.core.errors import BackendError, OutputError, OutputFault, UsageError
from orchestrator.core.events import EventKind
from orchestrator.core.fail_on import FailOn
from orchestrator.core.model import REPAY, Job, RequestState
from orchestrator.core.near_names import meant
from orchestrator.core.sanitize import one_line
from orchestrator.core.shards import Shard
from orchestrator.daemon import manual_actions
from orchestrator.daemon.lock import Holder, running_daemon
from orchestrator.daemon.running_settings import differences
from orchestrator.documents.ignored import told as told_ignored
from orchestrator.library.context import Context, opened, ready, say_exposure, say_schema_hints
from orchestrator.pipeline.backend_set import unstoppable
from orchestrator.pipeline.build.rehearsal import rehearse
from orchestrator.pipeline.build.submission import How, Options, Submission, draft
from orchestrator.pipeline.build.submission import submit as take_in
from orchestrator.pipeline.finish import outputs
from orchestrator.pipeline.finish.delivery import OVERWRITE, output_of
from orchestrator.pipeline.finish.own_files import writing
from orchestrator.reports import status
from orchestrator.reports.plans import plan_json, plan_lines
from orchestrator.settings.job_spec import format_of
from orchestrator.settings.stored_spec import tasks_of


@click.command()
@FILE
@job_options
@click.option("-o", "--output", metavar="FILE", help="Write the rows here when done: a file or address (s3://…).")
@table_options
@fail_on_option
@quiet_option
@json_option
def run(
    file: Path, options: Options, output: str | None, fail_on: FailOn | None, quiet: bool, as_json: bool,
    table: TableFlags,
) -> int:  # fmt: skip
    """Submit a job or batch file, run it to completion, and show the results.

    The same command resumes an unfinished job where it stopped. The home's other unfinished jobs continue as well.
    """
    place = None if output is None else place_of(output, file)
    outputs.check_format(format_of(output or "") or "jsonl", f"-o {output}")
    with ready() as context, progress(quiet=quiet or as_json) as view:
        say_exposure(context)
        if place is not None:
            require_own(context, place, overwrite=options.overwrite)
        # These checks come before the job is recorded, so that a refused file leaves no job behind.
        drafted = draft(file, context.config, context.home, options, now())
        form = form_of(drafted, output)
        shape = table_for(drafted, form, table)
        submission = _taken_in(context, file, options, view)
        _say_taken_in(view, submission)
        from orchestrator.cli.running import finish

        detail = finish(context, submission.job, view)
        written = None
        if place is not None and detail.line.job.error is None:
            is_merged = submission.job.finished_at is None
            with writing(context.store, context.home.identity(), detail.line.job.id, place, now):
                written = write_rows(context, detail.line.job, place, form, shape, view.counted, is_merged=is_merged)
        view.stop()
        if written is not None and not (quiet or as_json):
            say(f"orch: {written.told}")
        return _show(detail, fail_on, as_json)


@click.command()
@FILE
@job_options
@click.option("--wait", is_flag=True, help="Run it here, or follow the daemon that does.")
@click.option("--dry-run", "dry", is_flag=True, help="Build and plan only: queue and send nothing.")
@fail_on_option
@quiet_option
@json_option
def submit(
    file: Path, options: Options, wait: bool, dry: bool, fail_on: FailOn | None, quiet: bool, as_json: bool
) -> int:
    """Queue a job or batch file.

    The daemon (`orch up` or any `orch run`) runs it. With --wait, this command runs it.
    """
    _check_fail_on(fail_on, wait)
    with ready() as context, progress(quiet=quiet or as_json) as view:
        say_exposure(context)
        if dry:
            submission = rehearse(context.store, context.home, context.config, file, options, now, view.reading)
            view.stop()
            say_schema_hints(submission.job)
            _show_rehearsal(submission, as_json)
            return exit_code(submission)
        submission = _taken_in(context, file, options, view)
        if wait:
            from orchestrator.cli.running import finish

            _say_taken_in(view, submission)
            detail = finish(context, submission.job, view)
            view.stop()
            return _show(detail, fail_on, as_json)
        view.stop()
        _say_queued(context, view, submission, as_json)
        return 0


def _taken_in(context: Context, file: Path, options: Options, view: LiveProgress) -> Submission:
    """Create or find the job for a file.

    At a terminal, ask before overwriting an output that orch did not write. Also ask about an unfinished job from
    before an edit of the file.
    """
    choice = of_edited(context, file, options, view)
    if isinstance(choice, Submission):
        return choice
    options = choice
    try:
        return take_in(context.store, context.home, context.config, file, options, now, view.reading)
    except OutputError as error:
        view.stop()
        if error.code is not OutputFault.EXISTS or not may_overwrite(error.message):
            raise
    return take_in(
        context.store, context.home, context.config, file, replace(options, overwrite=True), now, view.reading
    )


def _say_taken_in(view: LiveProgress, submission: Submission) -> None:
    if submission.how is How.NEW:
        say_schema_hints(submission.job)
    view.say(f"orch: {submission.reason}")
    if (plan := submission.plan) is not None:
        view.show(lambda width: plan_lines(plan, submission.job.deadline_at, width))


def _daemon_json(holder: Holder | None) -> dict[str, str]:
    """Return the JSON form of the process that runs the job. `engine` is the key's old name, kept for one release."""
    return {"daemon": str(holder or ""), "engine": str(holder or "")}


def _say_queued(context: Context, view: LiveProgress, submission: Submission, as_json: bool) -> None:
    holder = running_daemon(context.home)
    settings = differences(context.home, holder, context.config.path)
    if submission.how is not How.UNCHANGED:
        _say_missing_keys(context, submission)
    if as_json:
        plan = None if submission.plan is None else plan_json(submission.plan)
        print_json(
            {"job": submission.job.id, "how": submission.how, "reason": submission.reason, **_daemon_json(holder),
             "settings": settings, "plan": plan}
        )  # fmt: skip
        return
    show(submission.job.id)
    _say_taken_in(view, submission)
    if submission.how is not How.UNCHANGED:
        say(
            f"orch: {holder} runs it"
            if holder
            else "orch: queued; no daemon is running: `orch up`, or submit with --wait, runs it"
        )
    for line in settings:
        say(f"orch: {line}")


def _say_missing_keys(context: Context, submission: Submission) -> None:
    """Warn of API keys that a daemon started here would lack. Another daemon may have them."""
    routes = None if submission.plan is None else {route.backend for route in submission.plan.routes}
    for name, told in context.missing_keys(submission.job).items():
        if routes is None or name in routes:
            say(f"orch: warning: {told}")


def _show_rehearsal(submission: Submission, as_json: bool) -> None:
    report, plan = submission.report, submission.plan
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
                "of_other_models": report.other_models_json(),
                "awaited": report.awaited,
                "trimmed_tokens": report.trimmed_tokens,
                "why": dict(report.whys),
                "unread": report.unread,
                "removed": report.removed,
                "gone": report.gone,
                "ignored": report.ignored.to_json(),
                "input_bytes": report.input_bytes,
                "plan": plan_json(plan),
                "how": submission.how,
                "is_refused": submission.is_refused,
                "problems": [{"document": key, "code": code, "message": text} for key, code, text in report.problems],
            }
        )
        return
    show(f"documents  {report.documents:,}")
    show(f"requests   {report.requests:,}" + "".join(f", {told}" for told in (*report.saved, *report.changes)))
    if report.of_other_models:
        show(f"models     {one_line(report.other_models)}")
    show(f"input      about {report.input_bytes // 4:,} tokens")
    if ignored := told_ignored(report.ignored.to_json()):
        show(f"files      {ignored}")
    for key, code, text in report.problems:
        show(f"problem    {one_line(f'{key}: {code}: {text}')}")
    out().print(plan_lines(plan, submission.job.deadline_at, out().width))
    for line in notes(submission):
        show(line)


def _check_fail_on(fail_on: FailOn | None, wait: bool) -> None:
    if fail_on is not None and not wait:
        raise UsageError("--fail-on: only applies with --wait", hint="add --wait, or leave it out")


def _show(detail: status.JobDetail, fail_on: FailOn | None, as_json: bool) -> int:
    if as_json:
        print_json(detail.to_json())
    else:
        out().print(job_detail(detail, out().width, events=0))
    return 0 if detail.is_well(fail_on or FailOn.UNACKNOWLEDGED) else 1


@click.command(epilog=JOB_HELP)
@JOB
@click.option("--abandon", is_flag=True, help="Give up batches that cannot be ended, as their backend is gone.")
@quiet_option
@json_option
def cancel(job_name: str, abandon: bool, quiet: bool, as_json: bool) -> int:
    """Cancel a job. Finished rows are kept and can be fetched."""
    with opened() as context, progress(quiet=quiet or as_json) as view:
        job = context.job(job_name, tell=not as_json)
        manual_actions.cancel(context.store, job, manual_actions.USER, now())
        if (settings := context.readable) is not None and (left := unstoppable(context.store, settings, job)):
            say(f"orch: {left}; the job waits for its answers")
        if job.home != context.home.identity():
            say("orch: the job belongs to another home, whose daemon will end it")
        else:
            _see_it_end(context, job, view, abandon=abandon)
        view.stop()
        detail = context.detail(job.id)
        if as_json:
            print_json(detail.to_json())
        else:
            line = detail.line
            show(f"{job.id}: {line.state}; {line.done:,} of {number_of(line.counts.total, 'row')} done")
        return 0


def _see_it_end(context: Context, job: Job, view: LiveProgress, *, abandon: bool) -> None:
    from orchestrator.cli.running import see_it_end

    if not abandon:
        return see_it_end(context, job, view)
    from orchestrator.pipeline.collect import abandoned

    known = {} if context.readable is None else context.readable.backends
    store, cost = context.store, abandoned.row_cost(context.store, job)

    def give_up(which: Callable[[Shard], bool]) -> int:
        return abandoned.abandon(store, context.home, store.jobs.get(job.id), which, cost, now())

    rows = give_up(lambda shard: shard.backend not in known)
    try:
        see_it_end(context, job, view)
    except BackendError:
        rows += give_up(lambda shard: True)
        see_it_end(context, job, view)
    if rows:
        booked = "booked as uncertain, so budgets count it" if cost else "not booked, so no budget counts it"
        may = f"their batches may continue and be billed, {abandoned.likely_cost(cost, rows)}"
        say(f"orch: {number_of(rows, 'row')} given up; {may}: {booked}")
    return None


@click.command(epilog=JOB_HELP)
@JOB
@click.option("--failed", is_flag=True, help="Only rows that failed, not cancelled or expired ones.")
@click.option("--task", metavar="ID", help="Only rows of this task.")
@click.option("--output", "only_output", is_flag=True, help="Retry no rows: only deliver the output again.")
@FORCE
@click.option("--repay", is_flag=True, help="Send again rows that were paid for and whose answers are lost.")
@click.option("--wait", is_flag=True, help="Run it here, or follow the daemon that does.")
@fail_on_option
@quiet_option
@json_option
def retry(
    job_name: str, failed: bool, task: str | None, only_output: bool, overwrite: bool, repay: bool, wait: bool,
    fail_on: FailOn | None, quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Retry the failed, cancelled and expired rows of a finished job. Rows that succeeded are not sent again.

    For an unfinished job, send rows that are waiting because a backend refused all of them for the same reason. With
    --repay, send rows whose answers were lost when a backup was restored. If the job's output could not be delivered,
    deliver it.
    """
    _check_fail_on(fail_on, wait)
    with opened() as context, progress(quiet=quiet or as_json) as view:
        job = context.job(job_name, tell=not as_json)
        is_over = job.finished_at is not None or job.error is not None
        held = 0 if is_over else manual_actions.send_held(context.store, job, task)
        if repay:
            context.store.jobs.allow(job.id, **{REPAY: now().isoformat()})
        if not is_over and not wait and not held and not repay:
            raise UsageError(f"job {job.id} is not finished", hint="`orch status` shows its progress")
        if overwrite:
            context.store.jobs.allow(job.id, **{OVERWRITE: True})
        if not is_over:
            number = held or None
        elif only_output:
            number = _deliver_again(context, view, job)
        else:
            number = _try_again(context, view, job, failed, task)
        if wait and number != 0:
            from orchestrator.cli.running import finish

            say_exposure(context)
            detail = finish(context, context.store.jobs.get(job.id), view)
            view.stop()
            return _show(detail, fail_on, as_json)
        holder = running_daemon(context.home)
        if as_json:
            print_json({"job": job.id, "rows": number, **_daemon_json(holder)})
        elif number != 0:
            view.say(f"orch: {holder} runs it" if holder else "orch: queued; `orch up` or --wait runs it")
        return 0


def _try_again(context: Context, view: LiveProgress, job: Job, failed: bool, task: str | None) -> int | None:
    """Make a job's rows pending again and return their number. Return None if the build failed and restarts."""
    _check_task(job, task)
    states = [RequestState.FAILED] if failed else manual_actions.RETRIED
    number = manual_actions.retry(context.store, job, states, task, manual_actions.USER, now())
    of_task = "" if task is None else f" to the task {task}"
    if number:
        view.say(f"orch: {number_of(number, 'row')} of {job.id}{of_task} will be retried")
    elif job.error is not None:
        return None
    else:
        view.say(f"orch: job {job.id} has no rows{of_task} to retry")
    return number


def _deliver_again(context: Context, view: LiveProgress, job: Job) -> int | None:
    """Reopen a finished job to deliver its output, and return None. Return 0 if it has nothing to deliver."""
    if job.finished_at is None or output_of(job) is None:
        view.say(f"orch: job {job.id} has nothing to deliver")
        return 0
    context.store.jobs.reopen(job.id)
    context.store.jobs.note(job.id, EventKind.RETRY, "its output is delivered again", now())
    return None


def _check_task(job: Job, task: str | None) -> None:
    known = [one.id for one in tasks_of(job)]
    if task is not None and task not in known:
        listed = f"known: {', '.join(known)}" if known else "a ready batch file has no tasks"
        hint = meant(task, known) or listed
        raise UsageError(f"--task {task}: job {job.id} has no such task", hint=hint)
