"""`orch show`: shows one document's requests as sent, and their answers."""

from __future__ import annotations

import sys

import click

from orchestrator.cli.output import JOB, JOB_HELP, json_option, print_json, show
from orchestrator.core.errors import UsageError
from orchestrator.library.context import opened


@click.command("show", epilog=JOB_HELP)
@JOB
@click.argument("document", metavar="DOC")
@click.option("--task", metavar="ID", help="Only this task's.")
@click.option("--raw", is_flag=True, help="Only the lines, as they were sent and came back.")
@json_option
def show_row(job_name: str, document: str, task: str | None, raw: bool, as_json: bool) -> int:
    """Show a document's requests and their answers.

    DOC is the document's name in reports, or the end of that name. For a batch file, DOC is a custom_id. A document
    has one request for each task, and one for each part if it was split.
    """
    from orchestrator.reports.requests_and_answers import exchanges

    if raw and as_json:
        raise UsageError("give --raw or --json, not both")
    with opened() as context:
        job = context.job(job_name, tell=not as_json)
        found = exchanges(context.store, context.home, job, document, task)
    if as_json:
        print_json({"job": job.id, "document": found[0].row.document, "rows": [one.to_json() for one in found]})
    elif raw:
        for line in (line for one in found for line in (one.request, one.result) if line is not None):
            show(line.decode("utf-8", "backslashreplace") + "\n", whole=True)
        sys.stdout.flush()
    else:
        from orchestrator.cli.console import out
        from orchestrator.cli.console_rows import exchange_lines

        out().print(exchange_lines(found, out().width))
    return 0
