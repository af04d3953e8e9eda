"""Prompts and answers as the GenAI conventions write them, for those who asked for content in their traces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.engine.telemetry.spans import Value

MOST_CHARACTERS = 20_000
"""Of one text: receivers bound what a request may hold, and most spans are looked at by people."""


def content_of(body: Mapping[str, Any], answer: str | None, finish_reason: str | None) -> dict[str, Value]:
    """The attributes for the body of a row's request and the text of its answer."""
    found: dict[str, Value] = {}
    if asked := [*_asked(body)]:
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
    """A text that is not longer than a span should hold."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]} … ({len(text) - MOST_CHARACTERS:,} more characters)"


def _asked(body: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The messages of chat completions or responses, or what other endpoints are asked."""
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
            # Pictures and files have megabytes: what they are is told, and they are left out.
            yield _text(f"({part.get('type', 'part')}, left out)")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": bounded(text)}
