"""The report of a night: what became of its documents, answers, money and time, and what needs a person. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol

from orchestrator.clock import day
from orchestrator.differences import Difference, DocumentRun
from orchestrator.documents.types import DocumentProblem
from orchestrator.durations import duration
from orchestrator.model import Counts, Forecast, Happened, Job, JobState
from orchestrator.rowerrors import BAD_ANSWERS, classify

MOST = 20
"""Documents, rows and rescues that are named; all are counted."""
NOON = time(12)


class Fate(StrEnum):
    """What became of a document."""

    NEW = "new"  # no run before had it
    CHANGED = "changed"  # it, or what is asked of it, is not what it was
    UNCHANGED = "unchanged"  # nothing is; its answers carry over
    REMOVED = "removed"  # the run before had it
    FAILED = "failed"  # an answer is missing
    UNREADABLE = "unreadable"  # no request could be made of it
    KNOWN = "known"  # it fails as it did in an earlier run, or somebody has acknowledged it
    OPEN = "open"  # an answer is still waited for


def fate_of(run: DocumentRun) -> tuple[Fate, str]:
    """What became of a document, and why."""
    if run.failed:
        why = f"{run.code}: {run.message}" if run.message else str(run.code)
        if run.old == run.failed:
            return Fate.KNOWN, why if run.since is None else f"since {day(run.since)}: {why}"
        return (Fate.UNREADABLE if run.unreadable == run.rows else Fate.FAILED), why
    if run.open:
        return Fate.OPEN, f"{run.open:,} of {run.rows:,} rows have no answer yet"
    if not run.known:
        return Fate.NEW, ""
    if run.changed or run.known < run.rows:
        return Fate.CHANGED, _why_changed(run)
    return Fate.UNCHANGED, ""


def _why_changed(run: DocumentRun) -> str:
    reasons = (
        (run.other_model, "model changed"),
        (run.asked, "prompt, schema or settings changed"),
        (run.changed > max(run.asked, run.other_model), "document changed"),
        (run.known < run.rows, "task added"),
    )
    return ", ".join(reason for holds, reason in reasons if holds)


@dataclass(frozen=True, slots=True)
class Named:
    """A document, and why it has the fate that it has."""

    name: str
    reason: str


@dataclass(slots=True)
class Fates:
    """How many documents have which fate, and the first of each but of the unchanged ones."""

    counts: dict[Fate, int] = field(default_factory=dict)
    first: dict[Fate, list[Named]] = field(default_factory=dict)

    def add(self, fate: Fate, name: str, reason: str, most: int) -> None:
        """Count a document."""
        self.counts[fate] = self.counts.get(fate, 0) + 1
        named = self.first.setdefault(fate, [])
        if fate is not Fate.UNCHANGED and len(named) < most:
            named.append(Named(name, reason))

    def to_json(self) -> dict[str, Any]:
        """The stable form; documented in docs/json.md."""
        return {
            fate.value: {
                "documents": self.counts.get(fate, 0),
                "first": [{"name": one.name, "reason": one.reason} for one in self.first.get(fate, ())],
            }
            for fate in Fate
        }


def fates(runs: Iterable[DocumentRun], removed: Iterable[str], most: int = MOST) -> Fates:
    """What became of the documents of a run. `removed` are those that only the run before had."""
    found = Fates()
    for run in runs:
        found.add(*_named(run), most)
    for name in removed:
        found.add(Fate.REMOVED, name, "", most)
    return found


def _named(run: DocumentRun) -> tuple[Fate, str, str]:
    fate, reason = fate_of(run)
    return fate, run.name, reason


class Line(Protocol):
    """What was booked for a job at one backend."""

    @property
    def backend(self) -> str:
        """Where."""

    @property
    def rows(self) -> int:
        """Rows that reached it."""

    @property
    def cost(self) -> Decimal:
        """What they cost, in dollars."""

    @property
    def wasted(self) -> Decimal:
        """How much of that brought no answer that is used."""

    @property
    def estimated(self) -> bool:
        """Whether some of it is an estimate."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a job's part of the report is made of. `before` is the id of the run before, None where there is none.

    `reasons` are those for which rows did not succeed: code, a message, how many; those that are `known` from an
    earlier run, or acknowledged, stand apart, with the moment they began. `held` says what batches wait for,
    `withheld` why the output was not delivered, None where it was.
    """

    job: Job
    state: JobState
    counts: Counts
    documents: Fates
    before: str | None = None
    answers: Difference | None = None
    lines: Sequence[Line] = ()
    forecasts: Sequence[Forecast] = ()
    events: Sequence[Happened] = ()
    reasons: Sequence[tuple[str, str, int]] = ()
    known: Sequence[tuple[str, str, int, datetime | None]] = ()
    held: Sequence[str] = ()
    withheld: str | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """What ran at a backend, and what it cost, in dollars; `wasted` is a part of `cost`."""

    backend: str
    rows: int
    cost: Decimal
    wasted: Decimal
    estimated: bool


@dataclass(frozen=True, slots=True)
class Turnaround:
    """How long batches at a backend took: the slowest, beside what was foreseen of it; seconds."""

    backend: str
    batches: int
    late: int
    slowest: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class Due:
    """How a deadline was kept. `spare` are the seconds that were left, below zero where it was missed.

    Of a job that is not over, `met` is None, and `spare` is counted from now.
    """

    at: datetime
    met: bool | None
    spare: float


@dataclass(frozen=True, slots=True)
class JobReport:
    """A job's part of the report; `needs` is what a person has to see to, the first first."""

    facts: Facts
    routes: Sequence[Route]
    foreseen: tuple[Decimal, Decimal] | None
    turnarounds: Sequence[Turnaround]
    due: Due | None
    rescues: Sequence[Happened]
    rescued: int
    needs: Sequence[str]

    @property
    def cost(self) -> Decimal:
        """What was paid, in dollars."""
        return sum((route.cost for route in self.routes), Decimal(0))

    def to_json(self) -> dict[str, Any]:
        """The stable form; documented in docs/json.md."""
        facts, job = self.facts, self.facts.job
        return {
            "job": job.id,
            "name": job.name,
            "state": facts.state,
            "before": facts.before,
            "created_at": _iso(job.created_at),
            "finished_at": _iso(job.finished_at),
            "output": job.output_path,
            "error": job.error,
            "requests": {
                "total": facts.counts.total,
                "pending": facts.counts.pending,
                "succeeded": facts.counts.succeeded,
                "failed": facts.counts.failed,
                "cancelled": facts.counts.cancelled,
                "expired": facts.counts.expired,
            },
            "documents": facts.documents.to_json(),
            "answers": facts.answers and facts.answers.to_json(),
            "cost_usd": f"{self.cost:f}",
            "foreseen": self.foreseen
            and {"cost_p50_usd": f"{self.foreseen[0]:f}", "cost_p95_usd": f"{self.foreseen[1]:f}"},
            "routes": [
                {
                    "backend": route.backend,
                    "rows": route.rows,
                    "cost_usd": f"{route.cost:f}",
                    "wasted_usd": f"{route.wasted:f}",
                    "cost_estimated": route.estimated,
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
            and {"at": _iso(self.due.at), "met": self.due.met, "spare_seconds": round(self.due.spare, 1)},
            "rescues": {
                "number": self.rescued,
                "first": [{"at": _iso(one.at), "reason": one.reason} for one in self.rescues],
            },
            "known": [
                {"code": code, "message": message, "rows": rows, "since": _iso(since)}
                for code, message, rows, since in facts.known
            ],
            "needs": list(self.needs),
        }


@dataclass(frozen=True, slots=True)
class NightReport:
    """The jobs of one night, oldest first. `night` is the day on which it began, None where one job was asked for."""

    night: date | None
    made_at: datetime
    jobs: Sequence[JobReport]

    @property
    def needs(self) -> list[tuple[str, str]]:
        """What needs a person: the job, and what it is."""
        return [(job.facts.job.id, need) for job in self.jobs for need in job.needs]

    def to_json(self) -> dict[str, Any]:
        """The stable form; documented in docs/json.md."""
        return {
            "night": None if self.night is None else self.night.isoformat(),
            "made_at": _iso(self.made_at),
            "cost_usd": f"{sum((job.cost for job in self.jobs), Decimal(0)):f}",
            "needs": [{"job": job, "need": need} for job, need in self.needs],
            "jobs": [job.to_json() for job in self.jobs],
        }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")


def night_of(at: datetime, zone: tzinfo | None = None) -> date:
    """The night that a moment belongs to, from noon to noon by the clocks of `zone` or of this machine."""
    here = at.astimezone(zone)
    return here.date() if here.time() >= NOON else here.date() - timedelta(days=1)


def job_report(facts: Facts, now: datetime) -> JobReport:
    """A job's part of the report."""
    rescues = [event for event in facts.events if event.kind == "rescued"]
    due = _due(facts, now)
    return JobReport(
        facts=facts,
        routes=_routes(facts.lines),
        foreseen=_foreseen(facts.forecasts),
        turnarounds=_turnarounds(facts.forecasts),
        due=due,
        rescues=rescues[:MOST],
        rescued=len(rescues),
        needs=_needs(facts, due),
    )


def _routes(lines: Iterable[Line]) -> list[Route]:
    found: dict[str, Route] = {}
    for line in lines:
        old = found.get(line.backend, Route(line.backend, 0, Decimal(0), Decimal(0), False))
        found[line.backend] = Route(
            line.backend,
            old.rows + line.rows,
            old.cost + line.cost,
            old.wasted + line.wasted,
            old.estimated or line.estimated,
        )
    return sorted(found.values(), key=lambda route: (-route.cost, route.backend))


def _foreseen(forecasts: Iterable[Forecast]) -> tuple[Decimal, Decimal] | None:
    """What the plan said that the job would cost: p50 and p95, in dollars."""
    return next(
        ((Decimal(repr(one.p50)), Decimal(repr(one.p95))) for one in forecasts if one.kind == "cost"),
        None,
    )


def _turnarounds(forecasts: Iterable[Forecast]) -> list[Turnaround]:
    known: dict[str, list[tuple[float, Forecast]]] = {}
    for one in forecasts:
        if one.kind == "turnaround" and one.actual is not None:
            known.setdefault(one.backend, []).append((one.actual, one))
    found = []
    for backend, batches in sorted(known.items()):
        slowest, forecast = max(batches, key=lambda batch: batch[0])
        late = sum(actual > one.p95 for actual, one in batches)
        found.append(Turnaround(backend, len(batches), late, slowest, forecast.p50, forecast.p95))
    return found


def _due(facts: Facts, now: datetime) -> Due | None:
    job = facts.job
    if job.deadline_at is None or facts.state in (JobState.CANCELLED, JobState.FAILED):
        return None
    if job.finished_at is not None:
        spare = (job.deadline_at - job.finished_at).total_seconds()
        return Due(job.deadline_at, spare >= 0 and not facts.counts.expired, spare)
    spare = (job.deadline_at - now).total_seconds()
    return Due(job.deadline_at, None if spare >= 0 else False, spare)


def _needs(facts: Facts, due: Due | None) -> list[str]:
    job, needs = facts.job, []
    if job.error is not None:
        needs.append(f"the job could not go on: {job.error}")
    if facts.state is JobState.CANCELLED:
        needs.append(f"the job was ended before it was done: {job.cancel_reason or 'no reason was given'}")
    if due is not None and due.met is False:
        late = duration(-due.spare)
        if facts.counts.expired:
            needs.append(f"the deadline was missed: {facts.counts.expired:,} rows were given up")
        else:
            needs.append(f"the deadline was missed by {late}" if job.finished_at else f"late by {late} so far")
    if facts.withheld is not None:
        needs.append(f"the output was not delivered, judged by known answers: {facts.withheld}")
    for code, message, rows in facts.reasons:
        told = "row" if rows == 1 else "rows"
        needs.append(f"{rows:,} {told} did not succeed, {code}: {_first_line(message)} → {advice_for(code)}")
    needs += [f"waits: {_first_line(held)}" for held in facts.held]
    if not facts.state.is_final and facts.events and facts.events[-1].kind == "waiting":
        needs.append(f"cannot go on: {_first_line(facts.events[-1].reason)}")
    if facts.answers is not None and facts.answers.unread:
        needs.append(f"{facts.answers.unread:,} answers could not be compared: a result file is gone")
    return needs


def advice_for(code: str) -> str:
    """What to do about rows that failed with a code."""
    known = _ADVICE.get(code)
    return known or classify(None, code, None, None).advice


_ADVICE: dict[str, str] = {
    **{code: advice for code, (_, advice) in BAD_ANSWERS.items()},
    **dict.fromkeys(DocumentProblem, "mend the document, or take it out"),
    "cancelled": "submit the job again",
    "budget_exhausted": "raise the budget, then submit the job again",
    "batch_expired": "give the job more time, or a faster backend; the next run tries these rows again",
}


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 300 else f"{line[:299]}…"
