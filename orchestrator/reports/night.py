"""Night report: outcome, cost and time of a night's jobs, and problems that need attention. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import astuple

from orchestrator.core import schedules
from orchestrator.core.clock import day, iso
from orchestrator.core.counts import Counts, number_of
from orchestrator.core.durations import duration
from orchestrator.core.events import Event, EventKind
from orchestrator.core.model import BookedUsage, Forecast, Job, JobState
from orchestrator.core.sanitize import shortened
from orchestrator.core.shards import Shard
from orchestrator.documents.types import DocumentProblem
from orchestrator.policy.advice import advice_for
from orchestrator.policy.delay_causes import main_delay, standstill
from orchestrator.policy.diff import Difference, DocumentRun
from orchestrator.policy.grounding import QuoteStatus
from orchestrator.policy.night_figures import (
    BackendSpending,
    DeadlineResult,
    SlowestBatch,
    deadline_result,
    foreseen,
    routes,
    turnarounds,
)
from orchestrator.policy.row_errors import SWAPPED, cancelled

MOST = 20
"""Maximum documents, rows and reroutes to list by name. The counts include all of them."""
R = TypeVar("R")


class DocumentFate(StrEnum):
    NEW = "new"  # not in any earlier run
    CHANGED = "changed"  # the document or its question changed
    UNCHANGED = "unchanged"  # same as before; its answers carry over
    REMOVED = "removed"  # only in the run before
    FAILED = "failed"  # an answer is missing
    UNREADABLE = "unreadable"  # no request could be made from it
    KNOWN = "known"  # fails as in an earlier run, or is acknowledged
    OPEN = "open"  # still waiting for an answer


def fate_of(run: DocumentRun) -> tuple[DocumentFate, str]:
    """Return a document's fate and the reason for it."""
    if run.failed:
        why = f"{run.code}: {run.message}" if run.message else str(run.code)
        if run.old == run.failed:
            return DocumentFate.KNOWN, why if run.since is None else f"since {day(run.since)}: {why}"
        return (DocumentFate.UNREADABLE if run.unreadable == run.rows else DocumentFate.FAILED), why
    if run.open and run.rows == 1:
        return DocumentFate.OPEN, "no answer yet"
    if run.open:
        return DocumentFate.OPEN, f"without an answer yet: {run.open:,} of {number_of(run.rows, 'row')}"
    if not run.known:
        return DocumentFate.NEW, ""
    if run.changed or run.known < run.rows:
        return DocumentFate.CHANGED, _why_changed(run)
    return DocumentFate.UNCHANGED, ""


def _why_changed(run: DocumentRun) -> str:
    reasons = (
        (run.other_model, "model changed"),
        (run.asked, "prompt, schema or settings changed"),
        (run.changed > max(run.asked, run.other_model), "document changed"),
        (run.known < run.rows, "task added"),
    )
    return ", ".join(reason for holds, reason in reasons if holds)


class NamedDocument(Struct, frozen=True):
    name: str
    reason: str


class Fates(Struct):
    """Documents per fate, with the first few names of each fate except `unchanged`."""

    counts: dict[DocumentFate, int] = field(default_factory=dict)
    first: dict[DocumentFate, list[NamedDocument]] = field(default_factory=dict)

    def add(self, fate: DocumentFate, name: str, reason: str, most: int) -> None:
        self.counts[fate] = self.counts.get(fate, 0) + 1
        named = self.first.setdefault(fate, [])
        if fate is not DocumentFate.UNCHANGED and len(named) < most:
            named.append(NamedDocument(name, reason))

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        return {
            fate.value: {
                "documents": self.counts.get(fate, 0),
                "first": [{"name": one.name, "reason": one.reason} for one in self.first.get(fate, ())],
            }
            for fate in DocumentFate
        }


def fates(runs: Iterable[DocumentRun], removed: Iterable[str], most: int = MOST) -> Fates:
    """Group a run's documents by fate. `removed` are documents that are in the previous run but not in this run."""
    found = Fates()
    for run in runs:
        fate, reason = fate_of(run)
        found.add(fate, run.name, reason, most)
    for name in removed:
        found.add(DocumentFate.REMOVED, name, "", most)
    return found


