"""Reuse of answers: of earlier runs, of other jobs, and of other rows of the same job.

Each request has two marks. Its `fingerprint` shows if an outcome of an earlier run of the job file still holds. Its
`cache_key` finds exactly the same request in any job. Earlier answers also limit the length of new answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from types import MappingProxyType

from orchestrator.core import answers, batch_api
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.model import Job, JobId, JobKind, RequestState, Row, Why
from orchestrator.pipeline.plan.routes import models_of, objections
from orchestrator.policy.answer_text import response_json
from orchestrator.policy.max_tokens import bound_from, written_bound
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.requests import custom_id
from orchestrator.policy.row_errors import is_passing
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.settings.model_lists import above, rung_of
from orchestrator.settings.task_spec import AUTO, Task
from orchestrator.store import Store
from orchestrator.store.records import Earlier, EarlierRow

RUNS = 10
"""Maximum number of earlier runs from which a job file's answer lengths are learned."""
REASK = "reask"
"""Job option: ask a row again if its answer is from a model that its aliases no longer name."""
Asked = Callable[[str], Collection[tuple[str, str]]]
"""Returns the backends that may take rows of a model, each with its name for the model."""


def asked_of(config: Config, job: Job) -> Asked:
    """Return the backends that may answer a job's rows, each with its name for the model."""
    models = models_of(config, job)
    usable = config.backends.keys() - objections(config, job).keys()

    @cache
    def places(model: str) -> frozenset[tuple[str, str]]:
        if model not in models:
            return frozenset((backend, model) for backend in usable)  # a batch file may name the model itself
        rungs = (model, *above(model, models))
        names = {(backend, resolve_model(rung, backend, models)) for rung in rungs for backend in usable}
        return frozenset((backend, name) for backend, name in names if name is not None)

    return places


def earlier_runs(store: Store, job: Job) -> list[JobId]:
    """Return the runs of the same job file whose answers may be carried over, the oldest first."""
    if not job.options.get("carry", True):
        return []
    return [other.id for other in reversed(store.jobs.of_series(job.series)) if other.built_at is not None]


def last_run(store: Store, job: Job) -> Job | None:
    """Return the last unlimited run of the same job file that ran to its end, or None."""
    return next((run for run in _whole_runs_before(store, job) if run.ran_to_its_end), None)


def last_asked(store: Store, job: Job) -> JobId | None:
    """Return the run that a build compares its rows with. An unfinished run counts if there is no other."""
    found = last_run(store, job) or next(_whole_runs_before(store, job), None)
    return None if found is None else found.id


def _whole_runs_before(store: Store, job: Job) -> Iterator[Job]:
    for run in store.jobs.of_series(job.series):
        is_before = run.id != job.id and run.created_at <= job.created_at
        if is_before and run.built_at is not None and not run.is_limited:
            yield run


def whys(
    store: Store, job: Job, asked: Asked, last: JobId | None, rows: list[Row],
    known: Mapping[int, str] = MappingProxyType({}),
) -> dict[int, Why]:  # fmt: skip
    """Return the reason why each row without a carried answer is asked, by row number.

    Rows are compared with the run `last`. `known` has the content that an earlier run read from the same bytes, by
    row number; empty if that run could not read them. If the last run had that content, the change comes from another
    way of reading.
    """
    # A part whose text is new is compared with its document.
    of_document = {row.seq: custom_id(row.document, row.task) for row in rows if row.part is not None}
    wanted = {row.custom_id for row in rows} | {*of_document.values()}
    before = store.known.before(last, sorted(wanted)) if last is not None and rows else {}
    answered = Why.UNANSWERED if job.options.get("carry", True) else Why.ASKED
    found = {}
    for row in rows:
        last_row = before.get(row.custom_id) or before.get(of_document.get(row.seq, ""))
        why = _why(row, last_row, answered)
        if job.options.get(REASK) and last_row is not None and is_other_model(last_row.sent_model, asked(row.model)):
            why = Why.MODEL if why is answered else why
        same_bytes = row.seq in known and last_row is not None and known[row.seq] == (last_row.content or "")
        found[row.seq] = Why.READER if same_bytes and why is Why.DOCUMENT else why
    return found


