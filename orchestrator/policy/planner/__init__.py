"""Planner of a job's routes, by cost, time and chance. Pure.

- `plan(rows, options, terms, now) -> Plan` at submission
- `choose_probe(open, options, terms, now, …) -> (Probe | None, Decision) | None` afterwards, to measure a route
- `replan(open, options, terms, now) -> Decision` while rows are open

An option is a backend with its price and speed. A probe is a few rows that measure the speed of a route.
"""

from __future__ import annotations

from orchestrator.policy.planner.plan import covering, plan
from orchestrator.policy.planner.probes import ProbeRule, choose_probe
from orchestrator.policy.planner.replan import replan
from orchestrator.policy.planner.types import (
    BatchOption,
    Claim,
    Cost,
    CostSteps,
    Decision,
    FirstRow,
    Open,
    Option,
    Outlook,
    Plan,
    PlanVerdict,
    Probe,
    Refusal,
    Route,
    Running,
    Send,
    SynchronousOption,
    Terms,
)

__all__ = [
    "BatchOption",
    "Claim",
    "Cost",
    "CostSteps",
    "Decision",
    "FirstRow",
    "Open",
    "Option",
    "Outlook",
    "Plan",
    "PlanVerdict",
    "Probe",
    "ProbeRule",
    "Refusal",
    "Route",
    "Running",
    "Send",
    "SynchronousOption",
    "Terms",
    "choose_probe",
    "covering",
    "plan",
    "replan",
]
