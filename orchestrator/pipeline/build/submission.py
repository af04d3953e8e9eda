"""Stage 0: a command's file becomes a job, or is recognised as an existing job.

Submitting a file again resumes its unfinished job. If nothing has changed since a finished job, nothing is sent.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.counts import number_of
from orchestrator.core.errors import InputError, OutputError, RefusedError, UsageError
from orchestrator.core.events import EventKind
from orchestrator.core.model import NIGHT, Job, JobId, JobKind
from orchestrator.core.near_names import meant_file
from orchestrator.core.term_words import TermWords
from orchestrator.pipeline import disk, predecessors, succession
from orchestrator.pipeline.budget import SharedBudgets
from orchestrator.pipeline.build import builder, reused_answers
from orchestrator.pipeline.build.build_report import BuildReport
from orchestrator.pipeline.build.changed_terms import SEE_THE_PLAN, NewTerms, refusal, refused_plan, what_would_hold
from orchestrator.pipeline.finish import delivery, outputs
from orchestrator.pipeline.finish.delivery import OVERWRITE
from orchestrator.pipeline.plan import canary
from orchestrator.pipeline.plan.mixed_planning import planning_of
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.pipeline.plan.routes import check_eligible, models_of
from orchestrator.pipeline.plan.synchronous_backends import AT_ONCE
from orchestrator.pipeline.selection import EVERYTHING, Scope
from orchestrator.policy.planner import Plan
from orchestrator.settings.config import Config
from orchestrator.settings.deadlines import deadline_at
from orchestrator.settings.home import Home
from orchestrator.settings.job_file import check_names, load, mistake_at
from orchestrator.settings.job_spec import JobSpec
from orchestrator.settings.stored_spec import spec_of
from orchestrator.store import Store


class Options(Struct, frozen=True):
    """Options of a job.

    `new` starts a job even if the file has an unfinished one or nothing changed. `reask` asks rows again that other
    models answered. `verify` reads files even if they look unchanged. `scope` limits the job to a part of its file.
    `overwrite` lets the output replace a foreign file. `after` is the job to wait for. With `unattended`, the job
    waits for an output whose fault may pass. `at_once` names the only backends to ask; the job file's deadline and
    `after` are then ignored. `edited` says what to do with an unfinished job of the file's earlier content; None
    means `SUPERSEDE`. `night` is the id of the job's night. `asked` is the person who started that night. `words` is
    how messages spell options.
    """

    deadline: str | None = None
    budget: Decimal | None = None
    backend: str | None = None
    new: bool = False
    reask: bool = False
    verify: bool = False
    scope: Scope = EVERYTHING
    overwrite: bool = False
    after: str | None = None
    unattended: bool = False
    at_once: tuple[str, ...] | None = None
    edited: succession.Edited | None = None
    night: int | None = None
    asked: str | None = None
    words: TermWords = TermWords.OPTIONS


class How(StrEnum):
    NEW = "new"
    RESUMED = "resumed"
    UNCHANGED = "unchanged"
    WAITING = "waiting"  # recorded, but built only after its predecessor has succeeded


class Submission(Struct, frozen=True):
    """A submitted job. `is_refused` is true if this is a rehearsal and `submit` would refuse the plan."""

    job: Job
    how: How
    reason: str
    report: BuildReport | None = None
    plan: Plan | None = None
    is_refused: bool = False


def kind_of(path: Path) -> JobKind:
    """Return a file's kind by its suffix. Raises UsageError."""
    if path.suffix in (".yaml", ".yml"):
        return JobKind.DOCUMENTS
    if path.suffix == ".jsonl":
        return JobKind.BATCH
    if not path.exists():
        raise no_file(path)
    cure = "a job file names it in its `documents`: `orch init` writes one"
    if path.is_dir():
        cure = f"`orch init {path}` writes a job file for this folder"
    elif path.suffix == ".toml":
        cure = "these are settings, which orch finds by itself: name a job file"
    raise UsageError(f"{path}: is neither a job file (.yaml) nor an OpenAI batch file (.jsonl)", hint=cure)


def no_file(path: Path) -> InputError:
    return InputError("there is no such file", file=path, hint=meant_file(str(path)))


def read_spec(path: Path, config: Config) -> JobSpec:
    """Read a job file and check it against the aliases and backends of orch.toml. Raises InputError."""
    spec = load(path)
    check_names(spec, path, config)
    if spec.output is not None:
        outputs.check(spec.output)
        try:
            outputs.check_columns(outputs.table_of(spec.output), spec.output.format, spec.tasks)
        except UsageError as error:
            raise mistake_at(path, ("output", "columns"), error.message, error.hint) from None
    return spec


