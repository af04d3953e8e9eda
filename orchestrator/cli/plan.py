"""`orch plan`: where a job's rows would go, the cost, the end time, and the reasons against other backends.

Queues nothing.
"""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.console import out
from orchestrator.cli.console_progress import progress
from orchestrator.cli.options import FILE, plan_options
from orchestrator.cli.output import json_option, print_json, quiet_option, show
from orchestrator.core.clock import now
from orchestrator.library.context import opened, say_schema_hints, say_unknown_backends
from orchestrator.pipeline.build.rehearsal import rehearse
from orchestrator.pipeline.build.submission import How, Options, Submission
from orchestrator.pipeline.plan.problems_now import problems_now
from orchestrator.reports.plans import plan_json, plan_lines, problem_lines


@click.command()
@FILE
@plan_options
@quiet_option
@json_option
def plan(file: Path, options: Options, quiet: bool, as_json: bool) -> int:
    """Show where a job would run, its cost, its end time, and why: routes taken, refused and probed.

    The command asks each backend that may take the job for its models, and spends nothing. Exit code 3 means that
    `orch run` and `orch submit` would refuse the job. They refuse if, by known figures, no plan meets the deadline
    and the budget. An estimate, such as a turnaround never observed or the cost of an hour, never causes a refusal.
    """
    with opened() as context, progress(quiet=quiet or as_json) as view:
        say_unknown_backends(context.config)
        submission = rehearse(context.store, context.home, context.config, file, options, now, view.reading)
        view.stop()
        say_schema_hints(submission.job)
        found = submission.plan
        assert found is not None, "a rehearsal plans"
        assert submission.report is not None, "and builds"
        report = submission.report
        problems = problems_now(context.config, submission.job)
        if as_json:
            others = {
                "requests": report.requests, "to_send": report.to_send, "of_other_models": report.other_models_json(),
                "how": submission.how, "is_refused": submission.is_refused,
                "ignored": report.ignored.to_json(),
            }  # fmt: skip
            print_json({**plan_json(found, problems), "problems": problems, **others})
        else:
            if report.to_send:
                out().print(plan_lines(found, submission.job.deadline_at, out().width, problems))
                for line in report.notes:
                    show(line)
            else:
                show(f"nothing to send: {report}")
                out().print(problem_lines(problems, out().width))
            for line in notes(submission):
                show(line)
        return exit_code(submission)


def exit_code(submission: Submission) -> int:
    """Return the exit code of a rehearsal, which is 3 if a submit would be refused."""
    return 3 if submission.is_refused else 0


def notes(submission: Submission) -> list[str]:
    """Return notes on a plan that `orch run` and `orch submit` would refuse or would not follow exactly."""
    if submission.is_refused:
        return ["orch run and orch submit are refused (exit code 3)"]
    if submission.how is not How.NEW:
        return [f"orch run and orch submit proceed: {submission.reason}"]
    sends = submission.report is not None and submission.report.to_send > 0
    if sends and submission.plan is not None and not submission.plan.verdict.holds:
        if not submission.plan.routes and all(one.cost is None for one in submission.plan.refused):
            return ["orch run and orch submit keep the job, and send nothing until a backend may run it"]
        return ["orch run and orch submit proceed: these figures are estimates"]
    return []
