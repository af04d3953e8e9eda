"""`orch try`: what a few documents were asked and answered, and what the whole job would cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from orchestrator.core.model import Job
from orchestrator.pipeline.build.builder import BuildReport
from orchestrator.policy.planner import Plan
from orchestrator.reports.requests_and_answers import Exchange, exchanges
from orchestrator.reports.status import JobDetail
from orchestrator.settings.home import Home
from orchestrator.store import Store


@dataclass(frozen=True, slots=True)
class WholeJob:
    """What all of a job file would be: `plan` and `report` are None where `problem` says why they are not known."""

    plan: Plan | None = None
    report: BuildReport | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """A job file that was asked of a few documents; `whole` is None where it was not wanted."""

    file: Path
    detail: JobDetail
    rows: Sequence[Exchange]
    whole: WholeJob | None

    @property
    def is_well(self) -> bool:
        """Whether every row was answered, and every answer passed its check."""
        return self.detail.is_well()


def trial_rows(store: Store, home: Home, job: Job) -> list[Exchange]:
    """Every row of a job, by document in input order."""
    documents = dict.fromkeys(row.document for row in store.rows.finished(job.id))
    return [found for document in documents for found in exchanges(store, home, job, document, None)]


Pair = tuple[Exchange | None, Exchange | None]


def paired(first: Sequence[Exchange], second: Sequence[Exchange]) -> Iterator[Pair]:
    """Rows of two trials that belong together: the same document, in the order of its tasks and parts."""
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
    else:  # every task was given another name
        yield from zip_longest(left, right)


def _name(one: Exchange) -> tuple[str, str | None, int | None]:
    return one.row.task, one.row.stage, one.row.part
