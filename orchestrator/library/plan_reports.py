"""A plan as a Python value, which prints as `orch plan` does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from html import escape
from typing import Any

from msgspec import Struct

from orchestrator.core.money import money, plain
from orchestrator.core.probability_words import chance_words
from orchestrator.core.term_words import TermWords
from orchestrator.library.html_tables import html_table
from orchestrator.pipeline.build.build_report import BuildReport
from orchestrator.pipeline.build.submission import Submission
from orchestrator.policy.planner import Plan, Route
from orchestrator.reports.plans import plan_json, plan_lines


class PlanReport(Struct, frozen=True):
    """Routes, cost and times of a job that is not submitted yet."""

    plan: Plan
    report: BuildReport
    deadline: datetime | None
    is_refused: bool = False

    @classmethod
    def of(cls, submission: Submission) -> PlanReport:
        assert submission.plan is not None, "a rehearsal plans"
        assert submission.report is not None, "and builds"
        return cls(submission.plan, submission.report, submission.job.deadline_at, submission.is_refused)

    @property
    def requests(self) -> int:
        """Number of rows."""
        return self.report.requests

    @property
    def to_send(self) -> int:
        """Number of rows that would be sent.

        Other rows have an answer, repeat or await another row, or cannot be asked.
        """
        return self.report.to_send

    @property
    def routes(self) -> Sequence[Route]:
        """Backends that would take rows, each with its rows, cost and times."""
        return self.plan.routes

    @property
    def cost(self) -> Decimal:
        """Expected cost in dollars."""
        return plain(self.plan.expected)

    @property
    def at_most(self) -> Decimal:
        """Maximum cost in dollars."""
        return plain(self.plan.at_most)

    @property
    def chance(self) -> float | None:
        """Probability of finishing by the deadline; None if the job has no deadline."""
        return None if self.deadline is None else self.plan.chance

    @property
    def holds(self) -> bool:
        """True if the plan keeps the deadline and the budget."""
        return self.plan.verdict.holds

    def to_json(self) -> dict[str, Any]:
        """Return the stable form that `orch plan --json` prints."""
        return {
            **plan_json(self.plan),
            "requests": self.requests,
            "to_send": self.to_send,
            "is_refused": self.is_refused,
        }

    def __str__(self) -> str:
        if not self.to_send:
            return f"nothing to send: {self.report}"
        lines = plan_lines(self.plan, self.deadline, None, words=TermWords.ARGUMENTS)
        table = ["".join(part.text for part in line).rstrip() for line in lines]
        return "\n".join([*table, *self.report.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.to_send:
            return f"<p>{escape(str(self))}</p>"
        rows: list[list[Any]] = [
            [
                "✓",
                one.backend,
                f"{one.rows:,}",
                one.cost and money(one.cost.p50),
                chance_words(one.chance),
                one.reason,
            ]
            for one in self.plan.routes
        ]
        rows += [
            ["✗", no.backend, None, no.cost and money(no.cost.p50), no.chance and chance_words(no.chance), no.reason]
            for no in self.plan.refused
        ]
        below = str(self).splitlines()[len(rows) + 1 :]
        notes = "; ".join(line.strip() for line in below)
        return html_table(["", "route", "rows", "cost (p50)", "in time", "reason"], rows, notes)
