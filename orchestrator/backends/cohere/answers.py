"""Cohere's answers and records in OpenAI's shape. Pure.

Sources: cohere 7.3.1 (types/assistant_message_response.py, usage.py, chat_finish_reason.py), recorded answers of
`/v2/chat`, crmne/ruby_llm (specs of batches): a record has `custom_id`, `error` and `body`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.backends import lenient, openai_shape
from orchestrator.core.error_body import openai_error
from orchestrator.core.finish_reasons import is_error

_ENDS = {
    "COMPLETE": "stop",
    "STOP_SEQUENCE": "stop",
    "MAX_TOKENS": "length",
    "TOOL_CALL": "tool_calls",
    "ERROR_TOXIC": "content_filter: ERROR_TOXIC",
}
Json = dict[str, Any]


def completion(answer: Mapping[str, Any]) -> Json:
    """Convert an answer of any shape to a chat completion's body, so that no paid answer is lost.

    Extensions: `reasoning_content`, and `other_content` with parts that have no place in OpenAI's shape.
    """
    if is_error(answer):
        return dict(answer)
    message = lenient.mapping(answer.get("message"))
    texts, thoughts, others = list[str](), list[str](), list[Any]()
    content = message.get("content")
    for part in content if isinstance(content, list) else [content] if content else []:
        match part:
            case str(text) | {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case _:
                others.append(part)
    if isinstance(plan := message.get("tool_plan"), str) and plan:
        thoughts.append(plan)
    if citations := message.get("citations"):
        others.append({"citations": citations})
    told = message.get("tool_calls")
    calls = [call for one in told if (call := _call(one))] if isinstance(told, list) else []
    reason = answer.get("finish_reason")
    end = _ENDS.get(reason, reason.lower()) if isinstance(reason, str) else None
    choice = openai_shape.choice_of(texts, thoughts, calls, others, end)
    usage = _usage(lenient.mapping(answer.get("usage")))
    return openai_shape.completion_of([choice], usage, answer.get("id"), None, None)


def _call(told: Any) -> Json | None:
    found, function = lenient.mapping(told), lenient.mapping(lenient.mapping(told).get("function"))
    if not isinstance(name := function.get("name"), str):
        return None
    arguments = function.get("arguments")
    return {
        "id": found.get("id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments if isinstance(arguments, str) else "{}"},
    }


def _usage(usage: Mapping[str, Any]) -> Json:
    """Count the billed tokens. The field `tokens` would include Cohere's own preamble, which costs nothing."""
    counted = lenient.mapping(usage.get("billed_units")) or lenient.mapping(usage.get("tokens"))
    prompt, output = (lenient.tokens(counted, name) for name in ("input_tokens", "output_tokens"))
    if not (prompt or output):
        return {}
    cached = min(lenient.tokens(usage, "cached_tokens"), prompt)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def result_line(record: object) -> bytes:
    """Return a record as a result line in OpenAI's shape. A failed row's error is a text without a status."""
    found = lenient.mapping(record)
    custom_id, error, body = found.get("custom_id"), found.get("error"), found.get("body")
    if isinstance(body, str):
        body = lenient.decode_object(body.encode())
    if error:
        told = openai_error({"error": error}) or {"message": lenient.text(error)}
        return openai_shape.line(openai_shape.failed_row(custom_id, told))
    if isinstance(body, dict) and body:
        return openai_shape.line(openai_shape.answered_row(custom_id, 200, completion(body), body.get("id")))
    return openai_shape.line(openai_shape.failed_row(custom_id, openai_shape.UNKNOWN_RESULT))
