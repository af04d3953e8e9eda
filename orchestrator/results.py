"""Result lines -> outcomes, outputs checked; and outcomes -> merged rows. Pure, but for the lines it reads.

A result file may hold anything: rows in any order, twice, of other batches, broken. What it says of a row is told
by `outcome`; what it does not say is the pipeline's to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import wire
from orchestrator.model import FinishedRow, Outcome, RequestState, Span, Usage

NOT_EXECUTED = frozenset({"batch_expired", "batch_cancelled"})
MAX_MESSAGE = 500

_decode_line = msgspec.json.Decoder(wire.ResultLine).decode


@dataclass(frozen=True, slots=True)
class Found:
    """One line of a result file; `line` is None where it is no result line."""

    span: Span
    line: wire.ResultLine | None


@dataclass(frozen=True, slots=True)
class NotExecuted:
    """A row that the backend did not bring to an end: `batch_expired` or `batch_cancelled`.

    `upstream_seconds` is what it took of the upstream before it was taken back.
    """

    code: str
    upstream_seconds: float = 0.0


def read(path: Path) -> Iterator[Found]:
    """The lines of a result file; a file that is not there has none. Raises OSError."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for _, offset, raw in wire.lines(file):
            try:
                line = _decode_line(raw)
            except wire.NO_JSON:
                line = None
            yield Found(Span(offset, len(raw)), line)


class OutputCheck:
    """What the answers to a task must be: not empty, and where the task has a schema, JSON that fits it."""

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        self._validate: Callable[[Any], str | None] | None = None
        if schema is not None:
            from jsonschema import Draft202012Validator

            validator = Draft202012Validator(schema)

            def first_error(value: Any) -> str | None:
                error = next(iter(validator.iter_errors(value)), None)
                return None if error is None else f"{'/'.join(map(str, error.path)) or 'the answer'}: {error.message}"

            self._validate = first_error

    def problem(self, answer: Answer) -> tuple[str, str] | None:
        """`(code, message)` of what is wrong with an answer, or None."""
        if answer.text is None or not answer.text.strip():
            if answer.has_other:
                return None
            if answer.finish_reason == "length":
                return "truncated", "the answer ended at max_tokens before it began; raise max_tokens"
            return "empty_answer", "the model answered with nothing"
        if self._validate is None:
            return None
        try:
            value = msgspec.json.decode(answer.text)
        except wire.NO_JSON as error:
            if answer.finish_reason == "length":
                return "truncated", "the answer ended at max_tokens before its JSON was complete; raise max_tokens"
            return "invalid_json", _short(f"the answer is no JSON: {error}")
        try:
            wrong = self._validate(value)
        except RecursionError:
            wrong = "the answer is nested too deeply to be checked"
        return None if wrong is None else ("schema_mismatch", _short(wrong))

    @property
    def parses(self) -> bool:
        """Whether answers are JSON."""
        return self._validate is not None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a body says. `has_other`: tool calls, embeddings or the like stand in place of text."""

    text: str | None
    finish_reason: str | None
    has_other: bool


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    data: Any = None
    output: Any = None


def answer_of(body: msgspec.Raw) -> Answer:
    """Text and end of an answer's body: chat completions, completions, responses, embeddings, anything else."""
    try:
        parsed = msgspec.json.decode(body, type=_Body)
    except wire.NO_JSON:
        return Answer(None, None, False)
    if parsed.choices:
        choice = parsed.choices[0]
        if choice.message is not None:
            return Answer(choice.message.content, choice.finish_reason, bool(choice.message.tool_calls))
        return Answer(choice.text, choice.finish_reason, False)
    if isinstance(parsed.output, list):
        parts = [part for item in parsed.output if isinstance(item, dict) for part in item.get("content") or ()]
        text = "".join(str(part["text"]) for part in parts if isinstance(part, dict) and part.get("text"))
        return Answer(text or None, None, not text)
    return Answer(None, None, parsed.data is not None)


class _ErrorBody(msgspec.Struct):
    error: Any = None


def outcome(seq: int, kind: str, found: Found, check: OutputCheck | None) -> Outcome | NotExecuted:
    """What a result line says of its row. `found.line` must be a result line."""
    line = found.line
    assert line is not None
    if line.response is None:
        code, message = _error(line.error)
        if code in NOT_EXECUTED:
            return NotExecuted(code, line.orch.upstream_seconds if line.orch else 0.0)
        return _failed(seq, kind, found, line, code, message)
    response = line.response
    if not 200 <= response.status_code < 300:
        said, message = _error_in(response.body, line.error)
        status = f"http_{response.status_code}"
        # Where the status says that it may pass, no word of the provider's may hide it.
        code = status if said is None or is_passing(status) else said
        return _failed(seq, kind, found, line, code, message)
    return _answered(seq, kind, found, line, response.body, check)


