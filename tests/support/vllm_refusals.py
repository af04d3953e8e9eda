"""What vLLM refuses of a request, in its own words: a table of the fake upstream, written from vllm 0.32's source.

`sampling_params.py` and `entrypoints/openai/chat_completion/protocol.py` check these; unknown fields pass unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
FORMATS = ("text", "json_object", "json_schema", "structural_tag")
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# The field, what it must fulfil, and the words for a value that does not.
_RANGES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("temperature", lambda value: value >= 0, "temperature must be non-negative, got {}."),
    ("temperature", lambda value: value <= 2, "temperature must be in [0, 2], got {}."),
    ("top_p", lambda value: 0 < value <= 1, "top_p must be in (0, 1], got {}."),
    ("presence_penalty", lambda value: -2 <= value <= 2, "presence_penalty must be in [-2, 2], got {}."),
    ("frequency_penalty", lambda value: -2 <= value <= 2, "frequency_penalty must be in [-2, 2], got {}."),
    ("min_p", lambda value: 0 <= value <= 1, "min_p must be in [0, 1], got {}."),
    ("top_k", lambda value: value >= -1, "top_k must be 0 (disable), or at least 1, got {}."),
    ("n", lambda value: value >= 1, "n must be at least 1, got {}."),
    ("max_tokens", lambda value: value >= 1, "max_tokens must be at least 1, got {}."),
    ("max_completion_tokens", lambda value: value >= 1, "max_tokens must be at least 1, got {}."),
    ("top_logprobs", lambda value: value >= -1, "`top_logprobs` must be a positive value or -1."),
)


def refused(body: Json) -> tuple[str, str | None] | None:
    """The words and the parameter that a body of a chat or completion is refused for, None if it is taken."""
    for name, holds, words in _RANGES:
        value = body.get(name)
        if value is not None and _number(value) and not holds(value):
            return words.format(value), name
    stop = body.get("stop")
    if stop == "" or (isinstance(stop, list) and "" in stop):
        return "stop cannot contain an empty string.", "stop"
    if body.get("top_logprobs") and body.get("logprobs") is not True:
        return "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs"
    if body.get("stream_options") and not body.get("stream"):
        return "Stream options can only be defined when `stream=True`.", "stream_options"
    return _form(body) or _tools(body)


def _form(body: Json) -> tuple[str, str | None] | None:
    wanted = body.get("response_format")
    if isinstance(wanted, dict):
        if wanted.get("type") not in FORMATS:
            return f"1 validation error: response_format.type: Input should be one of {FORMATS}", "response_format"
        if wanted["type"] == "json_schema" and not wanted.get("json_schema"):
            words = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
            return words, "response_format"
    outputs = body.get("structured_outputs")
    if isinstance(outputs, dict):
        kinds = [kind for kind in KINDS if outputs.get(kind) is not None]
        if len(kinds) > 1:
            return (
                f"You can only use one kind of structured outputs constraint but multiple are specified: {kinds}",
                None,
            )
        if not kinds:
            return "You must use one kind of structured outputs constraint but none are specified", None
    return None


def _tools(body: Json) -> tuple[str, str | None] | None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools == []:
        words = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        return words, "tools"
    if choice not in (None, "none") and not tools:
        return "When using `tool_choice`, `tools` must be set.", "tool_choice"
    return None
