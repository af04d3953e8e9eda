"""Stage 0: a command's file becomes a job, or is found to be one already.

The same file again takes up the job that is unfinished; a finished one of which nothing changed sends nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from orchestrator.core.errors import InputError, OutputError, RefusedError, UsageError
from orchestrator.core.events import EventKind
from orchestrator.core.model import NIGHT, Job, JobId, JobKind
from orchestrator.pipeline import predecessors, succession
from orchestrator.pipeline.build import builder, reuse
from orchestrator.pipeline.build.selection import EVERYTHING, Scope
from orchestrator.pipeline.finish import delivery, outputs
from orchestrator.pipeline.finish.delivery import OVERWRITE
from orchestrator.pipeline.gc import disk
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.pipeline.plan.routes import check_eligible, models_of
from orchestrator.pipeline.plan.synchronous_backends import AT_ONCE
from orchestrator.pipeline.submit import canary
from orchestrator.pipeline.submit.budget import SharedBudgets
from orchestrator.policy.planner import Plan
from orchestrator.settings.config import Config
from orchestrator.settings.deadlines import deadline_at
from orchestrator.settings.home import Home
from orchestrator.settings.job_file import lines_of, load
from orchestrator.settings.job_spec import JobSpec
from orchestrator.settings.source_lines import line_of, spell
from orchestrator.settings.stored_spec import spec_of
from orchestrator.store import Store


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line adds to a job. `new` starts another job though one is unfinished or nothing changed.

    With a `scope`, the job asks about that part of its file alone. `overwrite` says that a file in the place of its
    output may go, `after` which job it comes after. Where nobody is there (`unattended`), an output that may be well
    again by itself is waited for. With `at_once`, only these backends are asked, now, whatever the job file says of
    its deadline and of the job that it comes after. `edited` says what becomes of an unfinished job of the file whose
    content was another; None stands for `SUPERSEDE`. `night` is the id of the night that it is made for.
    """

    deadline: str | None = None
    budget: Decimal | None = None
    backend: str | None = None
    new: bool = False
    verify: bool = False
    scope: Scope = EVERYTHING
    overwrite: bool = False
    after: str | None = None
    unattended: bool = False
    at_once: tuple[str, ...] | None = None
    edited: succession.Edited | None = None
    night: int | None = None


class How(StrEnum):
    """What became of a submit."""

    NEW = "new"
    RESUMED = "resumed"
    UNCHANGED = "unchanged"
    WAITING = "waiting"  # recorded; it is built once the job that it comes after has finished well


@dataclass(frozen=True, slots=True)
class Intake:
    """The job that a submit stands for, and how it came to be that one."""

    job: Job
    how: How
    reason: str
    report: builder.BuildReport | None = None
    plan: Plan | None = None


def kind_of(path: Path) -> JobKind:
    """What a file is, told by its ending. Raises UsageError."""
    if path.suffix in (".yaml", ".yml"):
        return JobKind.DOCUMENTS
    if path.suffix == ".jsonl":
        return JobKind.BATCH
    raise UsageError(f"{path}: is neither a job file (.yaml) nor an OpenAI batch file (.jsonl)")


def read_spec(path: Path, config: Config) -> JobSpec:
    """A job file, also checked against the aliases and backends that orch.toml declares. Raises InputError."""
    spec = load(path)
    known = {**config.fleet_models, **config.models, **spec.models}
    for index, task in enumerate(spec.tasks):
        for place, alias in task.aliases.items():
            if alias in known:
                continue
            names = ", ".join(sorted(known)) or "none is declared"
            raise InputError(
                f"the model alias {alias!r} is not declared (known: {names})",
                file=path,
                line=line_of(("tasks", index, *place), lines_of(path)),
                field=spell(("tasks", index, *place)),
                hint=f"add to the job file:  models: {{{alias}: NAME_OF_THE_MODEL}}",
            )
    for name in spec.allow.backends or ():
        if name not in config.backends:
            raise InputError(
                f"there is no backend {name!r} in {config.path or 'orch.toml'}",
                file=path,
                line=line_of(("allow", "backends"), lines_of(path)),
                field="allow.backends",
                hint=f"known: {', '.join(config.backends) or 'none'}",
            )
    if spec.output is not None:
        outputs.check(spec.output)
    return spec


def draft(path: Path, config: Config, home: Home, options: Options, now: datetime) -> Job:
    """The job that a file would make; nothing is recorded. Raises InputError, RefusedError, UsageError."""
    kind = kind_of(path)
    if not path.is_file():
        raise InputError("there is no such file", file=path)
    path = path.absolute()
    if options.backend is not None and config.backends and options.backend not in config.backends:
        known = ", ".join(config.backends)
        raise UsageError(
            f"--backend {options.backend}: there is no such backend in {config.path}", hint=f"known: {known}"
        )
    spec = read_spec(path, config) if kind is JobKind.DOCUMENTS else None
    return _drafted(path, spec, config, home.identity(), options, now)


