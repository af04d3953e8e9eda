"""Questions about a frame or documents, before they become jobs. They can be planned, submitted or run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from jinja2.defaults import DEFAULT_NAMESPACE
from msgspec import Struct, field
from pydantic import BaseModel

from orchestrator.core import addresses
from orchestrator.core.clock import now
from orchestrator.core.errors import InputError, RequestRefused, UsageError
from orchestrator.core.model import Job
from orchestrator.core.near_names import meant
from orchestrator.core.templates import TemplateProblem, template
from orchestrator.core.term_words import TermWords
from orchestrator.daemon.lock import running_daemon
from orchestrator.library import arguments
from orchestrator.library.answers import (
    Answers,
    AnswerType,
    EndedRow,
    Schema,
    answer_columns,
    answer_rows,
    finished_lines,
    raise_first,
)
from orchestrator.library.context import Context
from orchestrator.library.detached_daemon import daemon_of
from orchestrator.library.frames import frame_of
from orchestrator.library.handles import JobHandle, see_through, session
from orchestrator.library.job_folders import KEY, ROWS, JobFolder, name_prefix, turn_of, write_documents, write_frame
from orchestrator.library.plan_reports import PlanReport
from orchestrator.library.progress_views import LogView, log, view_for
from orchestrator.pipeline.build.rehearsal import rehearse
from orchestrator.pipeline.build.submission import How, Options, Submission
from orchestrator.pipeline.build.submission import submit as take_in
from orchestrator.pipeline.succession import Edited
from orchestrator.settings.config import Config
from orchestrator.settings.corrections import LONGEST_NAME
from orchestrator.settings.job_spec import MAX_BUDGET

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Deadline = str | datetime | timedelta
Budget = Decimal | int | float | str
TASK = "answer"
OWN_COLUMNS = ("error", "cost")
"""Columns that orch adds to a frame, besides the answers' columns."""
TEXT = "text"
ARGUMENTS = ("schema", "model", "id", "text", "name", "prefix", "job", "progress", "raise_on_error", *arguments.TERMS)
"""Arguments of `orch.map`, for suggestions to misspelt arguments."""
_WILDCARD = re.compile(r"[*?\[]")


class JobTerms(Struct, frozen=True):
    """Deadline, budget and backend of a job; None for a term that the caller leaves open."""

    deadline: Deadline | None = None
    budget: Budget | None = None
    backend: str | None = None

    def options(self, edited: Edited | None = None) -> Options:
        """Return the terms as options of a submission. Raises UsageError."""
        deadline = arguments.deadline_text(self.deadline)
        try:
            budget = None if self.budget is None else Decimal(str(self.budget))
        except ArithmeticError:
            budget = Decimal("nan")
        if budget is not None and not (budget.is_finite() and 0 <= budget <= MAX_BUDGET):
            raise UsageError(f"budget: {self.budget!r} is not an amount of dollars up to {MAX_BUDGET:,}")
        return Options(deadline, budget, self.backend, edited=edited, words=TermWords.ARGUMENTS)


class Question(Struct, Generic[T], frozen=True):
    """A prompt, the type of its answers, its model's alias, and further fields of the task and the job file."""

    prompt: str
    type: AnswerType[T]
    model: str | None
    name: str | None
    task: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)

    @property
    def job_name(self) -> str:
        """Name of the job. If the caller gave none, it comes from the answers' type."""
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", self.type.name or "")
        return self.name or re.sub(r"[^a-z0-9]+", "-", spaced.lower()).strip("-")[:LONGEST_NAME] or "map"

    def spec(self, config: Config, source: Mapping[str, Any], prompt: str) -> dict[str, Any]:
        """Return the job file that asks this question about a source. Raises UsageError."""
        task: dict[str, Any] = {"id": TASK, "model": self._model(config), "prompt": prompt}
        if self.type.json_schema is not None and self.task.get("kind") != "classify":
            task["schema"] = self.type.json_schema
        task |= {name: value for name, value in self.task.items() if value is not None}
        return {"name": self.job_name, "documents": [source], "tasks": [task], **self.job}

    def _model(self, config: Config) -> str:
        names = sorted({*config.fleet_models, *config.models, *self.job.get("models", {})})
        if self.model in names:
            return str(self.model)
        if self.model is None and len(names) == 1:
            return str(names[0])
        if self.model is None:
            message = "model: say which alias answers"
        else:
            message = f"model: the alias {self.model!r} is not declared"
        alias = self.model or "small"
        key = alias if re.fullmatch(r"[A-Za-z0-9_-]+", alias) else json.dumps(alias)
        declare = f'write into {config.path or "orch.toml"}:\n  [models]\n  {key} = "NAME_OF_THE_MODEL"'
        known = f"known: {', '.join(names)}" if names else declare
        raise UsageError(message, hint=(self.model and meant(self.model, names)) or known)


