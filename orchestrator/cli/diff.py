"""`orch diff`: what is different between two runs."""

from __future__ import annotations

import click

from orchestrator.cli.context import json_option, opened, print_json


@click.command()
@click.argument("before", metavar="JOB1")
@click.argument("after", metavar="JOB2")
@click.option("--limit", type=click.IntRange(0), default=50, show_default=True, help="Rows of each kind to show.")
@json_option
def diff(before: str, after: str, limit: int, as_json: bool) -> int:
    """Show which rows JOB2 has that JOB1 has not, and the other way round, and whose answers changed, by field.

    A job's id may be shortened. All rows are counted, the first are shown.
    """
    from orchestrator.nightly import compare

    with opened() as context:
        jobs = context.store.jobs
        found = compare(context.store, context.home, jobs.get(before), jobs.get(after), limit)
    if as_json:
        print_json(found.to_json())
    else:
        from orchestrator.console import out
        from orchestrator.console_reports import diff_view

        out().print(diff_view(found))
    return 0