class NeedKind(StrEnum):
    JOB = "job"  # the whole job could not continue
    OUTPUT = "output"  # the job's rows could not be delivered
    CANCELLED = "cancelled"  # the job was ended before it was done
    DEADLINE = "deadline"  # missed, or already passed
    WITHHELD = "withheld"  # the output was held back because of known answers
    SWAPPED = "swapped"  # a batch had answers under the wrong keys
    ROWS = "rows"  # some rows failed for the same reason
    WAITS = "waits"  # a batch is held
    STANDSTILL = "standstill"  # the job cannot continue for now
    UNREAD = "unread"  # answers could not be compared


class Need(Struct, frozen=True):
    """A problem that a person must act on, with advice if available.

    `code` is the error code of the rows or the output, or the cause of a missed deadline (`delay_causes.Cause`).
    """

    kind: NeedKind
    text: str
    advice: str | None = None
    code: str | None = None

    @property
    def is_urgent(self) -> bool:
        """True if the need is about a whole job: its end, its output or its deadline."""
        return self.kind in (NeedKind.JOB, NeedKind.OUTPUT, NeedKind.DEADLINE, NeedKind.WITHHELD)

    def __str__(self) -> str:
        return self.text if self.advice is None else f"{self.text} → {self.advice}"

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        return {"need": str(self), "kind": self.kind, "code": self.code, "text": self.text, "advice": self.advice}


class NightFacts(Struct, frozen=True):
    """Input of a job's part of the report. `before` is the id of the previous run, if any.

    `reasons` are the causes of failed rows: code, message, number of rows. `known` are causes that an earlier run had
    or that are acknowledged, each with its start time. `finished_in_batches` and `failed_in_batches` count pending
    rows of running batches. `running` is the cost of these batches so far, which is not booked yet. `held` are the
    reasons why batches wait. `withheld` is the reason why the output was not delivered, or None if it was delivered.
    `quotes` counts the quotes of answers by status, or is None for a job without quotes. `run` is the run that
    created the job, if its schedule has several runs a day.
    """

    job: Job
    state: JobState
    counts: Counts
    documents: Fates
    finished_in_batches: int = 0
    failed_in_batches: int = 0
    running: Decimal = Decimal(0)
    before: str | None = None
    answers: Difference | None = None
    lines: Sequence[BookedUsage] = ()
    forecasts: Sequence[Forecast] = ()
    events: Sequence[Event] = ()
    reasons: Sequence[tuple[str, str, int]] = ()
    known: Sequence[tuple[str, str, int, datetime | None]] = ()
    held: Sequence[str] = ()
    shards: Sequence[Shard] = ()
    withheld: str | None = None
    quotes: Mapping[QuoteStatus, int] | None = None
    run: schedules.Night | None = None

    @property
    def title(self) -> str:
        """Night that the job belongs to, with the time if its schedule has several runs a day."""
        return schedules.night_title(self.job, self.run)


class JobReport(Struct, frozen=True):
    """A job's part of the report. `needs` lists the problems that a person must act on, most urgent first."""

    facts: NightFacts
    routes: Sequence[BackendSpending]
    foreseen: tuple[Decimal, Decimal] | None
    turnarounds: Sequence[SlowestBatch]
    due: DeadlineResult | None
    reroutes: Sequence[Event]
    rerouted: int
    needs: Sequence[Need]

    @property
    def cost(self) -> Decimal:
        """Amount paid, in dollars."""
        return sum((route.cost for route in self.routes), Decimal(0))

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        facts, job = self.facts, self.facts.job
        return {
            "job": job.id,
            "name": job.name,
            "state": facts.state,
            "before": facts.before,
            "created_at": iso(job.created_at),
            "finished_at": iso(job.finished_at),
            "output": job.output_path,
            "error": job.error,
            "error_code": job.error_code,
            "requests": {
                "total": facts.counts.total,
                "pending": facts.counts.pending,
                "succeeded": facts.counts.succeeded,
                "failed": facts.counts.failed,
                "cancelled": facts.counts.cancelled,
                "expired": facts.counts.expired,
                "finished_in_batches": facts.finished_in_batches,
                "failed_so_far": facts.counts.failed + facts.failed_in_batches,
                "cut": facts.counts.cut,
                "repaired": facts.counts.repaired,
                "odd_ends": facts.counts.odd_ends,
                "unverifiable": facts.counts.unverifiable,
            },
            "quotes": facts.quotes and {status.value: facts.quotes.get(status, 0) for status in QuoteStatus},
            "documents": facts.documents.to_json(),
            "ignored": job.ignored,
            "answers": facts.answers and facts.answers.to_json(),
            "cost_usd": f"{self.cost:f}",
            "running_usd": f"{facts.running:f}",
            "foreseen": self.foreseen
            and {"cost_p50_usd": f"{self.foreseen[0]:f}", "cost_p95_usd": f"{self.foreseen[1]:f}"},
            "routes": [
                {
                    "backend": route.backend,
                    "rows": route.rows,
                    "cost_usd": f"{route.cost:f}",
                    "wasted_usd": f"{route.wasted:f}",
                    "cost_estimated": route.estimated,
                    "unpriced_rows": route.unpriced,
                }
                for route in self.routes
            ],
            "turnaround": [
                {
                    "backend": one.backend,
                    "batches": one.batches,
                    "later_than_p95": one.late,
                    "slowest_seconds": round(one.slowest, 1),
                    "p50_seconds": round(one.p50, 1),
                    "p95_seconds": round(one.p95, 1),
                }
                for one in self.turnarounds
            ],
            "deadline": self.due
            and {"at": iso(self.due.at), "met": self.due.met, "spare_seconds": round(self.due.spare, 1)},
            "reroutes": {
                "number": self.rerouted,
                "first": [{"at": iso(one.at), "reason": one.reason} for one in self.reroutes],
            },
            "known": [
                {"code": code, "message": message, "rows": rows, "since": iso(since)}
                for code, message, rows, since in facts.known
            ],
            "needs": [str(need) for need in self.needs],
        }


