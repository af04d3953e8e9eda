"""Commands that only look: status, fetch."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import Context, json_option, opened, print_json, say
from orchestrator.cli.options import fail_on_option
from orchestrator.clock import now
from orchestrator.errors import UsageError
from orchestrator.model import FailOn, JobState

if TYPE_CHECKING:
    from orchestrator.exports import Format

WATCH_SECONDS = 1.0


@click.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option("--watch", is_flag=True, help="Keep showing it until it is over.")
@click.option("--all", "show_all", is_flag=True, help="Every job, not only the newest 20.")
@json_option
def status(job_id: str | None, watch: bool, show_all: bool, as_json: bool) -> int:
    """Show all jobs, or one in full: shards, counts, tokens, cost, ETA, reasons."""
    with opened() as context:
        if watch and not as_json:
            return _watch(context, job_id)
        if job_id is None:
            lines = context.lines(None if show_all else 20)
            if as_json:
                print_json([line.to_json() for line in lines])
            elif not lines:
                say("orch: no jobs yet; `orch run JOB.yaml` makes one")
            else:
                from orchestrator.console import job_table, out

                out().print(job_table(lines))
            if not as_json:
                _say_engine(context)
            return 0
        detail = context.detail(job_id)
        detail = replace(detail, outlook=context.outlook(detail.line.job))
        if as_json:
            print_json(detail.to_json())
        else:
            from orchestrator.console import job_detail, out

            out().print(job_detail(detail))
        return 1 if detail.line.state is JobState.FAILED else 0


def _say_engine(context: Context) -> None:
    """Whether an engine runs, and when the next night is."""
    from orchestrator.enginelock import running_engine

    holder = running_engine(context.home)
    click.echo(f"engine: {holder} runs" if holder else "engine: none runs; `orch up` is one")
    active = [one for one in context.store.schedules.all() if one.paused_at is None]
    if not active:
        return
    from orchestrator import nights

    at = now()
    coming = [(due.at, one) for one in active if (due := nights.next_due(one, at)) is not None]
    for due_at, one in sorted(coming, key=lambda each: each[0])[:1]:
        missing = "" if holder and holder.is_up else "; `orch up` alone runs nights, and it is not running"
        click.echo(f"next night: {one.name}, {nights.ahead(one, due_at, at)}{missing}")


def _watch(context: Context, job_id: str | None) -> int:
    from orchestrator.console import job_detail, job_table, watching

    with watching() as show:
        while True:
            lines = context.lines()
            detail = context.detail(job_id) if job_id else None
            show(job_detail(detail) if detail else job_table(lines))
            if all(line.state.is_final for line in ([detail.line] if detail else lines)):
                return 0
            time.sleep(WATCH_SECONDS)  # a view is refreshed by the clock


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("-o", "--output", metavar="FILE", help="File or address (s3://…) to write; default: stdout.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv", "parquet", "batch"]),
    help="jsonl: merged rows; csv, parquet: a table of them; batch: OpenAI result lines. "
    "Default: what FILE ends in; batch for a job made of a batch file.",
)
@click.option("--partial", is_flag=True, help="What is done so far, of a job that is still running.")
@fail_on_option
def fetch(job_id: str, output: str | None, form: Format | None, partial: bool, fail_on: FailOn | None) -> int:
    """Write the rows of a job, in input order.

    Rows that failed are among them, and leave the exit code at 0 unless --fail-on is given.
    """
    from orchestrator.cli.rows import place_of, write_rows
    from orchestrator.store.house import CLEARED

    if form == "parquet" and output is None:
        raise UsageError("--format parquet: is no text for stdout", hint="-o FILE names a file")
    with opened() as context:
        job = context.store.jobs.get(job_id)
        if job.finished_at is None and not partial:
            raise UsageError(f"job {job.id} is not finished", hint="--partial gives what is done so far")
        if (cleared := job.options.get(CLEARED)) is not None:
            raise UsageError(
                f"the result files of job {job.id} were removed by [retention] at {cleared}",
                hint="its costs are in the reports; a job whose rows were put somewhere by `output:` has them there",
            )
        place = None if output is None else place_of(output, job)
        if partial and job.finished_at is None:
            from orchestrator.cli.partial import write_partial

            said = write_partial(context, job, place, form)
        else:
            said = write_rows(context, job, place, form)
        say(f"orch: {said}")
        return 0 if fail_on is None or context.detail(job.id).is_well(fail_on) else 1