def _why(row: Row, before: EarlierRow | None, answered: Why) -> Why:
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


def to_carry(store: Store, job: Job, asked: Asked, runs: list[JobId], rows: list[Row]) -> dict[str, Earlier]:
    """Return the earlier outcomes that still hold: the fingerprint is the same, and a failure is not temporary."""
    found = store.known.earlier(runs, {row.custom_id: row.fingerprint for row in rows})
    return {
        row.custom_id: known
        for row in rows
        if (known := found.get(row.custom_id)) is not None
        and (known.state is RequestState.SUCCEEDED or not is_passing(known.error_code))
        and may_keep(known, asked, row.model, caches=row.cache_key is not None, reasks=bool(job.options.get(REASK)))
    }


def may_take(known: Earlier, asked: Asked, model: str, *, caches: bool) -> bool:
    """True if a row may take an outcome for the first time.

    Another job's answer must come from a backend and model that the row might be sent to.
    """
    return known.taken_from is None or (caches and known.taken_from in asked(model))


def may_keep(known: Earlier, asked: Asked, model: str, *, caches: bool, reasks: bool) -> bool:
    """True if a row may keep an earlier run's outcome.

    An answer of another job file must be from a backend that the row may use. With `reasks`, it must also be from a
    model that the row would be sent to.
    """
    if known.taken_from is not None:
        is_allowed = any(backend == known.taken_from[0] for backend, _ in asked(model))
        if not (caches and is_allowed):
            return False
    return not reasks or not is_other_model(known.answered_as, asked(model))


def is_other_model(name: str | None, asked: Collection[tuple[str, str]]) -> bool:
    """True if an answer is from a model that the row would not be sent to. `name` is None without an answer."""
    return name is not None and bool(asked) and all(name != model for _, model in asked)


def answered(store: Store, job: Job, asked: Asked, rows: list[Row]) -> dict[str, Earlier]:
    """Return other jobs' answers to exactly the same requests, from backends and models that this job might ask."""
    if not job.options.get("carry", True):
        return {}
    keys = {row.cache_key for row in rows if row.cache_key is not None and asked(row.model)}
    # A job file's answers were checked; a batch file's answers were not.
    answers = store.known.answers(job.home, keys, checked=job.kind is JobKind.DOCUMENTS) if keys else {}
    found: dict[str, Earlier] = {}
    for row in rows:
        for backend, model in sorted(asked(row.model)) if row.cache_key in keys else ():
            if (answer := answers.get((row.cache_key or "", backend, model))) is not None:
                found[row.custom_id] = answer
                break
    return found


def twins(store: Store, job: Job, rows: list[Row]) -> dict[int, int]:
    """Return the rows that repeat another row's request. Maps each row's number to the number of the first row with
    the request.
    """
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
    """Return a function that returns an answer's maximum tokens: set by the task, or learned from earlier runs."""
    runs = [run.id for run in store.jobs.of_series(job.series)[:RUNS]]

    def bound(task: Task, prompt_version: str) -> int:
        if task.max_tokens != AUTO:
            return written_bound(task, prompt_version)
        seen = store.sizes.output_lengths(runs, task.id, prompt_version)
        return bound_from(seen, store.sizes.cut_at(runs, task.id, prompt_version))

    return bound


_decode_line = json_decoder(batch_api.ResultLine).decode


def holding(home: Home, found: Mapping[str, Earlier]) -> dict[str, Earlier]:
    """Return the outcomes whose result lines still hold an answer. Each line is read once.

    An answer whose file is gone is kept, because nothing contradicts it.
    """
    read = {name: known if known.is_read else _read(home, known) for name, known in found.items()}
    return {name: known for name, known in read.items() if known is not None}


def _read(home: Home, known: Earlier) -> Earlier | None:
    assert known.line is not None, "an outcome without a line counts as read"
    shard_id, kind, span = known.line
    with suppress(OSError, *batch_api.JSON_ERRORS), home.results(shard_id, kind).open("rb") as file:
        file.seek(span.offset)
        response = _decode_line(file.read(span.length)).response
        if response is not None and not answers.read_answer(response_json(response)).is_answer:
            return None
        return known.as_read()
    return known
