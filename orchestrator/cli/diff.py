"""`orch diff`: what is different between two runs."""

from __future__ import annotations

import click

from orchestrator.cli.context import json_option, opened, print_json


@click.command()
@click.argument("before", metavar="NIGHT1")
@click.argument("after", metavar="NIGHT2")
@click.option("--limit", type=click.IntRange(0), default=50, show_default=True, help="Rows of each kind to show.")
@json_option
def diff(before: str, after: str, limit: int, as_json: bool) -> int:
    """Show which rows NIGHT2 has that NIGHT1 has not, and the other way round, and whose answers changed, by field.

    A night is a job's id, which may be shortened, or the date of a night that has one job. All rows are counted, the
    first are shown.
    """
    from orchestrator.nightly import compare, job_of

    with opened() as context:
        store = context.store
        found = compare(store, context.home, job_of(store, before), job_of(store, after), limit)
    if as_json:
        print_json(found.to_json())
    else:
        from orchestrator.console import out
        from orchestrator.console_reports import diff_view

        out().print(diff_view(found))
    return 0
