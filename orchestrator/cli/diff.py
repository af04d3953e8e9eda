"""`orch diff`: the difference between two runs."""

from __future__ import annotations

import click

from orchestrator.cli.output import json_option, print_json, say
from orchestrator.library.context import opened


@click.command()
@click.argument("before", metavar="NIGHT1")
@click.argument("after", metavar="NIGHT2")
@click.option("--limit", type=click.IntRange(0), default=50, show_default=True, help="Rows of each kind to show.")
@json_option
def diff(before: str, after: str, limit: int, as_json: bool) -> int:
    """Show rows that only one of two nights has, and rows whose answers changed, by field.

    Name a night by its job id (or the id's first characters) or its name. A date also works if it has a single job.
    All rows are counted; only the first are shown.
    """
    from orchestrator.reports.night_reader import compare, job_of

    with opened() as context:
        store, home = context.store, context.home
        jobs = [job_of(store, home.identity(), name) for name in (before, after)]
        found = compare(store, home, jobs[0], jobs[1], limit)
        totals = {
            store.jobs.counts([job.id])[job.id].total - own.number
            for job, own in zip(jobs, (found.removed, found.added), strict=True)
        }
    if totals == {0}:
        say(f"orch: {jobs[0].id} and {jobs[1].id} have no document and task in common")
    if as_json:
        print_json(found.to_json())
    else:
        from orchestrator.cli.console import out
        from orchestrator.cli.console_reports import diff_lines
        from orchestrator.core.durations import day_words

        begun = [job.created_at.astimezone() for job in jobs]
        title = " → ".join(
            f"{job.id} ({day_words(at.date())} {at:%H:%M})" for job, at in zip(jobs, begun, strict=True)
        )
        out().print(diff_lines(found, title, out().width))
    return 0
