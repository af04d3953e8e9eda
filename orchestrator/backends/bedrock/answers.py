"""Converts Converse's answers and result lines to OpenAI's shape. Pure.

Sources: botocore 1.43 (service-2.json of bedrock-runtime), recorded answers, AWS's page on results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.backends import lenient, openai_shape
from orchestrator.backends.bedrock.requests import custom_id_of
from orchestrator.core.finish_reasons import is_error

_ENDS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "content_filtered": "content_filter: content_filtered",
    "guardrail_intervened": "content_filter: guardrail_intervened",
    "malformed_tool_use": "function_call_filter: malformed_tool_use",
    "malformed_model_output": "malformed_response: malformed_model_output",
}
_PARTS = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "outputTokens")
_LEAST_STATUS = 400
_UNKNOWN_STATUS = 502
Json = dict[str, Any]


def completion(answer: Mapping[str, Any]) -> Json:
    """Convert an answer of any shape to a chat completion's body, so that no paid answer is lost.

    Extensions: `reasoning_content`, and `other_content` with blocks that have no place in OpenAI's shape.
    """
    if is_error(answer):
        return dict(answer)
    blocks = lenient.mapping(lenient.mapping(answer.get("output")).get("message")).get("content")
    texts, thoughts, calls, others = list[str](), list[str](), list[Json](), list[Any]()
    for block in blocks if isinstance(blocks, list) else []:
        match block:
            case {"text": str(text)}:
                texts.append(text)
            case {"citationsContent": {"content": list(parts)}}:
                texts += [lenient.mapping(part).get("text") or "" for part in parts]
                others.append(block)
            case {"reasoningContent": {"reasoningText": {"text": str(thought)}}}:
                thoughts.append(thought)
            case {"toolUse": {"name": str(name), "toolUseId": str(call_id), **call}}:
                function = {"name": name, "arguments": json.dumps(call.get("input") or {})}
                calls.append({"id": call_id, "type": "function", "function": function})
            case _:
                others.append(block)
    reason = answer.get("stopReason")
    end = _ENDS.get(reason, reason) if isinstance(reason, str) else None
    tier = lenient.mapping(answer.get("serviceTier")).get("type")
    usage = _usage(lenient.mapping(answer.get("usage")))
    choice = openai_shape.choice_of(texts, thoughts, calls, others, end)
    return openai_shape.completion_of([choice], usage, None, None, tier)


def _usage(usage: Mapping[str, Any]) -> Json:
    fresh, read, put, output = (lenient.tokens(usage, name) for name in _PARTS)
    if not (fresh or read or put or output):
        return {}
    details = usage.get("cacheDetails")
    parts = map(lenient.mapping, details) if isinstance(details, list) else ()
    lasting = sum(lenient.tokens(part, "inputTokens") for part in parts if part.get("ttl") == "1h")
    return openai_shape.cached_usage(fresh, read, put, lasting, output)


def result_line(line: bytes) -> bytes:
    """Return a result line in OpenAI's shape. A line that is not JSON stays unchanged."""
    told = lenient.decode_object(line)
    if told is None:
        return line
    custom_id, answer, error = custom_id_of(told.get("recordId")), told.get("modelOutput"), told.get("error")
    if isinstance(answer, dict):
        row = openai_shape.answered_row(custom_id, 200, completion(answer))
    elif error is not None:
        found = lenient.mapping(error)
        status = lenient.count(found.get("errorCode")) or 0
        said = lenient.text(found.get("errorMessage", error))
        body = {"error": {"message": said, "type": None, "param": None, "code": None}}
        row = openai_shape.answered_row(custom_id, status if status >= _LEAST_STATUS else _UNKNOWN_STATUS, body)
    else:
        row = openai_shape.failed_row(custom_id, openai_shape.UNKNOWN_RESULT)
    return openai_shape.line(row)