class _Draft(Generic[T]):
    def __init__(self, question: Question[T]) -> None:
        self._question = question
        self._is_named = question.name is not None
        self._edited = None if self._is_named else Edited.BESIDE  # a call must not end another call's job

    def plan(
        self, *, deadline: Deadline | None = None, budget: Budget | None = None, backend: str | None = None,
    ) -> PlanReport:  # fmt: skip
        """Return where the rows would go, at what cost and by when. Sends and spends nothing."""
        options = JobTerms(deadline, budget, backend).options(self._edited)
        with session() as context:
            store, home, config, view = context.store, context.home, context.config, view_for(wanted=False)
            with turn_of(home, self._question.name):
                file = self._written(context).file
                return PlanReport.of(rehearse(store, home, config, file, options, now, view.reading))

    def submit(
        self, *, deadline: Deadline | None = None, budget: Budget | None = None, backend: str | None = None,
        daemon: bool = True, progress: bool | None = None,
    ) -> JobHandle[T]:  # fmt: skip
        """Queue the job and return it. The home's daemon runs the job, and is started if none runs.

        With `daemon=False`, the job is only queued; `JobHandle.runner` says what will run it. Raises RefusedError if
        the deadline has passed, or every plan costs more than the budget.
        """
        options = JobTerms(deadline, budget, backend).options(self._edited)
        with session() as context:
            view = view_for(wanted=progress)
            submission, _ = self._taken_in(context, options, view)
            view.stop()
            if submission.how is How.UNCHANGED:
                runner = "nothing changed: its rows are there"
            elif daemon:
                runner = f"{daemon_of(context.home)} runs it"
            else:
                holder = running_daemon(context.home)
                runner = f"{holder} runs it" if holder else "queued: `orch up`, or wait(), runs it"
            view.say(f"orch: {submission.job.id}: {submission.reason}; {runner}")
            return JobHandle(submission.job.id, self._question.type, runner)

    def _answers(self, terms: JobTerms, view: LogView) -> tuple[Answers[T], JobFolder]:
        options = terms.options(self._edited)
        with session() as context:
            submission, folder = self._taken_in(context, options, view)
            job, is_merged = finish(context, submission, view)
            rows = list(
                answer_rows(finished_lines(context, job, is_merged=is_merged), self._question.type, name_prefix(job))
            )
        return Answers(rows, self._question.type), folder

    def _taken_in(self, context: Context, options: Options, view: LogView) -> tuple[Submission, JobFolder]:
        with turn_of(context.home, self._question.name):
            folder = self._written(context)
            return take_in_file(context, folder, options, view), folder

    def _written(self, context: Context) -> JobFolder:
        raise NotImplementedError


def take_in_file(context: Context, folder: JobFolder, options: Options, view: LogView) -> Submission:
    """Create or find the job of a folder. Log a warning if its plan breaks a term. Raises OrchError."""
    submission = take_in(context.store, context.home, context.config, folder.file, options, now, view.reading)
    if submission.plan is not None and not submission.plan.verdict.holds:
        log.warning("%s: %s", submission.job.id, submission.plan.verdict.reason)
    return submission


def finish(context: Context, submission: Submission, view: LogView) -> tuple[Job, bool]:
    """Run a job to its end. Return the job, and True if its merged rows were just made.

    Rows that a backend refuses for a shared reason fail with the backend's message, so that all other rows are
    returned. Raises RequestRefused if no row has an answer.
    """
    store, refused = context.store, None
    view.say(f"orch: {submission.job.id}: {submission.reason}")
    while True:
        try:
            job = see_through(context, submission.job, view)
            break
        except RequestRefused as error:
            refused = error
            if not sum([store.holds.end(hold, now()) for hold in store.holds.of(submission.job.id)]):
                raise
    if refused is not None and not store.jobs.counts([job.id])[job.id].succeeded:
        cure = "correct the model, the field or the backend, and call again: that asks these rows again"
        raise RequestRefused(refused.message, hint=cure, code=refused.code or "", job_id=job.id, holds=refused.holds)
    return job, submission.job.finished_at is None