def sketch(
    path: Path, spec: JobSpec | None, config: Config, options: Options, now: datetime, home_id: str = ""
) -> Job:
    """The job that a file would make, of which only what its spec says matters. Raises UsageError."""
    return _drafted(path.absolute(), spec, config, home_id, options, now)


def _drafted(path: Path, spec: JobSpec | None, config: Config, home_id: str, options: Options, now: datetime) -> Job:
    kind = JobKind.BATCH if spec is None else JobKind.DOCUMENTS
    scope = options.scope
    if spec is not None:
        scope.check_tasks(spec)
    elif scope.tasks:
        raise UsageError(f"--task {scope.tasks[0]}: a ready batch file has no tasks")
    data: dict[str, Any] = spec.model_dump(mode="json", by_alias=True, exclude_none=True) if spec else {}
    name = spec.name if spec else re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem)[:40].strip("-") or "batch"
    series = _digest(home_id, kind, os.path.realpath(path))
    is_at_once = options.at_once is not None
    deadline = options.deadline or (spec.deadline if spec and not is_at_once else None)
    beside = succession.Edited.BESIDE
    extra = {OVERWRITE: options.overwrite, beside: options.edited is beside, NIGHT: options.night}
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
        deadline_at=_deadline(deadline, now),
        budget=options.budget if options.budget is not None else (spec.budget if spec else None),
    )
    return replace(job, identity=_identity(job, series=series))


def _deadline(text: str | None, now: datetime) -> datetime | None:
    if text is None:
        return None
    try:
        return deadline_at(text, now)
    except ValueError as error:
        raise UsageError(f"--deadline: {error}") from None


def check_deadline(job: Job) -> None:
    """For new jobs alone: one that is unfinished is taken up and finished late."""
    if job.deadline_at is not None and job.deadline_at <= job.created_at:
        raise RefusedError(
            f"the deadline {job.deadline_at:%Y-%m-%d %H:%M} UTC has already passed",
            hint="give a later one, in the job file or with --deadline (8h, 06:00)",
        )


def submit(
    store: Store, home: Home, config: Config, path: Path, options: Options, now: Callable[[], datetime],
    progress: builder.Progress,
) -> Intake:  # fmt: skip
    """Record and build a job, or find the one that it is. Raises OrchError; then nothing is left of it."""
    job = draft(path, config, home, options, now())
    check_eligible(config, job)
    spec = spec_of(job)
    before = options.after or (spec.after if spec and options.at_once is None else None)
    if before is not None:
        first, stands = predecessors.require(store, job.home, before)
        if stands is predecessors.Predecessor.OPEN:
            return _queue(store, home, replace(job, options={**job.options, predecessors.AFTER: first.id}), now())
    with ExitStack() as claimed:
        try:
            unfinished = _record(store, home, job, claimed, look=not options.new)
            if unfinished is not None:
                reason = f"job {unfinished.id} of this file is unfinished: resuming where it stopped"
                return Intake(_revised(store, unfinished, job, options, now()), How.RESUMED, reason)
            check_output(store, job, unattended=options.unattended)
            report = builder.build(
                store, home, job, now(), progress, asked=reuse.asked_of(config, job), reading=config.documents,
                models=partial(models_of, config), shortage=partial(disk.shortage, home, config.retention),
            )  # fmt: skip
            same = builder.same_as(store, job, report)
            if same is not None:
                builder.discard(store, home, job)
                return _unchanged(store, same, report, options)
            canary.mark(store, job, now())
            planning = Planning(store, config, job, now(), SharedBudgets(store, config, now).left)
            plan = _fitting(planning)
        except (Exception, KeyboardInterrupt):
            builder.discard(store, home, job)
            raise
        # Behind the clearing away: a commit whose answer was lost may have made the job one that an engine runs.
        store.jobs.mark_built(job.id, now())
    if plan is not None:
        store.forecasts.made(planning.forecasts(plan))
    store.jobs.note(job.id, EventKind.BUILT, str(report), now())
    return Intake(store.jobs.get(job.id), How.NEW, str(report), report, plan)


def check_output(store: Store | None, job: Job, *, unattended: bool = False) -> None:
    """Raises OutputError, with file and line, where the rows could not be put where the job file wants them.

    Where nobody is there, what may be well again by itself is let by: the engine waits for it before a row is asked.
    """
    try:
        delivery.require(store, job)
    except OutputError as error:
        if unattended and error.code.may_pass:
            return
        file, field = Path(job.source), "output"
        told = InputError("", file=file, line=line_of((field,), lines_of(file)), field=field).where
        raise OutputError(error.code, f"{told}: {error.message.removeprefix('output: ')}", hint=error.hint) from error


def _unchanged(store: Store, same: Job, report: builder.BuildReport, options: Options) -> Intake:
    """Nothing is to be asked; rows that the job which has them could not deliver are delivered now."""
    reason = f"nothing changed since job {same.id}: {report.requests:,} rows, none sent"
    if not same.is_undelivered:
        return Intake(same, How.UNCHANGED, reason, report)
    store.jobs.reopen(same.id, **({OVERWRITE: True} if options.overwrite else {}))
    return Intake(store.jobs.get(same.id), How.RESUMED, f"{reason}; they are put where they belong now", report)


