"""Data of `orch try`: questions and answers of a few documents, and the cost of the whole job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from msgspec import Struct

from orchestrator.core.model import Job
from orchestrator.pipeline.build.build_report import BuildReport
from orchestrator.policy.planner import Plan
from orchestrator.reports.requests_and_answers import Exchange, exchanges
from orchestrator.reports.status import JobDetail
from orchestrator.settings.home import Home
from orchestrator.store import Store


class WholeJob(Struct, frozen=True):
    """Preview of the whole job: its plan and build report, or the `problem` that prevents them."""

    plan: Plan | None = None
    report: BuildReport | None = None
    problem: str | None = None


class Trial(Struct, frozen=True):
    """A job file tried on a few documents. `whole` is set only on request."""

    file: Path
    detail: JobDetail
    rows: Sequence[Exchange]
    whole: WholeJob | None

    @property
    def is_well(self) -> bool:
        """True if every row was answered and every answer passed its check."""
        return self.detail.is_well()


def trial_rows(store: Store, home: Home, job: Job) -> list[Exchange]:
    """Return every row of a job, by document in input order."""
    documents = dict.fromkeys(row.document for row in store.rows.finished(job.id))
    return [found for document in documents for found in exchanges(store, home, job, document, None)]


Pair = tuple[Exchange | None, Exchange | None]


def paired(first: Sequence[Exchange], second: Sequence[Exchange]) -> Iterator[Pair]:
    """Pair the rows of two trials by document, then by task and part."""
    groups: dict[str, tuple[list[Exchange], list[Exchange]]] = {}
    for side, rows in enumerate((first, second)):
        for one in rows:
            groups.setdefault(one.row.document, ([], []))[side].append(one)
    for left, right in groups.values():
        yield from _matched(left, right)


def _matched(left: Sequence[Exchange], right: Sequence[Exchange]) -> Iterator[Pair]:
    by_name = {_name(one): one for one in right}
    if any(_name(one) in by_name for one in left):
        yield from ((one, by_name.pop(_name(one), None)) for one in left)
        yield from ((None, one) for one in by_name.values())
    else:  # all tasks were renamed
        yield from zip_longest(left, right)


def _name(one: Exchange) -> tuple[str, str | None, int | None]:
    return one.row.task, one.row.stage, one.row.part