class NightReport(Struct, frozen=True):
    """The jobs of one night, oldest first. `night` is the day on which it began, None for a report of single jobs."""

    night: date | None
    made_at: datetime
    jobs: Sequence[JobReport]

    @property
    def last_runs(self) -> list[JobReport]:
        """Jobs that no later run of the night replaced."""
        return last_runs(self.jobs, lambda job: job.facts.job)

    @property
    def counted(self) -> list[JobReport]:
        """Jobs whose rows are included in the report's sums. The other jobs repeat some of the same rows."""
        return counted_runs(self.jobs, lambda job: job.facts.job)

    @property
    def needs(self) -> list[tuple[str, Need]]:
        """Needs of the last runs, each with its job's id. Jobs that failed as a whole come first."""
        worst_first = sorted(self.last_runs, key=lambda job: job.facts.job.error is None)
        return [(job.facts.job.id, need) for job in worst_first for need in job.needs]

    @property
    def counts(self) -> Counts:
        """Row counts of the counted runs. Other runs repeat the same rows and are left out."""
        each = [astuple(job.facts.counts) for job in self.counted]
        return Counts(*map(sum, zip(*each, strict=True))) if each else Counts()

    @property
    def finished_in_batches(self) -> tuple[int, int]:
        """Pending rows of the counted runs that running batches have finished, and the number of these that
        failed.
        """
        last = [job.facts for job in self.counted]
        return sum(facts.finished_in_batches for facts in last), sum(facts.failed_in_batches for facts in last)

    @property
    def cost(self) -> Decimal:
        """Amount paid for collected batches, in dollars."""
        return sum((job.cost for job in self.jobs), Decimal(0))

    @property
    def running(self) -> Decimal:
        """Cost of running batches so far, in dollars."""
        return sum((job.facts.running for job in self.jobs), Decimal(0))

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        counted = self.counted
        return {
            "night": None if self.night is None else self.night.isoformat(),
            "made_at": iso(self.made_at),
            "cost_usd": f"{self.cost:f}",
            "running_usd": f"{self.running:f}",
            "asked": self.counts.total,
            "answered": self.counts.succeeded,
            "finished_in_batches": self.finished_in_batches[0],
            "needs": [{"job": job, **need.to_json()} for job, need in self.needs],
            "jobs": [{**job.to_json(), "counted": job in counted} for job in self.jobs],
        }


def last_runs(runs: Sequence[R], job_of: Callable[[R], Job]) -> list[R]:
    """Return the runs that no later run replaced, in the given order.

    A run of a whole job file replaces all earlier runs of the file. A limited run replaces earlier runs with the same
    limits. A run without rows replaces no other run.
    """
    kept: dict[tuple[str, str | None], str] = {}
    without_rows = {job.id for job in map(job_of, runs) if job.built_at is None}
    for job in sorted(map(job_of, runs), key=lambda job: (job.created_at, job.id), reverse=True):
        if job.id not in without_rows and (job.series, None) not in kept:
            kept.setdefault((job.series, job.limited_to), job.id)
    last = {*kept.values(), *without_rows}
    return [run for run in runs if job_of(run).id in last]


