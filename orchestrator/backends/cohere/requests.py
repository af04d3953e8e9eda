"""Translates chat completions to rows of Cohere's batches. Pure.

A row's format differs from a request of `/v2/chat`. Content is a list; a picture's address and a tool's schema are
texts. Some fields do not exist, such as `response_format` and `stop_sequences`.

Sources: crmne/ruby_llm (protocols/cohere/batch_requests.rb, run against the live API), cohere 7.3.1 (types of
`/v2/chat`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestrator.backends.chat_rows import NO_EFFECT, check_counterparts
from orchestrator.backends.message_parts import (
    CallPart,
    MessagePart,
    PicturePart,
    ResultPart,
    TextPart,
    read_messages,
)
from orchestrator.core.errors import InputError

_ALIKE = {
    "temperature": "temperature",
    "top_p": "p",
    "top_k": "k",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "reasoning": "reasoning",
    "thinking_budget": "thinking_budget",
}
KNOWN = NO_EFFECT.union(
    {*_ALIKE, "messages", "max_tokens", "max_completion_tokens", "tools", "tool_choice", "reasoning_effort"}
)
_NOT_IN_A_BATCH = "has no counterpart in a batch of Cohere"
Json = dict[str, Any]


def translate(body: Mapping[str, Any]) -> Json:
    """Return the body of a row without its model. Raises InputError for a field without a counterpart."""
    check_counterparts(body, KNOWN, _NOT_IN_A_BATCH)
    if body.get("tool_choice") not in (None, "auto"):
        raise InputError(_NOT_IN_A_BATCH, field="tool_choice")
    system, turns = read_messages(body.get("messages"), {})
    messages = [*_messages("system", system)]
    for turn in turns:
        messages += _assistant(turn.parts) if turn.role == "assistant" else _messages(turn.role, turn.parts)
    request: Json = {"messages": messages}
    request |= {theirs: body[ours] for ours, theirs in _ALIKE.items() if body.get(ours) is not None}
    bound = body.get("max_completion_tokens", body.get("max_tokens"))
    if bound is not None:
        request["max_tokens"] = bound
    match body.get("reasoning_effort"):
        case None:
            pass
        case "none":
            request["reasoning"] = False
        case _:
            raise InputError("only none has a counterpart", field="reasoning_effort")
    if tools := body.get("tools"):
        request["tools"] = [_tool(tool) for tool in tools]
    return request


def _messages(role: str, parts: Iterable[MessagePart]) -> Iterator[Json]:
    content: list[Json] = []
    for part in parts:
        if isinstance(part, ResultPart):
            if content:
                yield {"role": role, "content": content}
            content = []
            yield {"role": "tool", "tool_call_id": part.call_id, "content": [_part(one) for one in part.parts]}
        else:
            content.append(_part(part))
    if content:
        yield {"role": role, "content": content}


def _assistant(parts: Iterable[MessagePart]) -> Iterator[Json]:
    content, calls = list[Json](), list[Json]()
    for part in parts:
        if isinstance(part, CallPart):
            function = {"name": part.name, "arguments": json.dumps(part.arguments)}
            calls.append({"id": part.id, "type": "function", "function": function})
        else:
            content.append(_part(part))
    message: Json = {"role": "assistant"}
    yield message | ({"content": content} if content else {}) | ({"tool_calls": calls} if calls else {})


def _part(part: MessagePart) -> Json:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case PicturePart():
            return {"type": "image_url", "image_url": part.url}
    raise InputError(_NOT_IN_A_BATCH, field=part.where)


def _tool(tool: Any) -> Json:
    match tool:
        case {"type": "function", "function": {"name": str(name), **more}} if not more.get("strict"):
            schema = json.dumps(more.get("parameters") or {"type": "object", "properties": {}})
            known = {"name": name, "description": more.get("description"), "parameters": schema}
            return {"type": "function", "function": {key: told for key, told in known.items() if told is not None}}
    raise InputError("only functions that are not strict have a counterpart", field="tools")
