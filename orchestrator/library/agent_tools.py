"""Tools of a coding agent in a home: plan, submit within a budget, inspect jobs, read rows."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from orchestrator.core.clock import now
from orchestrator.core.errors import RefusedError, UsageError
from orchestrator.core.money import amount
from orchestrator.library.answers import finished_lines
from orchestrator.library.context import ready
from orchestrator.library.detached_daemon import daemon_of
from orchestrator.library.drafts import JobTerms, take_in_file
from orchestrator.library.handles import session
from orchestrator.library.job_folders import JobFolder
from orchestrator.library.plan_reports import PlanReport
from orchestrator.library.progress_views import view_for
from orchestrator.pipeline.build.rehearsal import rehearse
from orchestrator.pipeline.build.submission import How

MOST_ROWS = 200
INSTRUCTIONS = (
    "orch asks questions about documents as batch jobs. Write a job file, look at its plan, submit it with a budget, "
    "then look at its status and read its rows. Only submit spends money."
)


class AgentTools:
    """The tools of one agent. The budgets of all jobs that it submits may add up to at most `budget` dollars."""

    def __init__(self, budget: Decimal) -> None:
        self._left = budget

    def plan(self, job_file: str, deadline: str | None = None, budget: float | None = None) -> dict[str, Any]:
        """Show where a job file's rows would go, at what cost and by when. Spends nothing.

        `deadline` is 8h, 06:00 or an ISO time; `budget` is in dollars.
        """
        options, view = JobTerms(deadline, budget).options(), view_for(wanted=False)
        with session() as context:
            submission = rehearse(
                context.store, context.home, context.config, Path(job_file), options, now, view.reading
            )
            return PlanReport.of(submission).to_json()

    def submit(self, job_file: str, budget: float, deadline: str | None = None) -> dict[str, Any]:
        """Queue a job file that may cost at most `budget` dollars; the home's daemon runs it.

        Refused if known figures show that no plan keeps deadline and budget. Also refused if `budget` exceeds the
        dollars left to this server.
        """
        terms, view = JobTerms(deadline, budget), view_for(wanted=False)
        most = terms.options().budget or Decimal(0)
        if not 0 <= most <= self._left:
            raise RefusedError(
                f"a budget of {amount(most)} was stated, and {amount(self._left)} are left to this server",
                hint="`orch mcp --budget DOLLARS` says what its submits may cost together",
            )
        with session() as context:
            submission = take_in_file(context, JobFolder(Path(job_file)), terms.options(), view)
            if submission.how is not How.UNCHANGED:
                self._left -= most
            runner = None if submission.how is How.UNCHANGED else str(daemon_of(context.home))
            return {"job": submission.job.id, "how": submission.how, "reason": submission.reason, "daemon": runner}

    def status(self, job: str | None = None) -> dict[str, Any]:
        """Show a job by its id or name: state, counts, cost, problems. Without a job, show the newest 20."""
        with ready() as context:
            if job is None:
                return {"jobs": [line.to_json() for line in context.lines(context.store)]}
            found = context.job(job, tell=False)
            return context.detail(found.id).to_json()

    def rows(self, job: str, first: int = 0, limit: int = 50) -> dict[str, Any]:
        """Read rows of a finished job in input order: document, answer, error, cost.

        Starts at row number `first`, counted from 0. Returns at most 200 rows.
        """
        with ready() as context:
            found = context.job(job, tell=False)
            if found.finished_at is None:
                raise UsageError(f"job {found.id} is not finished", hint="status says how far it is")
            lines = islice(finished_lines(context, found), first, first + min(max(limit, 0), MOST_ROWS))
            rows = [json.loads(line) for line in lines]
            return {"job": found.id, "total": context.store.jobs.counts([found.id])[found.id].total, "rows": rows}
