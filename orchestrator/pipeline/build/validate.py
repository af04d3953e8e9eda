"""Checks of `orch validate`: find every mistake that would fail a submission. Nothing is recorded or sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from orchestrator.core.counts import number_of
from orchestrator.core.errors import InputError, OrchError
from orchestrator.core.model import Job, JobKind
from orchestrator.documents.files import FIELDS
from orchestrator.documents.ignored import Ignored, NotRead
from orchestrator.pipeline import predecessors
from orchestrator.pipeline.build import builder
from orchestrator.pipeline.build.document_mistakes import Askable, ValidationProblem, no_document
from orchestrator.pipeline.build.placeholders import foreign_placeholders
from orchestrator.pipeline.build.ready_batch_file import batch_lines
from orchestrator.pipeline.build.scan import CHUNK, chunks
from orchestrator.pipeline.build.source_checks import check_names, in_two_sources, located
from orchestrator.pipeline.build.submission import (
    Options,
    check_deadline,
    check_output,
    kind_of,
    read_spec,
    sketch,
)
from orchestrator.pipeline.plan.routes import check_eligible, eligibility_of, lost_settings, unpriced
from orchestrator.pipeline.selection import EVERYTHING, Scope, Selection
from orchestrator.settings import known_answers
from orchestrator.settings.backend_packages import hosted_kinds
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.settings.job_file import place_of, schema_hints
from orchestrator.settings.job_spec import JobSpec
from orchestrator.settings.known_answers import Gold
from orchestrator.settings.task_spec import Task
from orchestrator.store import Store

if TYPE_CHECKING:
    from orchestrator.documents import Document, UnreadableDocument

MOST_KINDS = 1000
"""Maximum number of kinds of problems counted separately. Messages that differ only in numbers are one kind."""
MOST_NAMED = 3


class ValidatedFile(Struct, frozen=True):
    """A valid file. `problems` lists why some of its documents would fail.

    `ignored` counts files that were not read; it is None for a batch file. `not_read` names these files on request.
    """

    kind: JobKind
    documents: int
    requests: int
    problems: Sequence[ValidationProblem]
    warnings: Sequence[str]
    ignored: Mapping[str, Any] | None = None
    not_read: Sequence[NotRead] | None = None


class _Read(Struct):
    """Result of reading all documents.

    `expected` is their number, if known beforehand. `known` has the documents that have known answers and were found.
    `names` has some documents' names. `fields` has the names that templates may use.
    """

    documents: int = 0
    expected: int | None = None
    requests: int = 0
    problems: dict[tuple[str, str], ValidationProblem] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    fields: set[str] = field(default_factory=set)
    ignored: Ignored = field(default_factory=Ignored)

    def failure(self, document: str, code: str, message: str) -> None:
        key = code, re.sub(r"\d+", "#", message)
        if key not in self.problems and len(self.problems) == MOST_KINDS:
            key = code, ""
        found = self.problems.setdefault(key, ValidationProblem(code, message))
        if not found.first or found.first[-1] != document:
            found.add(document)  # once, however many tasks it fails


def check_file(
    path: Path, config: Config, now: Callable[[], datetime],
    opened: Callable[[], AbstractContextManager[Store | None]] = nullcontext, *, scope: Scope = EVERYTHING,
    progress: builder.Progress = lambda documents, requests, expected: None, lists: bool = False,
) -> ValidatedFile:  # fmt: skip
    """Check a job file and its documents, or a batch file, and test its output. Raises OrchError with all mistakes.

    `opened` opens the store; it is called only if there is an output or a predecessor. Without a store, orch does not
    recognise its own earlier files. `scope` limits the documents and tasks. With `lists`, the result names the files
    that were not read.
    """
    kind = kind_of(path)
    home = Home(config.home).identity() if Home(config.home).has_identity else ""
    if kind is JobKind.BATCH:
        return _check_batch_file(path, config, scope, now(), home)
    spec = read_spec(path, config)
    scope.check_tasks(spec)
    known = [] if spec.gold is None else known_answers.read(path.parent / spec.gold, known_answers.tasks_of(spec))
    read = _Read(ignored=Ignored(lists=lists))
    askable = Askable(path, spec)
    _fill(read, askable, path, spec, config, {one.document for one in known}, scope, progress)
    job = sketch(path, spec, config, Options(scope=scope), now(), home)
    is_whole = scope == EVERYTHING
    mistakes = [
        *_unaskable(askable, read),
        *_wrong_gold(path, spec, known, read, is_whole=is_whole),
        *_tried(lambda: _routed(config, job)),
        *_tried(lambda: check_deadline(job)),
        *(_tried(lambda: _check_output(opened, job)) if spec.output is not None else ()),
    ]
    if mistakes:
        raise _joined(mistakes)
    absent = _absent(spec, known, read) if is_whole else ()
    of_models = [*_of_models(spec, config), *_of_vectors(spec, config)]
    warnings = [*_warnings(path, spec, read), *_of_backends(config), *of_models, *_of_settings(config, job), *absent]
    warnings += _of_predecessor(opened, spec, home)
    return ValidatedFile(
        kind,
        read.documents,
        read.requests,
        [*read.problems.values()],
        warnings,
        read.ignored.to_json(),
        read.ignored.listed,
    )


def _check_batch_file(path: Path, config: Config, scope: Scope, now: datetime, home: str) -> ValidatedFile:
    selection = Selection(scope)
    ids = (checked.custom_id for checked, _ in batch_lines(path))
    number = sum(selection.takes(custom_id, custom_id) for custom_id in ids)
    selection.check()
    _routed(config, sketch(path, None, config, Options(scope=scope), now, home))
    return ValidatedFile(JobKind.BATCH, number, number, (), [*_of_backends(config)])


def _check_output(opened: Callable[[], AbstractContextManager[Store | None]], job: Job) -> None:
    with opened() as store:
        check_output(store, job)


def _fill(
    read: _Read, askable: Askable, path: Path, spec: JobSpec, config: Config, known: set[str], scope: Scope,
    progress: builder.Progress,
) -> None:  # fmt: skip
    from orchestrator.documents.tables import SeenTexts
    from orchestrator.policy.requests import Builder

    builder, seen = Builder(spec), SeenTexts()
    for index, tasks, document in _chosen(path, spec, config, scope, read):
        read.documents += 1
        read.fields.update(getattr(document, "fields", ()))
        read.ignored.document(document.key, getattr(document, "code", None), getattr(document, "notes", ""))
        for built in builder.asking(tasks).build(document):
            row = built.row
            askable.note(index, built)
            if len(spec.documents) > 1 and not seen.add(row.custom_id):
                raise in_two_sources(path, row.document)
            read.requests += 1
            if row.document in known:
                read.known.add(row.document)
            if len(read.names) < MOST_KINDS:
                read.names.append(row.document)
            if row.problem is not None:
                read.failure(row.document, *row.problem)
        progress(read.documents, read.requests, read.expected)


def _chosen(
    path: Path, spec: JobSpec, config: Config, scope: Scope, read: _Read
) -> Iterator[tuple[int, list[str], Document | UnreadableDocument]]:
    from orchestrator.documents import Readers, listed

    selection = Selection(scope)
    with Readers.of(config.documents) as readers:
        read.expected = check_names(spec, path, readers, scope)
        for index, source in enumerate(spec.documents):
            tasks = scope.tasks_of(spec, source)
            entries = listed(source, path.parent, 0, readers, read.ignored) if tasks else ()
            chosen = (one for one in entries if selection.may_hold(one.key, is_table=one.is_table))
            with located(path, index):
                for part in chunks(chosen, CHUNK):
                    for found, texts in zip(part, readers.read(one.order for one in part), strict=True):
                        for document in texts:
                            if selection.takes(document.key, found.key):
                                yield index, tasks, document
    selection.check()


def _unaskable(askable: Askable, read: _Read) -> Iterator[InputError]:
    mistakes = [*askable.mistakes()]
    if not mistakes and askable.is_unusable:
        why = "; ".join(map(str, [*read.problems.values()][:MOST_NAMED]))
        mistakes = [askable.mistake(("documents",), f"{no_document(read.documents)} can be used: {why}")]
    yield from mistakes


def _wrong_gold(
    path: Path, spec: JobSpec, known: Sequence[Gold], read: _Read, *, is_whole: bool
) -> Iterator[InputError]:
    if not known:
        return
    file = path.parent / str(spec.gold)
    if is_whole and not read.known:
        near = get_close_matches(known[0].document, read.names, 1, 0.3)
        yield InputError(
            f"none of its {len(known):,} known answers is for a document that exists, such as {known[0].document!r}",
            file=file,
            field="document",
            hint=f"write document names as in the results: {near[0]}" if near else None,
        )
    tasks, told = {task.id: task for task in spec.tasks}, set[str]()
    for one in known:
        why = _why_never_right(one, tasks[one.task])
        if why is not None and why not in told:
            told.add(why)
            number = sum(_why_never_right(other, tasks[other.task]) == why for other in known)
            count = f" ({number:,} lines)" if number > 1 else ""
            yield InputError(f"{why}{count}", file=file, field="expect")


def _why_never_right(one: Gold, task: Task) -> str | None:
    schema = task.output_schema
    if isinstance(one.expect, str):
        return None
    if schema is None:
        return f"expects fields of {task.id!r}, which has no schema: its answers are plain text"
    if schema.get("additionalProperties") is False and "properties" in schema:
        strange = sorted(one.expect.keys() - schema["properties"].keys())
        if strange:
            return f"expects {', '.join(map(repr, strange))} of {task.id!r}, and its schema has no such field"
    return None


def _absent(spec: JobSpec, known: Sequence[Gold], read: _Read) -> Iterator[str]:
    absent = list(dict.fromkeys(one.document for one in known if one.document not in read.known))
    if absent:
        named = ", ".join(absent[:MOST_NAMED]) + (" …" if len(absent) > MOST_NAMED else "")
        yield f"{spec.gold} has known answers for {number_of(len(absent), 'document')} not found: {named}"


def _routed(config: Config, job: Job) -> None:
    if config.backends:
        check_eligible(config, job)


def _of_backends(config: Config) -> Iterator[str]:
    for mistake in config.unknown_backends:
        yield f"{mistake.where}: {mistake.reason}"
    if not config.backends:
        yield f"no backend is configured ({config.path or 'there is no orch.toml'}): there is nothing to run it on"


def _of_settings(config: Config, job: Job) -> Iterator[str]:
    """Yield a warning for each model without a price and for task settings that a model refuses.

    The job may run anyway: another backend may take the settings, or the task may allow their loss.
    """
    for backend, said in unpriced(config, job, eligibility_of(config, job)).items():
        yield f"{backend}: no row goes there: {said}"
    for backend, said in lost_settings(config, job).items():
        yield f"{backend}: {said}"


def _of_predecessor(
    opened: Callable[[], AbstractContextManager[Store | None]], spec: JobSpec, home: str
) -> Iterator[str]:
    if spec.after is None:
        return
    with opened() as store:
        try:
            if store is not None:
                predecessors.require(store, home, spec.after)
                return
            told = f"there is no job {spec.after!r}"
        except OrchError as error:
            told = error.message
    yield f"after: {told}: `orch run` and `orch submit` are refused until it exists and has not failed"


def _of_models(spec: JobSpec, config: Config) -> Iterator[str]:
    for alias, ladder in spec.models.items() if config.backends else ():
        names = [ladder] if isinstance(ladder, (str, Mapping)) else ladder
        strange = {backend for one in names if isinstance(one, Mapping) for backend in one} - config.backends.keys()
        if strange:
            known = ", ".join(config.backends)
            yield f"models.{alias}: there is no backend {', '.join(sorted(strange))} (known: {known})"
        for one in names:
            backend, _, model = one.partition(":") if isinstance(one, str) else ("", "", "")
            if model and backend in {*config.backends, *hosted_kinds()}:
                cure = f"write {{{backend}: {model}}} for {model!r} at {backend}"
                yield f"models.{alias}: {one!r} is sent as it is: {cure}"


def _of_vectors(spec: JobSpec, config: Config) -> Iterator[str]:
    """Yield a warning for tasks whose vectors may come from differently named models and not be comparable."""
    for index, task in enumerate(spec.tasks):
        names = {**config.models, **spec.models}.get(task.model)
        if task.kind == "embedding" and isinstance(names, Mapping) and len(set(names.values())) > 1:
            told = ", ".join(f"{name} at {backend}" for backend, name in names.items())
            yield (
                f"tasks[{index}].model: its vectors may come from {told}: they can be compared only if that is one "
                "model; name one backend in `allow` if it is not"
            )


def _tried(check: Callable[[], None]) -> Iterator[OrchError]:
    try:
        check()
    except OrchError as error:
        yield error


def _joined(mistakes: Sequence[OrchError]) -> OrchError:
    first, *rest = mistakes
    first.others = [*first.others, *rest]
    return first


_FILE_NAME = re.compile(r"(?:@|file:/*)?[\w./\\-]+\.(txt|md|jinja2?|j2|ya?ml|json)")


def _warnings(path: Path, spec: JobSpec, read: _Read) -> Iterator[str]:
    from orchestrator.policy.requests import places_text_late

    yield from schema_hints(spec, path)
    yield from foreign_placeholders(path, spec, {*read.fields, *FIELDS, "text"})
    for index, task in enumerate(spec.tasks):
        place = place_of(path, "tasks", index, "prompt")
        if _FILE_NAME.fullmatch(task.prompt):
            yield f"{place}: is sent as it is, a file's name: write the question itself there"
        if places_text_late(task):
            yield (
                f"{place}: {{{{ text }}}} stands after other text, so tasks do not share the engine's prefix cache: "
                "each document is processed once per task; leave {{ text }} out to put it first"
            )
