"""Answers that need not be asked for: of earlier runs, of other jobs, and of another row of the same job.

Each request has two marks. Its `fingerprint` says whether the outcome that an earlier run of the same job file has
still holds; its `cache_key` finds the very same request wherever it stands. And what earlier answers say of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from types import MappingProxyType

from orchestrator.core.model import Job, JobId, JobKind, RequestState, Row, Why
from orchestrator.pipeline.plan.routes import models_of, objections
from orchestrator.policy.max_tokens import bound_from, written_bound
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.requests import custom_id
from orchestrator.policy.row_errors import is_passing
from orchestrator.settings.config import Config
from orchestrator.settings.model_lists import above, rung_of
from orchestrator.settings.task_spec import AUTO, Task
from orchestrator.store import Store
from orchestrator.store.records import Earlier, EarlierRow

RUNS = 10
"""So many earlier runs of a job file say how long its answers are."""
Asked = Callable[[str], Collection[tuple[str, str]]]
"""The backends that may take rows of a model, each with its name there."""


def asked_of(config: Config, job: Job) -> Asked:
    """Where rows of a job may be answered, and under which names: there another job's answer must have come from."""
    models = models_of(config, job)
    usable = config.backends.keys() - objections(config, job).keys()

    @cache
    def places(model: str) -> frozenset[tuple[str, str]]:
        if model not in models:
            return frozenset((backend, model) for backend in usable)  # a ready batch file may name the model itself
        rungs = (model, *above(model, models))
        names = {(backend, resolve_model(rung, backend, models)) for rung in rungs for backend in usable}
        return frozenset((backend, name) for backend, name in names if name is not None)

    return places


def earlier_runs(store: Store, job: Job) -> list[JobId]:
    """The runs of the same job file whose answers may be carried over, oldest first."""
    if not job.options.get("carry", True):
        return []
    return [other.id for other in reversed(store.jobs.of_series(job.series)) if other.built_at is not None]


def last_run(store: Store, job: Job) -> JobId | None:
    """The newest whole run of the same job file before this one: what changed, changed since then."""
    runs = store.jobs.of_series(job.series)
    whole = (run.id for run in runs if run.built_at is not None and run.id != job.id and not run.is_limited)
    return next(whole, None)


def whys(
    store: Store, job: Job, last: JobId | None, rows: list[Row], known: Mapping[int, str] = MappingProxyType({})
) -> dict[int, Why]:
    """Why rows that carry nothing over are asked, by their places: each against what the last run made of it.

    `known` are the contents that were found before in the very bytes of rows' documents, by place: where the last run
    had that, another one is their reader's.
    """
    # A part that says something new is known by its document.
    of_document = {row.seq: custom_id(row.document, row.task) for row in rows if row.part is not None}
    wanted = {row.custom_id for row in rows} | {*of_document.values()}
    before = store.known.before(last, sorted(wanted)) if last is not None and rows else {}
    answered = Why.UNANSWERED if job.options.get("carry", True) else Why.ASKED
    found = {}
    for row in rows:
        last_row = before.get(row.custom_id) or before.get(of_document.get(row.seq, ""))
        why = _why(row, last_row, answered)
        same_bytes = row.seq in known and last_row is not None and known[row.seq] == last_row.content
        found[row.seq] = Why.READER if same_bytes and why is Why.DOCUMENT else why
    return found


def _why(row: Row, before: EarlierRow | None, answered: Why) -> Why:
    """`answered` is the word for a row that has an answer, and does not carry it over."""
    if before is None:
        return Why.NEW
    if not before.fingerprint:
        return answered
    if before.fingerprint == row.fingerprint:
        match before.state:
            case RequestState.FAILED:
                return Why.FAILED
            case RequestState.SUCCEEDED:
                return answered
            case RequestState.PENDING | RequestState.CANCELLED | RequestState.EXPIRED:
                return Why.UNANSWERED
    if row.content is None or before.content != row.content:
        return Why.DOCUMENT
    if before.prompt_version != row.prompt_version:
        return Why.PROMPT if before.wording != row.wording else Why.PARAMETERS
    return Why.MODEL if rung_of(before.model)[0] != row.model else Why.READER


def to_carry(store: Store, asked: Asked, runs: list[JobId], rows: list[Row]) -> dict[str, Earlier]:
    """The earlier outcomes that still hold: the same fingerprint, and no failure that may have passed."""
    found = store.known.earlier(runs, {row.custom_id: row.fingerprint for row in rows})
    return {
        row.custom_id: known
        for row in rows
        if (known := found.get(row.custom_id)) is not None
        and (known.state is RequestState.SUCCEEDED or not is_passing(known.error_code))
        and may_take(known, asked, row.model, caches=row.cache_key is not None)
    }


def may_take(known: Earlier, asked: Asked, model: str, *, caches: bool) -> bool:
    """Whether a row of a model may have an earlier outcome: another job's answer, where it might have got that."""
    return known.taken_from is None or (caches and known.taken_from in asked(model))


def answered(store: Store, job: Job, asked: Asked, rows: list[Row]) -> dict[str, Earlier]:
    """The answers that other jobs got to the very same requests, from a backend and model that this one might ask."""
    if not job.options.get("carry", True):
        return {}
    keys = {row.cache_key for row in rows if row.cache_key is not None and asked(row.model)}
    # A task's answers are checked; what answered a ready batch file was not.
    answers = store.known.answers(job.home, keys, checked=job.kind is JobKind.DOCUMENTS) if keys else {}
    found: dict[str, Earlier] = {}
    for row in rows:
        for backend, model in sorted(asked(row.model)) if row.cache_key in keys else ():
            if (answer := answers.get((row.cache_key or "", backend, model))) is not None:
                found[row.custom_id] = answer
                break
    return found


def twins(store: Store, job: Job, rows: list[Row]) -> dict[int, int]:
    """The rows that ask what another row of the job asks, each by its place with the place of the first."""
    keys = {row.cache_key for row in rows if row.cache_key is not None}
    first = store.known.originals(job.id, keys) if keys else {}
    found: dict[int, int] = {}
    for row in rows:
        if row.cache_key is not None:
            place = first.setdefault((row.cache_key, row.model, row.task), row.seq)
            if place != row.seq:
                found[row.seq] = place
    return found


def learned_bound(store: Store, job: Job) -> Callable[[Task, str], int]:
    """How many tokens an answer may have: as a task says, or as earlier runs of the job file say."""
    runs = [run.id for run in store.jobs.of_series(job.series)[:RUNS]]

    def bound(task: Task, prompt_version: str) -> int:
        if task.max_tokens != AUTO:
            return written_bound(task, prompt_version)
        seen = store.sizes.output_lengths(runs, task.id, prompt_version)
        return bound_from(seen, store.sizes.cut_at(runs, task.id, prompt_version))

    return bound
