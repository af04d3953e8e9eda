"""`orch report`: reports on nights, costs, forecasts and backends."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.output import json_option, print_json, say, show
from orchestrator.core import permissions
from orchestrator.core.clock import now
from orchestrator.core.durations import seconds_of
from orchestrator.core.errors import UsageError
from orchestrator.core.model import JobId
from orchestrator.library.context import Context, opened

if TYPE_CHECKING:
    from orchestrator.core.model import Job
    from orchestrator.reports.held_hours import HeldHours
    from orchestrator.reports.night import NightReport


def since_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option("--since", metavar="WHEN", help="Start of the report: 7d, 12h, or a date.")(function)


@click.group()
def report() -> None:
    """Show reports on nights, costs, forecasts and backends."""


@report.command("cost")
@click.option(
    "--by",
    default="job",
    show_default=True,
    metavar="GROUP",
    help="job, day, task, model, backend, tag (every tag), or tag:KEY.",
)
@click.option("--job", "job_id", metavar="JOB", help="One job only.")
@since_option
@click.option(
    "--compare", metavar="PROVIDER:MODEL", help="The hosted model to compare with; stands in for missing list prices."
)
@click.option("--csv", "as_csv", is_flag=True, help="CSV output.")
@click.option("--excel", is_flag=True, help="CSV that spreadsheets read as UTF-8.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write it as an HTML page.")
@click.option("--force", "overwrite", is_flag=True, help="Overwrite a file that orch did not write.")
@json_option
def report_cost(
    by: str,
    job_id: str | None,
    since: str | None,
    compare: str | None,
    as_csv: bool,
    excel: bool,
    html: Path | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Show the cost paid, the cost forecast, and the cost of the same tokens at list prices."""
    from orchestrator.reports.cost_reader import GROUPS, cost_of

    if by not in GROUPS and not (by.startswith("tag:") and by[4:]):
        raise UsageError(f"--by {by}: must be one of {', '.join(GROUPS)}, tag:KEY")
    with opened() as context:
        job = context.job(job_id, tell=False).id if job_id else None
        built = cost_of(context.store, context.config, by, parsed_since(since), job, context.running_cost, compare)
        if html is not None:
            from orchestrator.reports.pages import cost_page

            written(context, html, cost_page(built, now(), since), overwrite=overwrite)
        if as_json:
            print_json({**built.to_json(), "held": [one.to_json() for one in _held(context, since, job_id)]})
        elif as_csv or excel:
            show(built.to_csv(excel=excel), whole=True)
        elif html is None:
            from orchestrator.cli.console import out
            from orchestrator.cli.console_reports import cost_lines

            out().print(cost_lines(built, out().width))
            for one in _held(context, since, job_id):
                show(one.words)
        return 0


@report.command("forecast")
@since_option
@json_option
def report_forecast(since: str | None, as_json: bool) -> int:
    """Compare forecasts with actual values, and show whether forecasts can be trusted."""
    from orchestrator.policy.forecast_trust import calibrate

    with opened() as context:
        lines = calibrate(context.store.forecasts.since(parsed_since(since)))
        if as_json:
            print_json([line.to_json() for line in lines])
        elif not lines:
            say("orch: no forecasts yet; every batch that is sent adds some")
        else:
            from orchestrator.cli.console import out
            from orchestrator.cli.console_reports import forecast_lines

            out().print(forecast_lines(lines, out().width))
        return 0


@report.command("backends")
@click.option(
    "--forget",
    metavar="BACKEND[:MODEL[:FIELD]]",
    help="First forget the fields that this backend has refused: all of them, those of MODEL, or FIELD.",
)
@json_option
def report_backends(forget: str | None, as_json: bool) -> int:
    """Show the state of each backend: waiting batches and rows, throughput, batch duration, refused fields."""
    from orchestrator.daemon.health import fetch_health
    from orchestrator.reports.backends import backends_report

    with opened() as context:
        if forget is not None:
            _forget(context, forget)
        found = backends_report(context.store, context.config, lambda name: fetch_health(context.home, name), now())
        if as_json:
            print_json(found)
        elif not found:
            say("orch: orch.toml has no backends")
        else:
            from orchestrator.cli.console import out
            from orchestrator.cli.console_reports import backend_lines

            out().print(backend_lines(found, out().width))
        return 0


