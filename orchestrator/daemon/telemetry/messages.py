"""Prompts and answers in the form of the GenAI conventions, for traces with content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.daemon.telemetry.spans import Value

MOST_CHARACTERS = 20_000
"""Maximum characters of a text, because receivers limit the size of a request."""


def content_of(body: Mapping[str, Any], answer: str | None, finish_reason: str | None) -> dict[str, Value]:
    """Return the attributes for a row's request body, its answer's text and its finish reason."""
    found: dict[str, Value] = {}
    if asked := [*_input_messages(body)]:
        found["gen_ai.input.messages"] = json.dumps(asked, ensure_ascii=False)
    if isinstance(said := body.get("instructions"), str):
        found["gen_ai.system_instructions"] = json.dumps([_text(said)], ensure_ascii=False)
    if answer is not None:
        told = {"role": "assistant", "parts": [_text(answer)], "finish_reason": finish_reason or "unknown"}
        found["gen_ai.output.messages"] = json.dumps([told], ensure_ascii=False)
    if finish_reason is not None:
        found["gen_ai.response.finish_reasons"] = (finish_reason,)
    return found


def bounded(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]} … ({len(text) - MOST_CHARACTERS:,} more characters)"


def _input_messages(body: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    messages = body.get("messages", body.get("input", body.get("prompt")))
    for message in messages if isinstance(messages, list) else [messages]:
        if isinstance(message, str):
            yield {"role": "user", "parts": [_text(message)]}
        elif isinstance(message, dict):
            yield {"role": str(message.get("role", "user")), "parts": [*_parts(message.get("content"))]}


def _parts(content: Any) -> Iterable[dict[str, Any]]:
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            yield _text(part)
        elif isinstance(part, dict) and isinstance(said := part.get("text"), str):
            yield _text(said)
        elif isinstance(part, dict):
            # Pictures and files have megabytes, so the span has only their type.
            yield _text(f"({part.get('type', 'part')}, left out)")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": bounded(text)}
