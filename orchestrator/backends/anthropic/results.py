"""Anthropic's Messages and batch results as OpenAI's chat completions and result lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.backends import lenient, openai_shape
from orchestrator.core.finish_reasons import is_error
from orchestrator.policy import answer_parts

_FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_BILLED_CALLS = ("web_search_requests", "code_execution_requests")
_PARTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
"""The token counts that a usage reports separately."""


def completion(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message of any shape to a chat completion's body, so that no paid answer is lost.

    Extensions: `reasoning_content`, and `other_content` with blocks that have no place in OpenAI's shape. `created`
    is 0, because messages carry no time. An error body remains an error body.
    """
    if is_error(message):
        return dict(message)
    content = message.get("content") or []
    texts, thoughts, calls, others = [], [], [], []
    for block in content if isinstance(content, list) else [content]:
        match block:
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case {"type": "tool_use", "name": name, "input": given}:
                function = {"name": name, "arguments": msgspec.json.encode(given).decode()}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case _ if (text := answer_parts.part_text(block)) is not None:
                texts.append(text)
            case _:
                others.append(block)
    reason = message.get("stop_reason")
    finish = _FINISHES.get(reason, reason) if isinstance(reason, str) else None
    usage = lenient.mapping(message.get("usage"))
    choice = openai_shape.choice_of(texts, thoughts, calls, others, finish)
    return openai_shape.completion_of(
        [choice], _usage(usage), message.get("id"), message.get("model"), usage.get("service_tier")
    )


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    fresh, read, put, output = (lenient.tokens(usage, name) for name in _PARTS)
    lasting = lenient.tokens(lenient.mapping(usage.get("cache_creation")), "ephemeral_1h_input_tokens")
    thinking = lenient.tokens(lenient.mapping(usage.get("output_tokens_details")), "thinking_tokens")
    tools = lenient.mapping(usage.get("server_tool_use"))
    calls = {name: count for name in _BILLED_CALLS if (count := lenient.tokens(tools, name))}
    # Tokens of a compaction or an advisor are billed, but not included in the sums.
    beside = max(0, _iteration_tokens(usage) - fresh - read - put - output)
    return {
        **openai_shape.cached_usage(fresh, read, put, lasting, output),
        "completion_tokens_details": {"reasoning_tokens": thinking},
        **({"server_tool_use": calls} if calls else {}),
        **({"iteration_tokens": beside} if beside else {}),
    }


def _iteration_tokens(usage: Mapping[str, Any]) -> int:
    steps = usage.get("iterations")
    found = map(lenient.mapping, steps) if isinstance(steps, list) else ()
    return sum(lenient.tokens(step, name) for step in found for name in _PARTS)


_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
UNKNOWN_STATUS = 502


def result_line(line: bytes) -> bytes:
    """Return a result line in OpenAI's shape. A line that is not JSON stays unchanged."""
    told = lenient.decode_object(line)
    if told is None:
        return line
    custom_id = told.get("custom_id")
    return openai_shape.line(
        {**result_row(custom_id, told.get("result")), "id": f"batch_req_{lenient.text(custom_id)}"}
    )


def result_row(custom_id: object, result: object) -> dict[str, Any]:
    """Return a row's result as OpenAI's result line."""
    found = lenient.mapping(result)
    match {**found, "type": lenient.word(found.get("type"))}:
        case {"type": "succeeded", "message": dict(message)}:
            return openai_shape.answered_row(custom_id, 200, completion(message))
        case {"type": "succeeded"}:
            return openai_shape.answered_row(custom_id, 200, None)
        case {"type": "errored", "error": told}:
            told = told if isinstance(told, dict) else {"error": {"message": lenient.text(told)}}
            inner = told.get("error")
            error = inner if isinstance(inner, dict) else told
            kind = str(error.get("type") or "error")
            body = {"error": {"message": None, **error, "param": None, "code": cause_of(error) or kind}}
            status = _STATUSES.get(kind, UNKNOWN_STATUS)
            return openai_shape.answered_row(custom_id, status, body, told.get("request_id"))
        case {"type": "canceled" | "cancelled"}:
            return openai_shape.failed_row(custom_id, openai_shape.CANCELLED)
        case {"type": "expired"}:
            return openai_shape.failed_row(custom_id, openai_shape.EXPIRED)
        case _:
            return openai_shape.failed_row(custom_id, openai_shape.UNKNOWN_RESULT)


def cause_of(error: Mapping[str, Any]) -> str | None:
    """Return a code that is more specific than the error's type, or None."""
    match error:
        case {"details": {"error_code": str(code)}}:
            return code
    return None