class DocumentDraft(_Draft[T]):
    """A question about documents that is not a job yet."""

    def __init__(self, question: Question[T], source: Mapping[str, Any]) -> None:
        super().__init__(question)
        self._source = source

    def run(
        self, *, deadline: Deadline | None = None, budget: Budget | None = None, backend: str | None = None,
        raise_on_error: bool = False, progress: bool | None = None,
    ) -> Answers[T]:  # fmt: skip
        """Ask the question, wait until every document has an outcome, and return the rows."""
        answers, _ = self._answers(JobTerms(deadline, budget, backend), view_for(wanted=progress))
        if raise_on_error:
            answers.raise_failed()
        return answers

    def _written(self, context: Context) -> JobFolder:
        spec = self._question.spec(context.config, self._source, self._question.prompt)
        return write_documents(context.home, self._question.job_name, spec, is_named=self._is_named)


class Documents:
    """Documents to ask a question about, as returned by `orch.documents`."""

    def __init__(self, path: str | Path, source: Mapping[str, Any]) -> None:
        from orchestrator.settings.job_spec import DocumentSource

        arguments.of_type("documents", path, str | Path, "a path, a pattern or an address")
        if not str(path):
            raise UsageError("documents: the path is empty", hint='write "." for the working folder')
        known = arguments.known_fields(source, DocumentSource, "source of documents")
        self._source = {**_located(str(path)), **known}

    @overload
    def map(
        self, prompt: str, *, schema: type[M], model: str | None = ..., name: str | None = ...,
        job: Mapping[str, Any] | None = ..., **task: Any,
    ) -> DocumentDraft[M]: ...  # fmt: skip
    @overload
    def map(
        self, prompt: str, *, schema: Schema | None = ..., model: str | None = ..., name: str | None = ...,
        job: Mapping[str, Any] | None = ..., **task: Any,
    ) -> DocumentDraft[Any]: ...  # fmt: skip
    def map(
        self, prompt: str, *, schema: Any = None, model: str | None = None, name: str | None = None,
        job: Mapping[str, Any] | None = None, **task: Any,
    ) -> DocumentDraft[Any]:  # fmt: skip
        """Return a question about every document. Nothing is read, sent or spent yet. See `orch.map`."""
        return DocumentDraft(question_of(prompt, schema, model, name, job, task), self._source)


def question_of(
    prompt: str, schema: Any, model: str | None, name: str | None, job: Mapping[str, Any] | None,
    task: Mapping[str, Any],
) -> Question[Any]:  # fmt: skip
    """Return a question from a call's arguments. Raises UsageError."""
    from orchestrator.settings.task_spec import Task, labels_schema

    arguments.of_type("prompt", prompt, str, "a text")
    if name is not None:
        arguments.job_name(name)
    fields = arguments.job_fields({} if job is None else job)
    task = arguments.known_fields(task, Task, "task", ARGUMENTS)
    is_vector = task.get("kind") == "embedding"
    if task.get("kind") == "classify" and task.get("labels"):
        schema = labels_schema(task["labels"])
    type_: AnswerType[Any] = AnswerType(schema, is_vector=is_vector)
    return Question(prompt, type_, model, name, task, fields)


def _located(path: str) -> dict[str, Any]:
    if addresses.is_address(path):
        return {"path": path}
    parts = Path(path).expanduser().absolute().parts
    wild = next((place for place, part in enumerate(parts) if _WILDCARD.search(part)), None)
    if wild is None or Path(path).exists():
        return {"path": str(Path(*parts))}
    return {"path": str(Path(*parts[:wild])), "include": ["/".join(parts[wild:])]}


