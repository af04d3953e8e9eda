"""Actions of the pages. Each action records who requested it. Repeating a request has no further effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from urllib.parse import quote

from msgspec.structs import replace

from orchestrator.core.clock import now
from orchestrator.core.errors import OrchError, UsageError
from orchestrator.core.model import Job, JobId
from orchestrator.daemon import manual_actions
from orchestrator.policy.row_errors import is_passing
from orchestrator.reports.status import outlook_json
from orchestrator.settings.deadlines import deadline_at
from orchestrator.settings.job_spec import MAX_BUDGET
from orchestrator.web.figures import CommandJson
from orchestrator.web.reader import HomeReader
from orchestrator.web.views import PageAddress, View

Form = Mapping[str, str]
Action = Callable[[HomeReader, Form, str], str]
"""Carries out a form for the named visitor. Returns the address of the page to show next. Raises OrchError."""


def _job(reader: HomeReader, form: Form) -> Job:
    job = reader.store.jobs.find(JobId(form.get("job", "")))
    if job is None:
        raise UsageError(f"there is no job {form.get('job', '')}")
    if job.home != reader.home.identity():
        raise UsageError(f"job {job.id} belongs to another home: act there")
    return job


def _page(job: Job) -> str:
    return f"/jobs/{quote(job.id)}"


def cancel(reader: HomeReader, form: Form, who: str) -> str:
    job = _job(reader, form)
    if job.cancel_requested_at is None:
        manual_actions.cancel(reader.store, job, who, now())
    return _page(job)


def retry(reader: HomeReader, form: Form, who: str) -> str:
    """Send the failed, cancelled and expired rows of an ended job again."""
    job = _job(reader, form)
    if job.finished_at is not None or job.error is not None:
        manual_actions.retry(reader.store, job, manual_actions.RETRIED, None, who, now())
    return _page(job)


def release(reader: HomeReader, form: Form, who: str) -> str:
    """Release one row from quarantine."""
    wanted = (form.get("job", ""), form.get("custom_id", ""))
    job = _job(reader, form)
    held = reader.store.quarantine.held(reader.home.identity(), is_passing, job.series)
    manual_actions.release(reader.store, [one for one in held if (one.job, one.custom_id) == wanted], who, now())
    return "/quarantine"


def run_now(reader: HomeReader, form: Form, who: str) -> str:
    """Start a schedule's last due night now."""
    schedule = reader.store.schedules.find(form.get("schedule", ""))
    if schedule is None:
        raise UsageError(f"there is no schedule {form.get('schedule', '')}")
    manual_actions.make_due(reader.store, schedule, who, now())
    return "/schedules"


def revise(reader: HomeReader, form: Form, who: str) -> str:
    """Give an open job another deadline or budget."""
    job = _job(reader, form)
    manual_actions.revise(reader.store, job, *_terms(form), who, now())
    return _page(job)


ACTIONS: Mapping[str, Action] = {
    "cancel": cancel,
    "retry": retry,
    "release": release,
    "run": run_now,
    "revise": revise,
}


def _terms(form: Form) -> tuple[datetime | None, Decimal | None]:
    deadline, budget = form.get("deadline", "").strip(), form.get("budget", "").strip().lstrip("$")
    try:
        due = deadline_at(deadline, now()) if deadline else None
        amount = Decimal(budget) if budget else None
    except ValueError as error:
        raise UsageError(str(error)) from None
    except InvalidOperation:
        raise UsageError(f"{budget!r} is not an amount of dollars") from None
    if amount is not None and not (amount.is_finite() and 0 <= amount <= MAX_BUDGET):
        raise UsageError(f"{budget!r} is not an amount of dollars up to {MAX_BUDGET:,}")
    return due, amount


def terms(reader: HomeReader, address: PageAddress) -> View:
    """Preview the effect of another deadline or budget, before it is confirmed."""
    job = _job(reader, {"job": str(address.path["job"])})
    due, budget, outlooks, problem = None, None, [], None
    try:
        due, budget = _terms(address.query)
        manual_actions.require_open(job)
    except UsageError as error:
        due, budget, problem = None, None, error.message
    changed = replace(job, deadline_at=due or job.deadline_at, budget=job.budget if budget is None else budget)
    for one in (job, changed):
        try:
            found = reader.outlook(one)
        except OrchError as error:
            found, problem = None, error.message
        outlooks.append(CommandJson(f"status {job.id}", {"outlook": None if found is None else outlook_json(found)}))
    facts = {
        "job": job,
        "changed": changed,
        "query": {name: address.query.get(name, "") for name in ("deadline", "budget")},
        "is_open": job.finished_at is None and job.error is None,
        "is_changed": changed != job,
        "stated": due.isoformat() if due else "",
        "outlooks": outlooks,
        "problem": problem,
    }
    return View("terms.html", f"Terms of {job.name}", "jobs", facts, live=False)