def _queue(store: Store, home: Home, job: Job, now: datetime) -> Intake:
    """Record a job that is built once the one that it comes after has finished well."""
    with builder.locked(home.intake_lock, wait=True):
        found = _unfinished(store, job)
        if found is not None and (found.built_at is not None or predecessors.AFTER in found.options):
            return Intake(found, How.RESUMED, f"job {found.id} of this file is unfinished: resuming where it stopped")
        check_deadline(job)
        store.jobs.add(job, _tags(job))
    reason = f"waits for job {job.options[predecessors.AFTER]} to succeed"
    store.jobs.note(job.id, EventKind.WAITING, reason, now)
    return Intake(job, How.WAITING, reason)


def _fitting(planning: Planning) -> Plan | None:
    """The plan of a job that was just built, None where nothing is to be sent.

    Raises RefusedError where it is known not to keep the deadline or the budget, with the nearest that would hold.
    """
    if not planning.work:
        return None
    plan = planning.plan()
    if planning.is_refused(plan):
        nearest = " or ".join(f"{option} {value}" for option, value in plan.verdict.nearest())
        hint = f"what would hold: {nearest}" if nearest else "`orch plan` shows every route in detail"
        raise RefusedError(plan.verdict.reason, hint=hint)
    return plan


def _revised(store: Store, job: Job, wanted: Job, options: Options, now: datetime) -> Job:
    """The unfinished job, with the deadline and budget of this command. Rows that were refused go out again."""
    terms: dict[str, datetime | Decimal] = {}
    if options.deadline is not None and wanted.deadline_at is not None:
        terms["deadline_at"] = wanted.deadline_at
    if options.budget is not None:
        terms["budget"] = options.budget
    if terms:
        store.jobs.revise(job.id, **terms)
        store.jobs.note(
            job.id, EventKind.REVISED, ", ".join(f"{name}: {value}" for name, value in terms.items()), now
        )
    if options.overwrite:
        store.jobs.allow(job.id, **{OVERWRITE: True})
    store.holds.lift(store.holds.of(job.id))
    return store.jobs.get(job.id)


def _record(store: Store, home: Home, job: Job, claimed: ExitStack, *, look: bool) -> Job | None:
    """Record a job and claim its build, or give the built one of the same content that is unfinished.

    Looking and recording are one step under a lock: the same command twice at once is one job. A build that another
    process is at is waited for, one that was cut off is cleared away.
    """
    while True:
        with builder.locked(home.intake_lock, wait=True):
            found = _unfinished(store, job) if look else None
            if found is None:
                check_deadline(job)
                succession.follow_folder(store, job)
                # Claimed before it can be seen: an engine that runs would build it as well.
                claimed.enter_context(builder.claim(home, job))
                store.jobs.add(job, _tags(job))
                succession.supersede(store, job, job.created_at)
                return None
        if found.built_at is not None or predecessors.AFTER in found.options:
            return found
        with builder.claim(home, found, wait=True):
            current = store.jobs.find(found.id)
            if current is not None and current.built_at is None:
                builder.discard(store, home, found)


def _tags(job: Job) -> dict[str, str]:
    spec = spec_of(job)
    return {} if spec is None else spec.tags


def _unfinished(store: Store, job: Job) -> Job | None:
    """The job of the same content that is unfinished, and not superseded: of the same file, or of one moved."""
    current = [other for other in store.jobs.unfinished(job.home) if succession.successor(store, other) is None]
    same = next((other for other in current if other.identity == job.identity), None)
    moved = None if same else next((other for other in current if _is_moved(other, job)), None)
    return same or (moved and store.jobs.follow(moved, job, job.identity))


def earlier_content(
    store: Store, home: Home, config: Config, path: Path, options: Options, now: datetime
) -> Job | None:
    """The newest unfinished job of a file, of another content, that `submit` would supersede. Raises OrchError."""
    job = draft(path, config, home, options, now)
    if not options.new and _unfinished(store, job) is not None:
        return None
    found = [other for other in succession.edited(store, job) if succession.successor(store, other) is None]
    return found[-1] if found else None


def _is_moved(other: Job, job: Job) -> bool:
    """True if a job was made of this very content, in a file of this folder or of this name that is gone now."""
    before, after = Path(other.source), Path(job.source)
    is_near = before.parent == after.parent or before.name == after.name
    is_gone = other.built_at is not None and other.kind is job.kind and is_near
    return is_gone and not before.exists() and other.identity == _identity(job, series=other.series)


def _identity(job: Job, *, series: str) -> str:
    """What the content of a job's file, and the part of it that is asked, are in a series."""
    content = _file_digest(Path(job.source)) if job.kind is JobKind.BATCH else json.dumps(job.spec, sort_keys=True)
    limits = Scope.of(job).to_options() | ({AT_ONCE: True} if AT_ONCE in job.options else {})
    return _digest(series, content, *([json.dumps(limits)] if limits else []))


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    digest = sha256()
    try:
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from None
    return digest.hexdigest()
