"""Finish reasons that servers send, including reasons that show a body is not a complete answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.error_body import read_error_value
from orchestrator.core.json_decoders import json_decoder

FAILED_ENDS = frozenset(
    {
        "abort", "aborted", "error", "insufficient_system_resource", "network_error", "timeout", "time_limit",
        "cancelled", "canceled", "user_cancel", "not_finished", "failed", "failure", "internal_error", "server_error",
        "engine_error", "engine_overloaded", "overloaded", "interrupted", "preempted", "load", "unload",
        "function_call_filter", "malformed_function_call", "malformed_response",
    }
)  # fmt: skip
"""Finish reasons meaning that the server stopped before the answer was complete.

vLLM and SGLang: `abort`, `error`. DeepSeek: `insufficient_system_resource`. OpenRouter and Mistral: `error`. Z.ai:
`network_error`. Cohere: `timeout`, `user_cancel`. TensorRT-LLM: `cancelled`, `not_finished`. Ollama: `load`. Gemini:
`function_call_filter: MALFORMED_FUNCTION_CALL`.
"""
_FAILED_STATUSES = frozenset({"failed", "cancelled", "canceled", "in_progress", "queued"})
"""Values of a response's `status` that mean that the answer is missing or incomplete."""
_BOUNDED = frozenset({"max_output_tokens", "max_tokens", "content_filter"})
"""Reasons for incomplete responses that still count as answers: a limit or a content filter ended them."""
WINDOW_FULL = frozenset(
    {"model_context_window_exceeded", "context_window_exceeded", "model_length", "error_limit", "token_limit"}
)
"""Finish reasons meaning that the context window was full: sending the row again does not help.

Anthropic and Bedrock: `model_context_window_exceeded`. Mistral: `model_length`. Cohere: `ERROR_LIMIT`. watsonx:
`token_limit`.
"""
MAX_WORDS = 200
"""Maximum number of characters that a reason quotes from a server's message."""
_USUAL_ENDS = ("stop", "length", "tool_calls")
_PIECE = "chat.completion.chunk"
_NAMES = ("type", "reason", "finish_reason", "name")
_DEEPEST = 4
"""Maximum depth of objects and lists around a finish reason."""
_ANSWERS = frozenset(
    {
        "choices", "output", "data", "response", "content", "text", "completion", "candidates", "generation",
        "generations", "generated_text", "outputs", "results", "embedding", "embeddings", "predictions",
    }
)  # fmt: skip
"""Names of fields in which servers put an answer."""
_PROMPTED = ("content", "role", "tool_calls")
_ENDED = ("done", "finish_reason")


class ChoiceEnd(msgspec.Struct, frozen=True, gc=False):
    """Fields of a choice that show how it ended."""

    finish_reason: Any = None
    error: Any = None
    index: Any = None


class _Indexed(Protocol):
    @property
    def index(self) -> Any: ...


_Choice = TypeVar("_Choice", bound=_Indexed)


_decode_end = json_decoder(ChoiceEnd).decode


def end_word(reason: Any) -> str | None:
    """Return an answer's finish reason as text, from any shape that servers use. None if there is no reason."""
    for _ in range(_DEEPEST):
        if isinstance(reason, dict):
            reason = next((reason[name] for name in _NAMES if name in reason), None)
        elif isinstance(reason, list):
            reason = reason[0] if reason else None
        else:
            break
    return reason if reason is None or isinstance(reason, str) else str(reason)[:MAX_WORDS]


def end_kind(reason: str | None) -> str:
    """Normalize a finish reason; empty for None.

    `FINISH_REASON_MAX_TOKENS` (Vertex), `FinishReason.MAX_TOKENS` (its enum as text) and `max-tokens` become the
    same. Words after a colon only explain the reason: `content_filter: RECITATION` (Gemini).
    """
    if reason in _USUAL_ENDS:
        return reason
    kind = (reason or "").partition(":")[0].strip().lower().rpartition(".")[2]
    return kind.removeprefix("finish_reason_").replace("-", "_").replace(" ", "_")


def why_unfinished(choices: list[ChoiceEnd] | None, kind: Any, status: Any, details: Any, done: Any) -> str | None:
    """Return why a body is not a complete answer, or None if it is complete.

    `kind` is the body's `object`, `details` its `incomplete_details`. `done` is Ollama's field.
    """
    if done is False:
        return "the answer is a piece of a stream"
    for choice in choices or ():
        if choice.error:
            return f"the answer has an error: {_words(choice.error)}"
        if choice.finish_reason in _USUAL_ENDS:
            continue
        end = end_word(choice.finish_reason)
        if end_kind(end) in FAILED_ENDS:
            return f"the server stopped before the answer was complete (finish_reason {end})"
        if end is None and kind == _PIECE:
            return "the answer is a piece of a stream"
    if status is None and kind != "error":
        return None
    if kind == "error":
        return "the answer is an error object"
    return _unfinished_response(status, details)


def _unfinished_response(status: Any, details: Any) -> str | None:
    if isinstance(status, str) and status in _FAILED_STATUSES:
        return f"the response is not complete (status {status})"
    if status != "incomplete":
        return None
    reason = end_word(details)
    kind = end_kind(reason)
    is_final = kind in _BOUNDED or kind in WINDOW_FULL
    return None if is_final else f"the response is incomplete ({reason or 'no reason given'})"


def _words(error: Any) -> str:
    said = error.get("message") or error.get("code") or error.get("type") if isinstance(error, dict) else error
    return str(said if said else error)[:MAX_WORDS]


def first_choice(choices: Sequence[_Choice]) -> _Choice:
    """Return the choice with index 0, or else the first choice in the list: servers may send choices in any order."""
    return next((choice for choice in choices if choice.index == 0), choices[0])


def error_of(body: bytes | msgspec.Raw, error: Any, base: Any, *, is_answer: bool) -> Any:
    """Return the error in a body, or None. If the whole body is an error in place of an answer, return the decoded
    body.

    `error` and `base` are the body's fields `error` and `base_resp` (MiniMax). `{"detail": …}`, `{"errors": […]}`,
    `{"code": …, "message": …}` and similar bodies may also arrive with status 200.
    """
    if error:
        return error
    if isinstance(base, dict) and base.get("status_code") not in (0, "0", None):
        return {"base_resp": base}
    if is_answer:
        return None
    try:
        fields = msgspec.json.decode(body)
    except JSON_ERRORS:
        return None
    return fields if isinstance(fields, dict) and is_error(fields) else None


def is_error(fields: Mapping[str, Any]) -> bool:
    """True if a body has an error's fields and no answer."""
    if _holds_answer(fields):
        return False
    has_words = fields.get("errors") or fields.get("detail") or read_error_value(fields).message is not None
    return bool(has_words)


def _holds_answer(fields: Mapping[str, Any]) -> bool:
    if any(map(fields.get, _ANSWERS)):
        return True
    message = fields.get("message")
    # A text in `message` is an error's message, unless other fields say how an answer ended.
    names = message if isinstance(message, dict) else fields
    return any(name in names for name in (_PROMPTED if names is message else _ENDED))


def choice_ends(raw: msgspec.Raw) -> list[ChoiceEnd] | None:
    """Return the end of each choice that can be decoded. None if `choices` is not a list."""
    try:
        choices = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except JSON_ERRORS:
        return None
    ends = []
    for choice in choices:
        with suppress(*JSON_ERRORS):
            ends.append(_decode_end(choice))
    return ends
