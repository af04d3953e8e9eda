"""The `--json` forms of budgets, quarantine and schedules, shared by commands and pages."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from orchestrator.core.clock import iso
from orchestrator.core.schedules import Night, Schedule
from orchestrator.policy import schedule_times

if TYPE_CHECKING:
    from orchestrator.policy.budgets import BudgetStanding
    from orchestrator.store import Store
    from orchestrator.store.quarantine import Held


def standing_json(standing: BudgetStanding) -> dict[str, Any]:
    """Return the stable form of a budget, documented in docs/reference/json.md."""
    terms = standing.budget
    return {
        "name": terms.name,
        "tag": terms.tag,
        "period": terms.period,
        "starts_at": iso(standing.period.starts),
        "renews_at": iso(standing.period.ends),
        "amount_usd": f"{terms.amount.normalize():f}",
        "warn_at": float(terms.warn_at),
        "stop_at": float(terms.stop_at),
        "spent_usd": f"{standing.spent:f}",
        "running_usd": f"{standing.running:f}",
        "in_flight_usd": None if standing.unbounded else f"{standing.in_flight:f}",
        "left_usd": f"{standing.left:f}",
        "share": round(float(standing.share), 4),
        "state": standing.mark.value,
        "problem": standing.unbounded,
    }


def held_json(held: Held) -> dict[str, Any]:
    """Return the stable form of a row in quarantine, documented in docs/reference/json.md."""
    return {
        "document": held.document,
        "task": held.task,
        "custom_id": held.custom_id,
        "code": held.code,
        "reason": held.reason,
        "name": held.name,
        "job": held.job,
        "since": held.since,
        "since_at": iso(held.since_at),
        "runs": held.runs,
    }


def schedule_json(store: Store, one: Schedule, now: datetime) -> dict[str, Any]:
    """Return the stable form of a schedule, documented in docs/reference/json.md."""
    following = None if one.paused_at else schedule_times.next_due(one, now)
    last = last_night(store, one)
    return {
        "name": one.name,
        "file": one.file,
        "state": "paused" if one.paused_at else "active",
        "cron": one.cron or None,
        "after": None if one.after is None else name_of(store, one.after),
        "tz": one.tz,
        "deadline": one.deadline,
        "budget_usd": None if one.budget is None else f"{one.budget:f}",
        "misfire": one.misfire,
        "grace_seconds": int(one.grace.total_seconds()),
        "overlap": one.overlap,
        "home": one.home,
        "config": one.config,
        "created_at": iso(one.created_at),
        "paused_at": iso(one.paused_at),
        "next_at": None if following is None else iso(following.at),
        "next_local": None if following is None else schedule_times.local(one, following.at),
        "last": None if last is None else night_json(last),
    }


def night_json(night: Night) -> dict[str, Any]:
    """Return the stable form of a night, documented in docs/reference/json.md."""
    return {
        "night": night.called.isoformat(),
        "slot": night.slot or None,
        "state": night.state,
        "code": night.code,
        "reason": night.reason,
        "job": night.job_id,
        "due_at": iso(night.due_at),
        "found_at": iso(night.created_at),
        "ended_at": iso(night.ended_at),
        "asked_by": night.asked_by,
    }


def name_of(store: Store, schedule_id: str) -> str:
    """Return a schedule's name, or its id if the schedule is gone."""
    found = store.schedules.get(schedule_id)
    return schedule_id if found is None else found.name


def last_night(store: Store, one: Schedule) -> Night | None:
    found = store.schedules.nights(one.id)
    return found[-1] if found else None
