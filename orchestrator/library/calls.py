"""The functions of `import orchestrator as orch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from pydantic import BaseModel

from orchestrator.core.errors import RowError, UsageError
from orchestrator.library import arguments
from orchestrator.library.answers import AnswerType, Schema, completions, raise_first
from orchestrator.library.client_batches import backend_at, body_of, url_and_address
from orchestrator.library.context import ready
from orchestrator.library.drafts import (
    Budget,
    Deadline,
    Documents,
    FrameDraft,
    JobTerms,
    finish,
    question_of,
    take_in_file,
)
from orchestrator.library.handles import JobHandle, session
from orchestrator.library.job_folders import turn_of, write_requests
from orchestrator.library.progress_views import view_for
from orchestrator.pipeline.succession import Edited
from orchestrator.settings.stored_spec import tasks_of

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

F = TypeVar("F")
M = TypeVar("M", bound=BaseModel)
CHAT = "/v1/chat/completions"


@overload
def frame(
    rows: Any, prompt: str, *, schema: type[M], model: str | None = ...,
    id: str | Sequence[str] | None = ..., text: str | None = ..., name: str | None = ..., prefix: str = ...,
    job: Mapping[str, Any] | None = ..., **task: Any,
) -> FrameDraft[M]: ...  # fmt: skip
@overload
def frame(
    rows: Any, prompt: str, *, schema: Schema | None = ..., model: str | None = ...,
    id: str | Sequence[str] | None = ..., text: str | None = ..., name: str | None = ..., prefix: str = ...,
    job: Mapping[str, Any] | None = ..., **task: Any,
) -> FrameDraft[Any]: ...  # fmt: skip
def frame(
    rows: Any, prompt: str, *, schema: Schema | None = None, model: str | None = None,
    id: str | Sequence[str] | None = None, text: str | None = None, name: str | None = None, prefix: str = "",  # noqa: A002
    job: Mapping[str, Any] | None = None, **task: Any,
) -> FrameDraft[Any]:  # fmt: skip
    """Return a question about every row of a frame, to plan, submit or run. Nothing is sent or spent yet.

    The arguments are those of `orch.map`.
    """
    arguments.of_type("id", id, str | Iterable | None, "a column or a list of columns")
    ids = [id] if isinstance(id, str) else list(dict.fromkeys(id or ()))
    return FrameDraft(question_of(prompt, schema, model, name, job, task), rows, ids, text, prefix)


def map_rows(
    rows: F, prompt: str, *, schema: Schema | None = None, model: str | None = None,
    id: str | Sequence[str] | None = None, text: str | None = None, name: str | None = None, prefix: str = "",  # noqa: A002
    deadline: Deadline | None = None, budget: Budget | None = None, backend: str | None = None,
    raise_on_error: bool = False, progress: bool | None = None, job: Mapping[str, Any] | None = None, **task: Any,
) -> F:  # fmt: skip
    """Ask a question about every row of a frame, wait for the answers, and return the frame with their columns.

    Repeating the call continues the job after a crash, and asks only rows that have no answer yet.

    Args:
        rows: a pandas or polars DataFrame, a pyarrow Table, a datasets Dataset, or a list of dicts.
        prompt: a Jinja2 template that names columns; if it names none, the text column goes before it.
        schema: a pydantic model or a JSON Schema; without one, the answer is text.
        model: an alias of orch.toml; not needed if there is only one.
        id: column or columns that name a row; default: the content of the columns that the prompt uses.
        text: the column that `{{ text }}` means; default: `text`.
        name: name of the job; a later call with this name is its next run.
        prefix: put before the names of the new columns.
        deadline: `8h`, `06:00`, an ISO time, a datetime or a timedelta.
        budget: US dollars, a hard cap.
        backend: use this backend only.
        raise_on_error: raise RowError if a row failed; otherwise failed rows are values.
        progress: show progress; default: only if somebody can see it.
        job: further fields of the job file, such as `models`, `allow` or `tags`.
        task: further fields of the task, such as `max_tokens`, `system` or `retries`.

    Returns:
        A frame of the same kind, in the same order and with the same index, with a column per field of the answers
        (`answer` if they have no fields), `error`, and `cost` in dollars.

    Raises:
        RefusedError: no plan keeps the deadline and the budget.
        InputError, UsageError: a mistake in the call, the frame or orch.toml.
        BackendError, StorageError, JobFailed: see `orchestrator.core.errors`.
    """
    draft = frame(
        rows, prompt, schema=schema, model=model, id=id, text=text, name=name, prefix=prefix, job=job, **task
    )
    found: F = draft.run(
        deadline=deadline, budget=budget, backend=backend, raise_on_error=raise_on_error, progress=progress
    )
    return found


def documents(path: str | Path, **source: Any) -> Documents:
    """Return the documents of a folder, a file, a pattern such as `contracts/**/*.pdf`, or an address.

    `source` has further fields of a job file's `documents`, such as `exclude`, `render` or `text_column`.
    """
    return Documents(path, source)


@overload
def requests(
    params: Iterable[Mapping[str, Any]], *, deadline: Deadline | None = ..., budget: Budget | None = ...,
    backend: str | None = ..., endpoint: Literal["/v1/chat/completions"] = ..., name: str = ...,
    raise_on_error: bool = ..., progress: bool | None = ...,
) -> list[ChatCompletion | RowError]: ...  # fmt: skip
@overload
def requests(
    params: Iterable[Mapping[str, Any]], *, deadline: Deadline | None = ..., budget: Budget | None = ...,
    backend: str | None = ..., endpoint: str, name: str = ..., raise_on_error: bool = ...,
    progress: bool | None = ...,
) -> list[Any]: ...  # fmt: skip
def requests(
    params: Iterable[Mapping[str, Any]], *, deadline: Deadline | None = None, budget: Budget | None = None,
    backend: str | None = None, endpoint: str = CHAT, name: str = "requests", raise_on_error: bool = False,
    progress: bool | None = None,
) -> list[Any]:  # fmt: skip
    """Send requests, given as arguments of OpenAI's clients. Return a ChatCompletion or RowError for each, in order.

    `endpoint` is the requests' path: `/v1/responses` gives Response, `/v1/embeddings` CreateEmbeddingResponse.
    """
    parse = _parser(endpoint)
    arguments.job_name(name)
    if isinstance(params, str | bytes | Mapping):
        raise UsageError("params: give a list of dicts, one for each request", hint="[params] for a single one")
    arguments.of_type("params", params, Iterable, "a list of dicts")
    bodies = (body_of(one) if isinstance(one, Mapping) else one for one in params)
    view = view_for(wanted=progress)
    options = JobTerms(deadline, budget, backend).options(Edited.BESIDE)
    with session() as context:
        with turn_of(context.home, name):
            folder = write_requests(context.home, name, bodies, endpoint)
            if not folder.keys:
                return []
            submission = take_in_file(context, folder, options, view)
        job, _ = finish(context, submission, view)
        by_key = dict(completions(context, job, parse))
    found = [by_key[key] for key in folder.keys]
    if raise_on_error:
        errors = [one if isinstance(one, RowError) else None for one in found]
        raise_first([(f"params[{number}]", error) for number, error in enumerate(errors)])
    return found


def batch(
    method: Callable[..., Any], many: Iterable[Mapping[str, Any]], *, deadline: Deadline | None = None,
    budget: Budget | None = None, raise_on_error: bool = False, progress: bool | None = None,
) -> list[Any]:  # fmt: skip
    """Call a client's method, such as `client.chat.completions.create`, for many keyword arguments as one batch.

    The batch goes to the backend of orch.toml that has the client's address. The client's key is not used. If no
    backend has that address, raises UsageError with the lines to add to orch.toml.
    """
    endpoint, address = url_and_address(method)
    with ready() as context:
        backend = backend_at(context.config, address)
    return requests(
        many, deadline=deadline, budget=budget, backend=backend, endpoint=endpoint, raise_on_error=raise_on_error,
        progress=progress,
    )  # fmt: skip


@overload
def open_job(name: str, *, schema: type[M]) -> JobHandle[M]: ...
@overload
def open_job(name: str, *, schema: Schema | None = ...) -> JobHandle[Any]: ...
def open_job(name: str, *, schema: Schema | None = None) -> JobHandle[Any]:
    """Return a job of this home by its id, the start of its id, or its name (newest run).

    With `schema`, answers are of this type. Otherwise, JSON objects have their fields as attributes. Raises
    UsageError.
    """
    arguments.of_type("open_job", name, str, "the id or name of a job")
    with ready() as context:
        job = context.job(name, tell=False)
        tasks = tasks_of(job)
    if schema is None and len(tasks) == 1:
        schema = tasks[0].output_schema
    is_vector = len(tasks) == 1 and tasks[0].kind == "embedding"
    return JobHandle(job.id, AnswerType(schema, is_vector=is_vector))


def _parser(endpoint: str) -> Callable[[Any], Any]:
    if endpoint == CHAT:
        from openai.types.chat import ChatCompletion

        return lambda body: ChatCompletion.construct(**body)
    if endpoint == "/v1/responses":
        from openai.types.responses import Response

        return lambda body: Response.construct(**body)
    if endpoint == "/v1/embeddings":
        from openai.types import CreateEmbeddingResponse

        return lambda body: CreateEmbeddingResponse.construct(**body)
    if endpoint == "/v1/completions":
        from openai.types import Completion

        return lambda body: Completion.construct(**body)
    raise UsageError(f"endpoint {endpoint}: is not one of a batch", hint=f"{CHAT}, /v1/responses or /v1/embeddings")