def draft(path: Path, config: Config, home: Home, options: Options, now: datetime) -> Job:
    """Create the job of a file without recording it. Raises InputError, RefusedError, UsageError."""
    kind = kind_of(path)
    if not path.is_file():
        raise no_file(path)
    if options.backend is not None and config.backends and options.backend not in config.backends:
        known = ", ".join(config.backends)
        raise UsageError(
            f"{options.words.term('backend', options.backend)}: there is no such backend in {config.path}",
            hint=f"known: {known}",
        )
    spec = read_spec(path, config) if kind is JobKind.DOCUMENTS else None
    series = digest(home.identity(), kind, home.run_of(path))
    return _drafted(path.absolute(), spec, config, home.identity(), series, options, now)


def sketch(
    path: Path, spec: JobSpec | None, config: Config, options: Options, now: datetime, home_id: str = ""
) -> Job:
    """Create the job of a file without checking the file itself. Raises UsageError."""
    kind = JobKind.BATCH if spec is None else JobKind.DOCUMENTS
    series = digest(home_id, kind, os.path.realpath(path))
    return _drafted(path.absolute(), spec, config, home_id, series, options, now)


def _drafted(
    path: Path, spec: JobSpec | None, config: Config, home_id: str, series: str, options: Options, now: datetime
) -> Job:
    kind = JobKind.BATCH if spec is None else JobKind.DOCUMENTS
    scope = options.scope
    if spec is not None:
        scope.check_tasks(spec)
    elif scope.tasks:
        raise UsageError(f"--task {scope.tasks[0]}: a ready batch file has no tasks")
    data: dict[str, Any] = spec.model_dump(mode="json", by_alias=True, exclude_none=True) if spec else {}
    name = spec.name if spec else re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem)[:40].strip("-") or "batch"
    is_at_once = options.at_once is not None
    deadline = options.deadline or (spec.deadline if spec and not is_at_once else None)
    beside = succession.Edited.BESIDE
    reasks = options.reask or (spec is not None and spec.reask is not None)
    extra = {
        reused_answers.REASK: reasks,
        OVERWRITE: options.overwrite,
        beside: options.edited is beside,
        NIGHT: options.night,
    }
    more: dict[str, Any] = {name: value for name, value in extra.items() if value}
    if options.at_once is not None:
        more[AT_ONCE] = list(options.at_once)
    job = Job(
        id=JobId(f"{name}-{os.urandom(4).hex()}"),
        home=home_id,
        series=series,
        identity="",
        name=name,
        kind=kind,
        source=str(path),
        spec=data,
        options={
            "backend": options.backend,
            "carry": not options.new,
            "verify": options.verify,
            "config": str(config.path),
            **scope.to_options(),
            **more,
        },
        created_at=now,
        deadline_at=_deadline(deadline, now, options.words),
        budget=options.budget if options.budget is not None else (spec.budget if spec else None),
    )
    return replace(job, identity=identity_of(job, series=series))


def _deadline(text: str | None, now: datetime, words: TermWords) -> datetime | None:
    if text is None:
        return None
    try:
        return deadline_at(text, now)
    except ValueError as error:
        raise UsageError(f"{words.term('deadline')}: {error}") from None


def check_deadline(job: Job, words: TermWords = TermWords.OPTIONS) -> None:
    """Raise RefusedError if a new job's deadline has passed. An unfinished job is finished late instead."""
    if job.deadline_at is None or job.deadline_at > job.created_at:
        return
    spec, place = spec_of(job), InputError("", field=words.term("deadline"))
    if spec is not None and spec.deadline and _deadline(spec.deadline, job.created_at, words) == job.deadline_at:
        place = mistake_at(Path(job.source), ("deadline",), "")
    raise RefusedError(
        f"the deadline {job.deadline_at:%Y-%m-%d %H:%M} UTC has already passed",
        hint="give a later one, such as 8h or 06:00",
    ).at(place)