class FrameDraft(_Draft[T]):
    """A question about the rows of a frame, which is not a job yet."""

    def __init__(
        self, question: Question[T], rows: Any, id_columns: Sequence[str], text: str | None, prefix: str
    ) -> None:
        super().__init__(question)
        self._frame = frame_of(rows)
        arguments.of_type("prefix", prefix, str, "a text")
        arguments.of_type("text", text, str | None, "the name of a column")
        for column in id_columns:
            arguments.of_type("id", column, str, "the name of a column")
        if own := [name for name in question.type.fields() if name in OWN_COLUMNS]:
            raise UsageError(
                f"schema: the field {own[0]!r} has the name of a column that orch adds",
                hint=f"give the field another name, such as {own[0]}_, with the alias {own[0]!r}",
            )
        self._prefix = prefix
        self._id_columns = id_columns
        self._prompt, self._text, self._used = self._columns(text)

    def run(
        self, *, deadline: Deadline | None = None, budget: Budget | None = None, backend: str | None = None,
        raise_on_error: bool = False, progress: bool | None = None,
    ) -> Any:  # fmt: skip
        """Ask the question, wait until every row has an outcome, and return the frame with the answers' columns.

        Raises UsageError if the frame already has a column with the name of a new column.
        """
        names = [*self._question.type.fields(), *OWN_COLUMNS]
        if taken := [name for name in names if f"{self._prefix}{name}" in self._frame.columns]:
            name = f"{self._prefix}{taken[0]}"
            raise UsageError(f"the frame has a column {name!r} already", hint="prefix= renames the new ones")
        if self._is_empty():
            return self._frame.with_columns(answer_columns([], self._question.type, self._prefix))
        answers, folder = self._answers(JobTerms(deadline, budget, backend), view_for(wanted=progress))
        rows = _in_order(answers, folder.keys)
        if raise_on_error:
            places = map(self._row_name, range(len(rows)), folder.keys)
            raise_first([(place, row.error) for place, row in zip(places, rows, strict=True)])
        return self._frame.with_columns(answer_columns(rows, self._question.type, self._prefix))

    def _written(self, context: Context) -> JobFolder:
        if self._is_empty():
            raise InputError("the frame has no rows", hint="run() returns it with its new columns")
        source = {"path": ROWS, "text_column": self._text or KEY, "id_column": KEY}
        question = self._question
        return write_frame(
            context.home, question.job_name, question.spec(context.config, source, self._prompt),
            self._frame.records(self._used), self._id_columns, self._text, is_named=self._is_named,
        )  # fmt: skip

    def _columns(self, text: str | None) -> tuple[str, str | None, list[str]]:
        """Return the prompt, the column that becomes the document's text (or None), and the columns to write.

        Raises InputError for a wrong template or column.
        """
        prompt, there = self._question.prompt, self._frame.columns
        named = _variables(prompt, "prompt") | _variables(str(self._question.task.get("system") or ""), "system")
        known = [*there, TEXT] if text is not None else there
        if not there and self._is_empty():
            return prompt, None, []  # the columns of an empty list are unknown
        for name in sorted(named | {*self._id_columns} | ({text} if text else set())):
            if name not in known and name != "row":
                hint = meant(name, known) or f"its columns: {', '.join(there) or 'none with a name'}"
                where = "text" if name == text else "prompt" if name in named else "id"
                raise InputError(f"the frame has no column {name!r}", field=where, hint=hint)
        for name in DEFAULT_NAMESPACE.keys() & {*there}:
            if re.search(rf"\{{\{{-?\s*{name}\b(?!\s*\()", prompt):
                raise InputError(
                    f"the column {name!r} has the name of a function of Jinja2",
                    field="prompt",
                    hint="rename the column",
                )
        if KEY in named:
            raise InputError(f"the column {KEY!r} has the name of orch's own", field="prompt", hint="rename it")
        column = text or (TEXT if TEXT in there else None)
        if not _variables(prompt, "prompt"):
            if column is None:
                raise InputError(
                    "the prompt names no column, and the frame has no column `text`", field="prompt",
                    hint="write {{ COLUMN }} where its value belongs, or say text=COLUMN",
                )  # fmt: skip
        elif TEXT not in named:
            # Mentioning `text` in the prompt keeps orch from putting the document before it.
            prompt, column = f"{{% set {KEY} = text %}}{prompt}", None
        used = (named - {TEXT}) | {*self._id_columns} | ({column} if column else set())
        if repeated := [name for name in used if there.count(name) > 1]:
            raise InputError(
                f"the frame has two columns {repeated[0]!r}", field="prompt", hint="give them different names"
            )
        return prompt, column, [name for name in there if name in used]

    def _row_name(self, number: int, key: str) -> str:
        return f"{self._frame.row_name(number)}, id {key!r}" if self._id_columns else self._frame.row_name(number)

    def _is_empty(self) -> bool:
        return next(iter(self._frame.records([])), None) is None


def _in_order(answers: Sequence[EndedRow[T]], keys: Sequence[str]) -> list[EndedRow[T]]:
    """Return the rows in the order of a frame's keys.

    An unreadable row, for example an oversized row, has lost its key. Such rows take the missing keys in turn.
    """
    by_key = {row.document: row for row in answers}
    wanted = {*keys}
    keyless = iter([row for key, row in by_key.items() if key not in wanted])
    return [by_key[key] if key in by_key else next(keyless) for key in keys]


def _variables(source: str, what: str) -> frozenset[str]:
    try:
        return template(source).variables
    except TemplateProblem as problem:
        raise InputError(f"is not a Jinja2 template: {problem.message}", field=what) from None
