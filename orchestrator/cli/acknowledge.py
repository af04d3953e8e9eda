"""`orch acknowledge`: marks known failures, so that they are not reported every night."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.output import json_option, print_json, say
from orchestrator.core.clock import day, now
from orchestrator.core.counts import number_of
from orchestrator.core.errors import UsageError
from orchestrator.core.events import EventKind
from orchestrator.library.context import Context, opened
from orchestrator.reports.text_tables import Column, table

if TYPE_CHECKING:
    from orchestrator.store.failures import Failure

_COLUMNS = (
    Column("document"),
    Column("task"),
    Column("code"),
    Column("status"),
    Column("since", rank=1),
    Column("job", rank=2),
    Column("note", prose=True),
)
_SHOWS = "`orch acknowledge --list` shows them"


@click.command()
@click.argument("documents", metavar="[DOCUMENT]...", nargs=-1)
@click.option("--job", "job_id", metavar="JOB", help="All failures of this job's file, or those of DOCUMENT in it.")
@click.option("--all", "everything", is_flag=True, help="All failures of every job file.")
@click.option("--note", metavar="TEXT", help="Why they are acceptable; shown by --list.")
@click.option("--take-back", is_flag=True, help="Withdraw the acknowledgement.")
@click.option("--list", "lists", is_flag=True, help="Show the failures: which are new, known and acknowledged.")
@json_option
def acknowledge(
    documents: tuple[str, ...], job_id: str | None, everything: bool, note: str | None, take_back: bool, lists: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Acknowledge failures of the newest run of a job file.

    Acknowledged failures are counted separately and do not affect the exit code. This holds as long as the document
    fails for the same reason. A document that was answered in between and fails again counts as a new failure.
    """
    _check(documents, job_id, everything, note, take_back, lists)
    with opened() as context:
        found = _failures(context, documents, job_id)
        if lists:
            _show(found, as_json)
            return 0
        verb = "taken back" if take_back else "acknowledged"
        if take_back:
            number = context.store.failures.take_back(found)
        else:
            number = context.store.failures.acknowledge(found, note, now())
        for of, rows in Counter(one.job for one in found).items():
            context.store.jobs.note(
                of, EventKind.ACKNOWLEDGED, f"{number_of(rows, 'failure')}, {verb} by the user", now()
            )
        if as_json:
            print_json([failure_json(one) for one in _failures(context, documents, job_id)])
        say(f"orch: {number:,} {'failure is' if number == 1 else 'failures are'} {verb}")
        return 0


def _check(
    documents: Sequence[str], job_id: str | None, everything: bool, note: str | None, take_back: bool, lists: bool
) -> None:
    names_some = bool(documents) or job_id is not None
    if lists and (take_back or note is not None):
        raise UsageError("--list: only shows failures", hint="leave out --take-back and --note")
    if take_back and note is not None:
        raise UsageError("--note: only applies when acknowledging, not to --take-back")
    if everything and names_some:
        raise UsageError("--all takes all failures of all job files", hint="leave out DOCUMENT and --job, or --all")
    if not lists and not everything and not names_some:
        raise UsageError("name a DOCUMENT, --job JOB, or --all", hint=_SHOWS)


def _failures(context: Context, documents: Sequence[str], job_id: str | None) -> list[Failure]:
    series = None if job_id is None else context.job(job_id).series
    found = list(context.store.failures.of_home(context.home.identity(), series))
    for name in documents:
        if not any(one.document == name for one in found):
            raise UsageError(f"no row of the document {name!r} has failed in the newest run", hint=_SHOWS)
    return [one for one in found if not documents or one.document in documents]


def failure_json(failure: Failure) -> dict[str, Any]:
    """Return the stable form of a failure, documented in docs/reference/json.md."""
    at = failure.acknowledged_at
    return {
        "document": failure.document,
        "task": failure.task,
        "custom_id": failure.custom_id,
        "code": failure.code,
        "reason": failure.message,
        "name": failure.name,
        "job": failure.job,
        "status": failure.status,
        "since": failure.since.isoformat(timespec="seconds"),
        "acknowledged_at": None if at is None else at.isoformat(timespec="seconds"),
        "note": failure.note,
    }


def _show(failures: Sequence[Failure], as_json: bool) -> None:
    if as_json:
        print_json([failure_json(one) for one in failures])
    elif not failures:
        say("orch: nothing has failed in the newest runs")
    else:
        from orchestrator.cli.console import out

        out().print(table(_COLUMNS, list(map(_cells, failures)), out().width))


def _cells(failure: Failure) -> tuple[str, ...]:
    named = (failure.document, failure.task or "—", failure.code, failure.status)
    return *named, day(failure.since), failure.job, failure.note or "—"