def submit(
    store: Store, home: Home, config: Config, path: Path, options: Options, now: Callable[[], datetime],
    progress: builder.Progress,
) -> Submission:  # fmt: skip
    """Record and build a job, or find the existing one. Raises OrchError; a new job that fails is removed."""
    job = draft(path, config, home, options, now())
    check_eligible(config, job)
    if (first := open_predecessor(store, job, options)) is not None:
        waiting = replace(job, options={**job.options, predecessors.AFTER: first.id})
        return _queue(store, home, config, waiting, options, now)
    with ExitStack() as claimed:
        try:
            unfinished = _record(store, home, job, claimed, options)
            if unfinished is not None:
                return _resumed(store, config, new_terms(unfinished, job, options), options, now)
            check_output(store, job, unattended=options.unattended)
            report = builder.build(
                store, home, job, now(), progress,
                asked=reused_answers.asked_of(config, job), reading=config.documents,
                models=partial(models_of, config), hosted=config.hosted,
                shortage=partial(disk.shortage, home, config.retention),
            )  # fmt: skip
            same = builder.same_as(store, job, report)
            if same is not None:
                builder.discard(store, home, job)
                return _unchanged(store, same, report, options)
            canary.mark(store, job, now())
            planning = planning_of(store, config, job, now(), SharedBudgets(store, config, now).left)
            plan = _fitting(planning, options.words)
        except (Exception, KeyboardInterrupt):
            builder.discard(store, home, job)
            raise
        # After the clean-up: if the response to the commit is lost, a daemon may already run the job.
        store.jobs.mark_built(job.id, now())
    if plan is not None:
        store.forecasts.made(planning.forecasts(plan))
    store.jobs.note(job.id, EventKind.BUILT, str(report), now())
    return Submission(store.jobs.get(job.id), How.NEW, str(report), report, plan)


def open_predecessor(store: Store, job: Job, options: Options) -> Job | None:
    """Return the unfinished job that this job must wait for, or None. Raises UsageError, RefusedError."""
    spec = spec_of(job)
    before = options.after or (spec.after if spec and options.at_once is None else None)
    if before is None:
        return None
    try:
        first, stands = predecessors.require(store, job.home, before)
    except UsageError as error:
        if options.after is not None:
            raise
        raise mistake_at(Path(job.source), ("after",), error.message, error.hint) from None
    return first if stands is predecessors.Predecessor.OPEN else None


def resuming(terms: NewTerms) -> str:
    reason = f"job {terms.job.id} of this file is unfinished: resuming where it stopped"
    return f"{reason}, now with {terms.words}" if terms.changed else reason


def check_output(store: Store | None, job: Job, *, unattended: bool = False) -> None:
    """Raise OutputError, with file and line, if the rows cannot be delivered as the job file says.

    If `unattended`, a fault that may pass is ignored: the daemon waits for it to pass before it asks any row.
    """
    try:
        delivery.require(store, job)
    except OutputError as error:
        if unattended and error.code.may_pass:
            return
        raise error.at(mistake_at(Path(job.source), ("output",), "")) from None


def _unchanged(store: Store, same: Job, report: BuildReport, options: Options) -> Submission:
    reason = f"nothing changed since job {same.id}: {number_of(report.requests, 'row')}, none sent"
    reason += f"; {report.other_models}" if report.of_other_models else ""
    if not same.is_undelivered:
        return Submission(same, How.UNCHANGED, reason, report)
    store.jobs.reopen(same.id, **({OVERWRITE: True} if options.overwrite else {}))
    return Submission(store.jobs.get(same.id), How.RESUMED, f"{reason}; they are delivered now", report)


def _queue(
    store: Store, home: Home, config: Config, job: Job, options: Options, now: Callable[[], datetime]
) -> Submission:
    with builder.locked(home.intake_lock, wait=True):
        found = _unfinished(store, job)
        if found is not None and (found.built_at is not None or predecessors.AFTER in found.options):
            return _resumed(store, config, new_terms(found, job, options), options, now)
        check_deadline(job, options.words)
        _add(store, job, options)
    reason = f"waits for job {job.options[predecessors.AFTER]} to succeed"
    store.jobs.note(job.id, EventKind.WAITING, reason, now())
    return Submission(job, How.WAITING, reason)


def _fitting(planning: Planning, words: TermWords) -> Plan | None:
    """Return the plan of a job that was just built, or None if there is nothing to send.

    Raises RefusedError if the plan cannot keep the deadline or budget. The hint names the nearest terms that would
    hold, if there are any.
    """
    if not planning.work:
        return None
    plan = planning.plan()
    if planning.is_refused(plan):
        raise RefusedError(plan.verdict.reason, hint=_cure(planning, plan, words))
    return plan


def _cure(planning: Planning, plan: Plan, words: TermWords) -> str:
    if (told := what_would_hold(plan, words)) is not None:
        return told
    if all(one.objection is not None for one in planning.options):
        return "\n  ".join(f"{one.backend}: {one.objection}" for one in planning.options)
    return SEE_THE_PLAN


