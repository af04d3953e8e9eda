"""New terms of an unfinished job: the deadline and budget that a later command gives it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.durations import moment_words
from orchestrator.core.errors import RefusedError
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job
from orchestrator.core.money import amount, money
from orchestrator.core.term_words import TermWords
from orchestrator.pipeline.budget import SharedBudgets
from orchestrator.pipeline.plan.mixed_planning import planning_of
from orchestrator.policy.planner import Plan
from orchestrator.settings.config import Config
from orchestrator.store import Store

SEE_THE_PLAN = "`orch plan` shows every route in detail"


class NewTerms(Struct, frozen=True):
    """Terms that differ from those of a job. None keeps a term."""

    job: Job
    deadline_at: datetime | None = None
    budget: Decimal | None = None

    @property
    def changed(self) -> dict[str, datetime | Decimal]:
        """The terms that change, by the name of their column in the store."""
        found: dict[str, datetime | Decimal] = {}
        if self.deadline_at is not None and self.deadline_at != self.job.deadline_at:
            found["deadline_at"] = self.deadline_at
        if self.budget is not None and self.budget != self.job.budget:
            found["budget"] = self.budget
        return found

    @property
    def is_sooner(self) -> bool:
        due, had = self.deadline_at, self.job.deadline_at
        return due is not None and (had is None or due < had)

    @property
    def are_tighter(self) -> bool:
        had = self.job.budget
        return self.is_sooner or (self.budget is not None and (had is None or self.budget < had))

    @property
    def words(self) -> str:
        """The changes as text, such as `budget $2 (was $1)`."""
        told = []
        if "budget" in self.changed:
            was = "none" if self.job.budget is None else amount(self.job.budget)
            told.append(f"budget {amount(self.budget)} (was {was})")
        if "deadline_at" in self.changed and self.deadline_at is not None:
            was = "none" if self.job.deadline_at is None else moment_words(self.job.deadline_at)
            told.append(f"deadline {moment_words(self.deadline_at)} (was {was})")
        return ", ".join(told)

    def applied(self) -> Job:
        """Return the job with these terms."""
        return replace(self.job, **self.changed)

    def record(self, store: Store, now: datetime, by: str = "") -> None:
        if self.changed:
            store.jobs.revise(self.job.id, **self.changed)
            store.jobs.note(self.job.id, EventKind.REVISED, f"{self.words}{by}", now)


def what_would_hold(plan: Plan, words: TermWords) -> str | None:
    """Return the nearest terms that would hold, as text, or None if the plan has none."""
    nearest = " or ".join(plan.verdict.nearest(words))
    return f"what would hold: {nearest}" if nearest else None


def refused_plan(store: Store, config: Config, terms: NewTerms, now: Callable[[], datetime]) -> Plan | None:
    """Return the plan of the open rows if tighter terms cannot hold, else None. The rules are those for a new job."""
    if not terms.are_tighter:
        return None
    planning = planning_of(store, config, terms.applied(), now(), SharedBudgets(store, config, now).left)
    if not planning.work or not planning.is_refused(plan := planning.plan()):
        return None
    # The planner counts the rest of a budget, but a user gives the whole budget.
    verdict, spent = plan.verdict, store.ledger.spent(terms.job.id)
    if not spent:
        return plan
    whole = None if verdict.budget is None else verdict.budget + spent
    reason = f"{money(spent)} is spent; for what is left, {verdict.reason}"
    return replace(plan, verdict=replace(verdict, reason=reason, budget=whole))


def refusal(terms: NewTerms, plan: Plan, words: TermWords) -> RefusedError:
    cure, id_ = what_would_hold(plan, words) or SEE_THE_PLAN, terms.job.id
    return RefusedError(
        f"{plan.verdict.reason}; job {id_} of this file is unfinished and keeps its terms",
        hint=f"{cure}; or `orch cancel {id_}`",
    )