def _forget(context: Context, what: str) -> None:
    """Forget the refused fields of a backend. A model's name may contain colons; a field's name cannot."""
    backend, _, rest = what.partition(":")
    known = context.store.refused_fields.all(now())
    model, _, field = rest.rpartition(":")
    if not any(one.model == model and one.field == field for one in known):
        model, field = rest, ""
    number = context.store.refused_fields.forget(backend, model or None, field or None)
    say(f"orch: {number:,} refused fields forgotten")


@report.command("night")
@click.argument("which", metavar="[DATE|RUN|JOB]", required=False)
@click.option("--md", "as_markdown", is_flag=True, help="As Markdown.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write it as an HTML page.")
@click.option("--force", "overwrite", is_flag=True, help="Overwrite a file that orch did not write.")
@json_option
def report_night(which: str | None, as_markdown: bool, html: Path | None, overwrite: bool, as_json: bool) -> int:
    """Show the results of a night: documents, answers, cost, time, and problems that need attention.

    A night lasts from noon to noon; DATE is the day on which it began. RUN is one run of a schedule with several runs
    a day, such as "2026-11-20 14:00". The default is the newest night with a job.
    """
    from orchestrator.reports.night_formats import markdown, page

    if as_markdown and as_json:
        raise UsageError("give --md or --json, not both")
    with opened() as context:
        built = _night(context, which)
        if html is not None:
            written(context, html, page(built), overwrite=overwrite)
        if as_json:
            print_json(built.to_json())
        elif as_markdown:
            show(markdown(built), whole=True)
        elif html is None:
            from orchestrator.cli.console import out
            from orchestrator.cli.console_reports import night_lines

            out().print(night_lines(built, out().width))
        return 0


def _night(context: Context, which: str | None) -> NightReport:
    from orchestrator.core.clock import night_of
    from orchestrator.reports.night_reader import jobs_of, jobs_of_run, night_before, night_report

    store = context.store
    if which is None:
        newest = store.jobs.newest(1)
        if not newest:
            raise UsageError("there are no jobs yet", hint="start one with `orch run JOB.yaml`")
        night = night_of(newest[0].created_at)
    else:
        try:
            night = date.fromisoformat(which)
        except ValueError:
            named = jobs_of_run(store, which) or [_job_of(context, which)]
            return night_report(store, context.home, None, context.lines_of(store, named), now())
    jobs = jobs_of(store, night)
    if not jobs:
        before = night_before(store, night)
        hint = "`orch status --all` lists the jobs"
        if before is not None:
            hint = f"what began on that day before noon is in the night before: `orch report night {before}`"
        raise UsageError(f"no job was submitted in the night of {night} (noon to noon)", hint=hint)
    return night_report(store, context.home, night, context.lines_of(store, jobs), now())


def _job_of(context: Context, which: str) -> Job:
    try:
        return context.job(which, tell=False)
    except UsageError as error:
        if any(letter.isdigit() for letter in which[:1]) or which in ("yesterday", "today", "tonight", "last"):
            hint = "a night is named by the date on which it began, such as 2026-11-21"
            raise UsageError(f"there is no night and no job {which!r}", hint=hint) from None
        raise error


def _held(context: Context, since: str | None, job_id: str | None) -> list[HeldHours]:
    """Return the GPU hours that orch's own engines held.

    For a single job, return an empty list, because hours cannot be split by job.
    """
    from orchestrator.reports.held_hours import held_hours

    return [] if job_id else held_hours(context.store.engine_holds.since(parsed_since(since)))


def written(context: Context, path: Path, page: str, *, overwrite: bool) -> None:
    """Write a report's HTML page and print its path. Raises UsageError."""
    from orchestrator.cli.rows import require_own
    from orchestrator.pipeline.finish.own_files import writing

    require_own(context, path, "--html", overwrite=overwrite)
    with writing(context.store, context.home.identity(), JobId(""), path, now):
        try:
            permissions.write_text(path, page)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    say(f"orch: the report is in {path}")


def parsed_since(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        if (seconds := seconds_of(text)) is not None:
            return now() - timedelta(seconds=seconds)
        return datetime.fromisoformat(text).astimezone()
    except OverflowError:
        raise UsageError(f"--since {text}: is too far back") from None
    except ValueError:
        raise UsageError(f"--since {text}: write 7d, 12h or a date such as 2026-11-01") from None
