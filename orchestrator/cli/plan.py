"""`orch plan`: where a job's rows would go, at what cost and by when, and why not elsewhere. Queues nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from orchestrator.cli.console import out
from orchestrator.cli.console_jobs import plan_lines
from orchestrator.cli.console_progress import progress
from orchestrator.cli.context import opened
from orchestrator.cli.options import FILE, plan_options
from orchestrator.cli.output import json_option, print_json, quiet_option, show
from orchestrator.core.clock import now
from orchestrator.documents.ignored import told
from orchestrator.pipeline.build.intake import Options
from orchestrator.pipeline.build.rehearsal import rehearse
from orchestrator.pipeline.plan.problems_now import problems_now
from orchestrator.policy.planner import Cost, Plan


@click.command()
@FILE
@plan_options
@quiet_option
@json_option
def plan(file: Path, options: Options, quiet: bool, as_json: bool) -> int:
    """Show where a job would run, what it would cost, when it would finish, and why: routes taken, refused, probed.

    It asks each backend that may take the job whether it answers and has the models; nothing is spent.
    Exit code 3 if no plan meets the deadline and the budget; then it shows what would.
    """
    with opened() as context, progress(quiet=quiet or as_json) as view:
        intake = rehearse(context.store, context.home, context.config, file, options, now, view.reading)
        view.stop()
        found = intake.plan
        assert found is not None, "a rehearsal plans"
        assert intake.report is not None, "and builds"
        report = intake.report
        ignored = report.ignored.to_json()
        problems = problems_now(context.config, intake.job)
        if as_json:
            told_chance = {"chance": None} if any(route.backend in problems for route in found.routes) else {}
            others = {
                "requests": report.requests, "to_send": report.to_send, "of_other_models": report.other_models_json()
            }  # fmt: skip
            print_json({**plan_json(found), **told_chance, "problems": problems, "ignored": ignored, **others})
        else:
            if report.to_send:
                out().print(plan_lines(found, intake.job.deadline_at, out().width, problems))
            else:
                show(f"nothing to send: {report}")
            if words := told(ignored):
                show(f"documents: {words}")
            if report.of_other_models:
                show(f"answers: {report.other_models}")
        return 0 if found.verdict.holds else 3


def plan_json(found: Plan) -> dict[str, Any]:
    """Return the stable form of a plan, documented in docs/reference/json.md."""
    return {
        "routes": [
            {"backend": route.backend, "rows": route.rows, "cost_usd": _cost(route.cost), "reason": route.reason,
             "done_p50": _iso(route.done_p50), "done_p95": _iso(route.done_p95), "chance": round(route.chance, 4)}
            for route in found.routes
        ],
        "refused": [
            {"backend": one.backend, "reason": one.reason, "cost_usd": _cost(one.cost),
             "done_p50": _iso(one.done_p50), "done_p95": _iso(one.done_p95),
             "chance": None if one.chance is None else round(one.chance, 4)}
            for one in found.refused
        ],
        "reroute": None if found.reroute is None else {
            "at": _iso(found.reroute.at), "to": list(found.reroute.to), "needed": round(found.reroute.needed, 4),
        },
        "starts_at": _iso(found.starts_at),
        "probe": None if found.probe is None else {
            "backend": found.probe.backend, "rows": found.probe.rows, "at_most_usd": f"{found.probe.at_most:f}",
            "reason": found.probe.reason,
        },
        "first_rows": [
            {"backend": one.backend, "model": one.model,
             "at_most_usd": None if one.at_most is None else f"{one.at_most:f}"}
            for one in found.first_rows
        ],
        "expected_usd": f"{found.expected:f}",
        "at_most_usd": f"{found.at_most:f}",
        "chance": round(found.chance, 4),
        "holds": found.verdict.holds,
        "reason": found.verdict.reason,
        "nearest": {
            "deadline": _iso(found.verdict.deadline),
            "budget_usd": None if found.verdict.budget is None else f"{found.verdict.budget:f}",
        },
    }  # fmt: skip


def _cost(cost: Cost | None) -> dict[str, str] | None:
    return None if cost is None else {"p50": f"{cost.p50:f}", "p95": f"{cost.p95:f}"}


def _iso(at: Any) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")