def _answered(
    seq: int, kind: str, found: Found, line: wire.ResultLine, body: msgspec.Raw, check: OutputCheck | None
) -> Outcome:
    try:
        usage, model = wire.read_answer(body)
    except wire.NO_JSON:
        return _failed(seq, kind, found, line, "invalid_response", "the answer's body is no JSON object")
    problem = check.problem(answer_of(body)) if check is not None else None
    orch = line.orch
    return Outcome(
        seq,
        RequestState.SUCCEEDED if problem is None else RequestState.FAILED,
        kind,
        found.span,
        Usage(usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens),
        _short(model) if model is not None else None,
        orch.upstream if orch else None,
        orch.latency_ms if orch else None,
        orch.upstream_seconds if orch else 0.0,
        *(problem or (None, None)),
    )


def _failed(seq: int, kind: str, found: Found, line: wire.ResultLine, code: str, message: str) -> Outcome:
    orch = line.orch
    return Outcome(
        seq,
        RequestState.FAILED,
        kind,
        found.span,
        upstream=orch.upstream if orch else None,
        latency_ms=orch.latency_ms if orch else None,
        upstream_seconds=orch.upstream_seconds if orch else 0.0,
        error_code=_short(code),
        error_message=_short(message),
    )


def _error(error: Any) -> tuple[str, str]:
    inner = _inner(error)
    if isinstance(inner, dict):
        return str(inner.get("code") or inner.get("type") or "error"), str(inner.get("message") or "no message")
    return "error", "the backend gave neither an answer nor an error" if inner is None else str(inner)


def _error_in(body: msgspec.Raw, beside: Any) -> tuple[str | None, str]:
    """Code and message of a body that is no answer, or of the line's `error` (`vllm run-batch` puts them there).

    A code that is a number says no more than the status.
    """
    try:
        found = _inner(msgspec.json.decode(body, type=_ErrorBody).error or beside)
    except wire.NO_JSON:
        found = _inner(beside)
    if isinstance(found, dict):
        code = found.get("code")
        return code if isinstance(code, str) and code else None, str(found.get("message") or "no message")
    return None, "no error message" if found is None else str(found)


def _inner(error: Any) -> Any:
    """The error object, also where it is wrapped once more in `{"error": ...}`."""
    return error["error"] if isinstance(error, dict) and error.get("error") else error


def _short(text: str) -> str:
    """What a report shows and every database takes: Postgres knows no NUL."""
    text = text.replace("\0", "\ufffd")
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def merged_row(row: FinishedRow, line: bytes | None, check: OutputCheck | None) -> bytes:
    """One line of the merged result: identity, outcome, parsed output, and where it all comes from."""
    output: Any = None
    finish_reason = None
    if line is not None:
        response = _decode_line(line).response
        if response is not None and 200 <= response.status_code < 300:
            answer = answer_of(response.body)
            output, finish_reason = answer.text, answer.finish_reason
            if check is not None and check.parses and row.state is RequestState.SUCCEEDED and answer.text:
                with suppress(*wire.NO_JSON):  # it was JSON when it was checked, but the recursion limit moves
                    output = msgspec.json.decode(answer.text)
            elif answer.text is None:
                output = response.body
    error = None if row.error_code is None else {"code": row.error_code, "message": row.error_message}
    return msgspec.json.encode(
        {
            "custom_id": row.custom_id,
            "document": row.document,
            "task": row.task,
            "status": row.state,
            "output": output,
            "error": error,
            "provenance": _provenance(row, finish_reason),
        }
    )


def _provenance(row: FinishedRow, finish_reason: str | None) -> dict[str, Any]:
    return {
        "backend": row.backend,
        "upstream": row.upstream,
        "model": row.answered_by or row.model,
        "batch_id": row.batch_id,
        "attempt": row.attempt + 1,
        "tokens": {
            "input": row.usage.input_tokens,
            "cached": row.usage.cached_tokens,
            "output": row.usage.output_tokens,
        },
        "cost_usd": f"{row.cost:f}",
        "latency_ms": row.latency_ms,
        "finish_reason": finish_reason,
        "prompt_version": row.prompt_version,
        "document_cut_from_tokens": row.cut_from_tokens,
        "carried_from": row.carried_from,
    }


class _Plain(msgspec.Struct):
    """A result line as OpenAI writes it: what else our own server put there falls away."""

    id: msgspec.Raw = msgspec.Raw(b"null")
    custom_id: msgspec.Raw = msgspec.Raw(b"null")
    response: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")


_decode_plain = msgspec.json.Decoder(_Plain).decode


def batch_row(row: FinishedRow, line: bytes | None) -> bytes:
    """One line as OpenAI's output and error files have it."""
    if line is not None:
        return msgspec.json.encode(_decode_plain(line))
    error = {"code": row.error_code or row.state, "message": row.error_message or f"This request is {row.state}."}
    return msgspec.json.encode(
        {"id": f"batch_req_{row.seq}", "custom_id": row.custom_id, "response": None, "error": error}
    )


_PASSING = frozenset({"upstream_error", "batch_expired", "batch_cancelled", "missing_result", "budget_exhausted"})


def is_passing(code: str | None) -> bool:
    """Whether a failure may go away by itself, so that another night should try the row again."""
    return code in _PASSING or bool(code and code.startswith(("http_5", "http_429", "http_408")))
