"""Commands that only look: status, fetch, report."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from pathlib import Path

import click

from orchestrator.cli.context import Context, json_option, opened, print_json, say
from orchestrator.clock import now
from orchestrator.errors import UsageError
from orchestrator.model import JobState

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
            return 0
        detail = context.detail(job_id)
        if as_json:
            print_json(detail.to_json())
        else:
            from orchestrator.console import job_detail, out

            out().print(job_detail(detail))
        return 1 if detail.line.state is JobState.FAILED else 0


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
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; default: stdout.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["jsonl", "batch"]),
    help="jsonl: merged rows; batch: OpenAI result lines. Default: batch for a job made of a batch file.",
)
@click.option("--partial", is_flag=True, help="What is done so far, of a job that is still running.")
def fetch(job_id: str, output: Path | None, style: str | None, partial: bool) -> int:
    """Write the rows of a job, in input order."""
    from orchestrator.cli.rows import write_partial, write_rows
    from orchestrator.pipeline.merge import check_output

    with opened() as context:
        job = context.store.jobs.get(job_id)
        if job.finished_at is None and not partial:
            raise UsageError(f"job {job.id} is not finished", hint="--partial gives what is done so far")
        if output is not None:
            check_output(output, Path(job.source))
        if partial and job.finished_at is None:
            number = write_partial(context, job, output, style)
        else:
            number = write_rows(context, job, output, style)
        say(f"orch: {number:,} rows" + (f" in {output}" if output else ""))
        return 0


@click.group()
def report() -> None:
    """Reports."""


@report.command("cost")
@click.option(
    "--by",
    default="job",
    show_default=True,
    metavar="GROUP",
    help="job, day, model, backend, or tag:KEY.",
)
@click.option("--job", "job_id", metavar="JOB", help="One job only.")
@click.option("--since", metavar="WHEN", help="From then on: 7d, 12h, or a date.")
@click.option("--compare", metavar="PROVIDER:MODEL", help="The hosted model to compare with.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV output.")
@json_option
def report_cost(
    by: str, job_id: str | None, since: str | None, compare: str | None, as_csv: bool, as_json: bool
) -> int:
    """What was paid, and what the same tokens cost at a hosted provider."""
    from orchestrator.reports import cost_report

    if by not in ("job", "day", "model", "backend") and not (by.startswith("tag:") and by[4:]):
        raise UsageError(f"--by {by}: is none of job, day, model, backend, tag:KEY")
    with opened() as context:
        chosen = context.store.jobs.get(job_id).id if job_id else None
        totals = context.store.ledger.totals(by, _since(since), chosen)
        built = cost_report(by, totals, compare or context.config.report.compare, now())
        if as_json:
            print_json(built.to_json())
        elif as_csv:
            click.echo(built.to_csv(), nl=False)
        else:
            from orchestrator.console import cost_table, out

            out().print(cost_table(built))
        return 0


def _since(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        if text[:-1].isdecimal() and text[-1] in "mhd":
            unit = {"m": "minutes", "h": "hours", "d": "days"}[text[-1]]
            return now() - timedelta(**{unit: int(text[:-1])})
        return datetime.fromisoformat(text).astimezone()
    except OverflowError:
        raise UsageError(f"--since {text}: is further back than a calendar reaches") from None
    except ValueError:
        raise UsageError(f"--since {text}: write 7d, 12h or a date such as 2026-11-01") from None
