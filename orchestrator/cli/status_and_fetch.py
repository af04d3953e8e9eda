"""Read-only commands: status, fetch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from orchestrator.cli.failed_commands import CommandInterrupted
from orchestrator.cli.options import TableFlags, fail_on_option, table_options
from orchestrator.cli.output import JOB, JOB_HELP, json_option, print_json, quiet_option, say, show
from orchestrator.core.clock import now
from orchestrator.core.errors import UsageError
from orchestrator.core.fail_on import FailOn
from orchestrator.core.model import Job, JobState
from orchestrator.core.schedules import Schedule
from orchestrator.library.context import CommandSettings, Context, opened, require_current
from orchestrator.reports.status import JobLine
from orchestrator.settings.discovery import locate
from orchestrator.store.status_reader import CannotRead, StatusReader, status_reader

if TYPE_CHECKING:
    from orchestrator.pipeline.finish.outputs import Format
    from orchestrator.store import Store

Lines = Sequence[JobLine]
Schedules = Sequence[Schedule]
WATCH_SECONDS = 1.0
NEWEST = 20


@click.command(epilog=JOB_HELP)
@click.argument("job_name", metavar="[JOB]", required=False)
@click.option("--watch", is_flag=True, help="Keep updating until the job ends.")
@click.option("--all", "show_all", is_flag=True, help="Every job, not only the newest 20; every event of JOB.")
@json_option
def status(job_name: str | None, watch: bool, show_all: bool, as_json: bool) -> int:
    """Show all jobs, or one job in full: shards, counts, tokens, cost, ETA, reasons."""
    if job_name is None and (as_json or not watch):
        _list_jobs(show_all, as_json)
        return 0
    with opened() as context:
        if watch and not as_json:
            return _watch(context, job_name)
        assert job_name is not None, "the list is shown above"
        return _show_job(context, job_name, show_all, as_json)


def _list_jobs(show_all: bool, as_json: bool) -> None:
    limit = None if show_all else NEWEST + 1
    settings, lines, schedules, removed = _read_quickly(lambda settings, store: _listing(settings, store, limit))
    shown = lines if show_all else lines[:NEWEST]
    if as_json:
        print_json([line.to_json() for line in shown])
        return
    if lines:
        from orchestrator.cli.console import out
        from orchestrator.cli.console_jobs import job_lines

        out().print(job_lines(shown, out().width))
    else:
        say("orch: no jobs yet; start one with `orch run JOB.yaml`")
    if len(shown) < len(lines):
        show(f"only the newest {NEWEST} jobs are shown: `orch status --all` shows all")
    for told in removed:
        show(f"! {told}")
    _say_daemon(settings, schedules)


def _listing(
    settings: CommandSettings, store: Store | StatusReader, limit: int | None
) -> tuple[Lines, Schedules, Sequence[str]]:
    lines = settings.lines(store, limit)
    return lines, store.schedules.all(), settings.removed(lines, store.shards.of_job)


def _read_quickly(
    look: Callable[[CommandSettings, Store | StatusReader], tuple[Lines, Schedules, Sequence[str]]],
) -> tuple[CommandSettings, Lines, Schedules, Sequence[str]]:
    """Read with the fast status reader if possible, otherwise with the store."""
    settings = CommandSettings(locate())
    require_current(settings.home)
    with suppress(CannotRead), status_reader(settings.place.database_url, settings.place.database_timeout) as seen:
        return settings, *look(settings, seen)
    with opened() as context:
        return context, *look(context, context.store)


def _show_job(context: Context, name: str, show_all: bool, as_json: bool) -> int:
    from orchestrator.cli.console import out
    from orchestrator.cli.console_jobs import EVENTS, job_detail

    job = context.job(name, tell=False)
    detail = replace(context.detail(job.id), outlook=context.outlook(job))
    if as_json:
        print_json(detail.to_json())
    else:
        out().print(job_detail(detail, out().width, events=None if show_all else EVENTS))
    return 1 if detail.line.state is JobState.FAILED else 0


def _say_daemon(settings: CommandSettings, schedules: Schedules) -> None:
    from orchestrator.daemon.lock import running_daemon
    from orchestrator.daemon.running_settings import differences

    holder = running_daemon(settings.home)
    show(f"daemon: {holder} runs" if holder else "daemon: not running; start it with `orch up`")
    if (replica := _replica_line(settings)) is not None:
        show(replica)
    for line in differences(settings.home, holder, settings.path):
        show(f"settings: {line}")
    active = [one for one in schedules if one.paused_at is None]
    if not active:
        return
    from orchestrator.policy import schedule_times

    at = now()
    coming = [(due.at, one) for one in active if (due := schedule_times.next_due(one, at)) is not None]
    for due_at, one in sorted(coming, key=lambda each: each[0])[:1]:
        missing = "" if holder and holder.is_up else "; nights are only run by `orch up`, which is not running"
        when = schedule_times.ahead(one, due_at, at, schedule_times.other_zone(one, due_at))
        show(f"next night: {one.name}, {when}{missing}")


def _replica_line(settings: CommandSettings) -> str | None:
    if not settings.home.has_replica:
        return None
    from orchestrator.daemon.replica.status_file import read_status

    status = read_status(settings.home)
    if status is None:
        return None
    return f"replica: {status.url}, generation {status.generation}, {status.age:.0f} s old"


def _watch(context: Context, name: str | None) -> int:
    from orchestrator.cli.console import watching
    from orchestrator.cli.console_jobs import job_detail, job_lines

    job = None if name is None else context.job(name, tell=False)
    try:
        with watching() as draw:
            while True:
                lines = context.lines(context.store)
                detail = context.detail(job.id) if job else None
                if detail is not None:
                    draw(lambda width, detail=detail: job_detail(detail, width))  # type: ignore[misc]
                else:
                    draw(lambda width, lines=lines: job_lines(lines, width))  # type: ignore[misc]
                if all(line.state.is_final for line in ([detail.line] if detail else lines)):
                    return 0
                time.sleep(WATCH_SECONDS)  # another process makes the progress, and sends no signal
    except KeyboardInterrupt:
        raise CommandInterrupted("the watch has ended") from None


@click.command(epilog=JOB_HELP)
@JOB
@click.option("-o", "--output", metavar="FILE", help="File or address (s3://…) to write; default: stdout.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv", "parquet", "xlsx", "batch"]),
    help="jsonl: merged rows; csv, parquet, xlsx: a table of them; batch: OpenAI result lines. "
    "Default: by FILE's extension; batch for a job made from a batch file.",
)
@table_options
@click.option("--partial", is_flag=True, help="Write what a running job has done so far.")
@click.option("--force", "overwrite", is_flag=True, help="Overwrite a file that orch did not write.")
@fail_on_option
@quiet_option
@json_option
def fetch(
    job_name: str, output: str | None, form: Format | None, partial: bool, overwrite: bool, fail_on: FailOn | None,
    quiet: bool, as_json: bool, table: TableFlags,
) -> int:  # fmt: skip
    """Write a job's rows in input order.

    Failed rows are included, and affect the exit code only with --fail-on.

    With -o, --json reports the written file. Without -o, the rows go to stdout unchanged.
    """
    from orchestrator.cli.console_progress import progress
    from orchestrator.cli.rows import form_of, place_of, require_own, style_of, table_for, write_lines, write_rows
    from orchestrator.pipeline.finish import outputs
    from orchestrator.pipeline.finish.own_files import writing

    if form in ("parquet", "xlsx") and output is None:
        raise UsageError(f"--format {form}: cannot be written to stdout", hint="-o FILE names a file")
    with opened() as context, progress(quiet=quiet or as_json or output is None) as view:
        job, store = context.job(job_name, tell=not as_json), context.store
        _check_fetchable(context, job, partial)
        place = None if output is None else place_of(output, Path(job.source), form)
        form = form or form_of(job, output)
        outputs.check_format(form, f"-o {output}")
        shape = table_for(job, form, table)
        if place is not None:
            require_own(context, place, overwrite=overwrite)
        owned = nullcontext() if place is None else writing(store, context.home.identity(), job.id, place, now)
        with owned:
            if partial and job.finished_at is None:
                from orchestrator.library.partial_rows import rows_so_far

                with rows_so_far(context, job, style=style_of(form)) as lines:
                    written = write_lines(lines, job, place, form, shape)
            else:
                written = write_rows(context, job, place, form, shape, view.counted)
        view.stop()
        total = store.jobs.counts([job.id])[job.id].total if partial else written.lines
        left = max(0, total - written.lines)
        if as_json and output is not None:
            print_json({"job": job.id, "rows": written.rows, "left": left, "file": output, "format": written.form})
        elif not as_json:
            say(f"orch: {written.told}" + (f"; {_left_words(context, job, left, total)}" if left else ""))
        return 0 if fail_on is None or context.detail(job.id).is_well(fail_on) else 1


def _left_words(context: Context, job: Job, left: int, total: int) -> str:
    finished = max(0, left - context.detail(job.id).line.left)
    told = f"{left:,} of {total:,} are not here yet"
    return told + (
        f", {finished:,} of them finished in batches that give their answers at their end" if finished else ""
    )


def _check_fetchable(context: Context, job: Job, partial: bool) -> None:
    from orchestrator.store.gc import CLEARED

    if job.finished_at is None and not partial:
        older = (run for run in context.store.jobs.of_series(job.series) if run.finished_at and not run.is_limited)
        before = next((f"; {run.id} is the newest of its job file that is" for run in older), "")
        raise UsageError(f"job {job.id} is not finished{before}", hint="--partial writes what is done so far")
    if (cleared := job.options.get(CLEARED)) is not None:
        raise UsageError(
            f"the result files of job {job.id} were removed by [retention] at {cleared}",
            hint="its costs are still in the reports; rows delivered by `output:` are where it put them",
        )
