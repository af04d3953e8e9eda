"""`orch quarantine`: lists and releases rows that failed permanently and are not retried."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.output import json_option, print_json, say
from orchestrator.core.clock import now
from orchestrator.core.counts import number_of
from orchestrator.core.errors import UsageError
from orchestrator.daemon import manual_actions
from orchestrator.library.context import Context, opened
from orchestrator.reports.listings import held_json
from orchestrator.reports.text_tables import Column, table

if TYPE_CHECKING:
    from orchestrator.store.quarantine import Held

_COLUMNS = (
    Column("document", prose=True),
    Column("task"),
    Column("code"),
    Column("since", rank=2),
    Column("job", rank=3),
    Column("runs", right=True, rank=1),
    Column("reason", prose=True),
)


@click.group()
def quarantine() -> None:
    """Manage rows that failed permanently. They are not retried until their document or question changes."""


@quarantine.command("list")
@click.option("--job", "job_id", metavar="JOB", help="Only of this job's file.")
@json_option
def list_held(job_id: str | None, as_json: bool) -> int:
    """Show the rows in quarantine, and why they are there.

    Each row shows its document and its task. It also shows the run since which it has failed, and in how many runs of
    its job file it has failed.
    """
    with opened() as context:
        held = _held(context, job_id)
        if as_json:
            print_json([held_json(one) for one in held])
        elif not held:
            say("orch: the quarantine is empty")
        else:
            from orchestrator.cli.console import out

            out().print(table(_COLUMNS, list(map(_cells, held)), out().width))
        return 0


@quarantine.command()
@click.argument("document", required=False)
@click.option("--job", "job_id", metavar="JOB", help="All of this job's file, or those of DOCUMENT in it.")
@click.option("--all", "everything", is_flag=True, help="All of every job file.")
@json_option
def release(document: str | None, job_id: str | None, everything: bool, as_json: bool) -> int:
    """Release rows, so that the next run retries them: rows of DOCUMENT, rows of a job's file, or all rows."""
    if everything == (document is not None or job_id is not None):
        raise UsageError("name a DOCUMENT, --job JOB, or --all", hint="`orch quarantine list` shows them")
    with opened() as context:
        held = [one for one in _held(context, job_id) if document in (None, one.document)]
        if document is not None and not held:
            raise UsageError(
                f"no row of the document {document!r} is in quarantine", hint="`orch quarantine list` shows them"
            )
        number = manual_actions.release(context.store, held, manual_actions.USER, now())
        if as_json:
            print_json([held_json(one) for one in held])
        say(f"orch: released: {number_of(number, 'row')}; the next run of the job file retries them")
        return 0


def _held(context: Context, job_id: str | None) -> list[Held]:
    from orchestrator.policy.row_errors import is_passing

    series = None if job_id is None else context.job(job_id, tell=False).series
    return list(context.store.quarantine.held(context.home.identity(), is_passing, series))


def _cells(held: Held) -> tuple[str, ...]:
    since = held.since_at.astimezone().strftime("%Y-%m-%d %H:%M")
    return held.document, held.task or "—", held.code, since, held.since, f"{held.runs:,}", held.reason