def new_terms(job: Job, wanted: Job, options: Options) -> NewTerms:
    """Return the new terms that a command's options set for an unfinished job of its file.

    Raises RefusedError if the new deadline is earlier and has already passed.
    """
    terms = NewTerms(job, wanted.deadline_at if options.deadline is not None else None, options.budget)
    if terms.is_sooner and not options.unattended:
        check_deadline(wanted, options.words)
    return terms


def _resumed(
    store: Store, config: Config, terms: NewTerms, options: Options, now: Callable[[], datetime]
) -> Submission:
    """Apply this command's terms to an unfinished job, resume it and return it. Refused rows are sent again.

    Raises RefusedError if tighter terms cannot hold; the job then keeps its terms. A night always resumes the job.
    """
    if not options.unattended and (plan := refused_plan(store, config, terms, now)) is not None:
        raise refusal(terms, plan, options.words)
    job = terms.job
    terms.record(store, now())
    if options.overwrite:
        store.jobs.allow(job.id, **{OVERWRITE: True})
    store.holds.lift(store.holds.of(job.id))
    _note_request(store, job, options, now())
    return Submission(store.jobs.get(job.id), How.RESUMED, resuming(terms))


def _record(store: Store, home: Home, job: Job, claimed: ExitStack, options: Options) -> Job | None:
    """Record a job and claim its build, or return the unfinished, built job of the same content.

    A lock makes this one step, so two equal commands at the same time create one job. If another process is building
    the job, wait for it. A build that was cut off is removed.
    """
    while True:
        with builder.locked(home.intake_lock, wait=True):
            found = None if options.new else _unfinished(store, job)
            if found is None:
                check_deadline(job, options.words)
                succession.follow_folder(store, job)
                # Claimed before the job is visible: otherwise a running daemon would build it too.
                claimed.enter_context(builder.claim(home, job))
                _add(store, job, options)
                succession.supersede(store, job, job.created_at)
                return None
        if found.built_at is not None or predecessors.AFTER in found.options:
            return found
        with builder.claim(home, found, wait=True):
            current = store.jobs.find(found.id)
            if current is not None and current.built_at is None:
                builder.discard(store, home, found)


def _add(store: Store, job: Job, options: Options) -> None:
    spec = spec_of(job)
    store.jobs.add(job, {} if spec is None else spec.tags)
    _note_request(store, job, options, job.created_at)


def _note_request(store: Store, job: Job, options: Options, at: datetime) -> None:
    if options.asked is not None:
        store.jobs.note(job.id, EventKind.ASKED, options.asked, at)


def unfinished(store: Store, job: Job) -> Job | None:
    """Return the unfinished job of the same content, or None. Superseded jobs are ignored.

    The job may come from this file or from a file that was moved here.
    """
    current = [other for other in store.jobs.unfinished(job.home) if succession.successor(store, other) is None]
    same = next((other for other in current if other.identity == job.identity), None)
    return same or next((other for other in current if _is_moved(other, job)), None)


def _unfinished(store: Store, job: Job) -> Job | None:
    """Return the job that `unfinished` finds. A moved job is recorded under this file from now on."""
    found = unfinished(store, job)
    is_moved = found is not None and found.identity != job.identity
    return store.jobs.follow(found, job, job.identity) if found is not None and is_moved else found


def earlier_content(
    store: Store, home: Home, config: Config, path: Path, options: Options, now: datetime
) -> Job | None:
    """Return the newest unfinished job of the file's old content, which `submit` supersedes. Raises OrchError."""
    job = draft(path, config, home, options, now)
    if not options.new and unfinished(store, job) is not None:
        return None
    found = [other for other in succession.edited(store, job) if succession.successor(store, other) is None]
    return found[-1] if found else None


def _is_moved(other: Job, job: Job) -> bool:
    # An equal job file elsewhere may mean other documents, unless its folder or its name is the same.
    before, after = Path(other.source), Path(job.source)
    is_near = job.kind is JobKind.BATCH or before.parent == after.parent or before.name == after.name
    is_gone = other.built_at is not None and other.kind is job.kind and is_near
    return is_gone and not before.exists() and other.identity == identity_of(job, series=other.series)


def identity_of(job: Job, *, series: str) -> str:
    """Return a digest of the series, the file's content and the scope."""
    content = _file_digest(Path(job.source)) if job.kind is JobKind.BATCH else json.dumps(job.spec, sort_keys=True)
    limits = Scope.of(job).to_options() | ({AT_ONCE: True} if AT_ONCE in job.options else {})
    return digest(series, content, *([json.dumps(limits)] if limits else []))


def digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    found = sha256()
    try:
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                found.update(part)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from None
    return found.hexdigest()