def counted_runs(runs: Sequence[R], job_of: Callable[[R], Job]) -> list[R]:
    """Return the last runs whose rows are not part of another run.

    A limited run counts only if there is no run of the whole file.
    """
    last = last_runs(runs, job_of)
    whole = {job_of(run).series for run in last if not job_of(run).is_limited}
    return [run for run in last if not job_of(run).is_limited or job_of(run).series not in whole]


def job_report(facts: NightFacts, now: datetime) -> JobReport:
    reroutes = [event for event in facts.events if event.kind == EventKind.RESCUED]
    due = deadline_result(facts.job, facts.state, facts.counts, now)
    return JobReport(
        facts=facts,
        routes=routes(facts.lines),
        foreseen=foreseen(facts.forecasts),
        turnarounds=turnarounds(facts.forecasts),
        due=due,
        reroutes=reroutes[:MOST],
        rerouted=len(reroutes),
        needs=_needs(facts, due, now),
    )


def _needs(facts: NightFacts, due: DeadlineResult | None, now: datetime) -> list[Need]:
    job, needs = facts.job, []
    if job.is_undelivered:
        told = f"the output was not delivered, {job.error_code}: {_first_line(job.error or '')}"
        again = f"deliver the rows with `orch retry {job.id}`, or write them with `orch fetch {job.id} -o FILE`"
        needs.append(Need(NeedKind.OUTPUT, told, f"fix it, then {again}", job.error_code))
    elif job.error is not None:
        needs.append(Need(NeedKind.JOB, f"the job could not continue: {job.error}", code=job.error_code))
    if facts.state is JobState.CANCELLED:
        why = job.cancel_reason or "no reason was given"
        text = f"the job ended before it was done: {why}"
        needs.append(Need(NeedKind.CANCELLED, text, advice_for("cancelled")))
    if due is not None and due.met is False:
        needs.append(_late(facts, due, now))
    if facts.withheld is not None:
        text = f"the output was not delivered because of known answers: {facts.withheld}"
        needs.append(Need(NeedKind.WITHHELD, text, "check the answers; `orch fetch` still writes the rows"))
    swapped = dict.fromkeys(event.reason for event in facts.events if event.kind == EventKind.SWAPPED)
    needs += [Need(NeedKind.SWAPPED, _first_line(text), advice_for(SWAPPED), SWAPPED) for text in swapped]
    # A cancelled job's own line says already why its last rows have no answer.
    said = cancelled(job)[0] if facts.state is JobState.CANCELLED else None
    needs += [_failed(code, message, rows) for code, message, rows in facts.reasons if code != said]
    needs += [Need(NeedKind.WAITS, f"waits: {_first_line(held)}") for held in facts.held]
    if (obstacle := standstill(facts.state, facts.events)) is not None:
        needs.append(Need(NeedKind.STANDSTILL, f"cannot continue: {_first_line(obstacle)}"))
    if facts.answers is not None and facts.answers.unread:
        text = f"{number_of(facts.answers.unread, 'answer')} could not be compared: a result file is gone"
        needs.append(Need(NeedKind.UNREAD, text))
    return needs


def _late(facts: NightFacts, due: DeadlineResult, now: datetime) -> Need:
    job, late = facts.job, duration(-due.spare)
    if facts.counts.expired:
        told = f"the deadline was missed: gave up on {number_of(facts.counts.expired, 'row')}"
    else:
        told = f"the deadline was missed by {late}" if job.finished_at else f"late by {late} so far"
    delay = main_delay(job, facts.events, facts.shards, facts.forecasts, job.finished_at or now)
    return Need(NeedKind.DEADLINE, f"{told}; {delay.text}", delay.advice, delay.cause)


def _failed(code: str, message: str, rows: int) -> Need:
    told = f"{number_of(rows, 'row')} did not succeed ({code})"
    if code not in set(DocumentProblem):  # messages of document problems are about one document
        told += f": {_first_line(message)}"
    return Need(NeedKind.ROWS, told, advice_for(code), code)


def _first_line(text: str) -> str:
    return shortened(text.strip().partition("\n")[0], 300)
