"""Trial builds, which show a job and its plan and leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from orchestrator.core.model import Job
from orchestrator.pipeline import disk
from orchestrator.pipeline.budget import SharedBudgets
from orchestrator.pipeline.build import builder, reused_answers
from orchestrator.pipeline.build.build_report import BuildReport
from orchestrator.pipeline.build.changed_terms import refused_plan
from orchestrator.pipeline.build.submission import (
    How,
    Options,
    Submission,
    check_deadline,
    check_output,
    draft,
    new_terms,
    open_predecessor,
    resuming,
    unfinished,
)
from orchestrator.pipeline.plan.mixed_planning import planning_of
from orchestrator.pipeline.plan.routes import check_eligible, models_of
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store


def rehearse(
    store: Store, home: Home, config: Config, path: Path, options: Options, now: Callable[[], datetime],
    progress: builder.Progress,
) -> Submission:  # fmt: skip
    """Return the submission that `submit` would make, without leaving a trace.

    Raises the errors of `submit`, except for a refused plan: then the submission has `is_refused` set.
    """
    job = draft(path, config, home, options, now())
    check_eligible(config, job)
    how, reason = How.NEW, "nothing was queued"
    if (first := open_predecessor(store, job, options)) is not None:
        how, reason = How.WAITING, f"waits for job {first.id} to succeed"
    earlier = None if options.new else unfinished(store, job)
    stuck = None
    if earlier is not None:
        terms = new_terms(earlier, job, options)
        how, reason = How.RESUMED, resuming(terms)
        stuck = refused_plan(store, config, terms, now)
    else:
        check_deadline(job, options.words)
    if how is How.NEW:
        check_output(store, job)
    with rehearsed(store, home, config, job, now(), progress) as (job, report):
        planning = planning_of(store, config, job, now(), SharedBudgets(store, config, now).left)
        plan = planning.plan()
        refused = how is How.NEW and bool(planning.work) and planning.is_refused(plan)
        return Submission(job, how, reason, report, stuck or plan, refused or stuck is not None)


@contextmanager
def rehearsed(
    store: Store, home: Home, config: Config, job: Job, now: datetime, progress: builder.Progress
) -> Iterator[tuple[Job, BuildReport]]:
    """Build a job for the length of a block, then remove it. No daemon runs it."""
    job = replace(job, options={**job.options, "dry_run": True})
    with builder.claim(home, job):
        try:
            store.jobs.add(job, {})
            asked = reused_answers.asked_of(config, job)
            report = builder.build(
                store, home, job, now, progress, remember=False, asked=asked,
                models=partial(models_of, config), hosted=config.hosted, reading=config.documents,
                shortage=partial(disk.shortage, home, config.retention),
            )  # fmt: skip
            yield job, report
        finally:
            builder.discard(store, home, job)
