"""Texts, refusals and calls in the parts of an answer, in the formats of different servers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS

_TEXTS = frozenset({"text", "output_text", "input_text", "markdown"})
_OTHERS = frozenset(
    {
        "refusal", "thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text", "tool_use",
        "tool_call", "tool_calls", "function_call", "tool_result", "server_tool_use", "web_search_tool_result",
        "image", "image_url", "output_image", "input_image", "audio", "output_audio", "input_audio", "video_url",
        "file", "document", "reference", "citation", "document_url", "resource",
    }
)  # fmt: skip
"""Kinds of parts that are not text."""
_THOUGHTS = ("think", "thought", "reason", "summary")
"""Words in the names of part kinds that hold thoughts."""
_BESIDE = frozenset({"type", "text", "annotations", "logprobs", "citations"})
WORDLESS = frozenset({"message", "reasoning"})
"""Kinds of response items that are neither tool calls nor other additions to the text."""


_LEVELS = 6
"""Levels of lists and objects whose members are decoded one by one."""


def read(raw: msgspec.Raw, levels: int = _LEVELS) -> Any:
    """Return the value of a part. Numbers too large for a float become None."""
    try:
        return msgspec.json.decode(raw)
    except JSON_ERRORS:
        if levels == 0:
            return None
    with suppress(*JSON_ERRORS):
        return [read(one, levels - 1) for one in msgspec.json.decode(raw, type=list[msgspec.Raw])]
    with suppress(*JSON_ERRORS):
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        return {name: read(one, levels - 1) for name, one in fields.items()}
    return None


def content_text(content: Any, *, is_response: bool = False) -> str | None:
    """Return the text of a message's `content`: a text, a list of parts without the thoughts, or other JSON.

    Cloudflare answers a schema with an object in `content`. With `is_response`, a list that has at least one object
    with a `type` is a list of parts.
    """
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    is_listed = isinstance(content, list)
    if not any(_is_part(part, is_listed=is_listed, has_kinds=is_listed and is_response) for part in parts):
        return msgspec.json.encode(content).decode() if parts else None
    texts = [text for part in parts if (text := part_text(part)) is not None]
    return "".join(texts) if texts else None


def refusal_text(refusal: Any, content: Any = None) -> str | None:
    """Return the refusal in a message or in its parts, or None."""
    if refusal:
        return refusal if isinstance(refusal, str) else msgspec.json.encode(refusal).decode()
    parts = content if isinstance(content, list) else ()
    said = [part["refusal"] for part in parts if isinstance(part, dict) and isinstance(part.get("refusal"), str)]
    return "".join(said) or None


def has_calls(message: Mapping[str, Any]) -> bool:
    """True if a message has tool calls, audio or pictures. Snowflake's empty calls do not count."""
    call, audio = message.get("function_call"), message.get("audio")
    is_call = bool(call.get("name")) if isinstance(call, dict) else bool(call)
    is_audio = bool(audio.get("data")) if isinstance(audio, dict) else bool(audio)
    return is_call or is_audio or bool(message.get("tool_calls")) or bool(message.get("images"))


def said_messages(output: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Return the messages that contain the answer.

    These are the messages of the final phase, or else all messages except commentary. If all messages are commentary,
    all are returned. The model's reasoning and the user's messages are left out.
    """
    messages: list[Mapping[str, Any]] = [
        item
        for item in output
        if isinstance(item, dict)
        and _word(item, "type", "message") == "message"
        and _word(item, "role", "assistant") == "assistant"
    ]
    final = [item for item in messages if item.get("phase") == "final_answer"]
    return final or [item for item in messages if item.get("phase") != "commentary"] or messages


def is_other(item: Any) -> bool:
    """True if a response item is neither a message nor reasoning."""
    return not isinstance(item, dict) or _word(item, "type", "message") not in WORDLESS


def _word(fields: Mapping[str, Any], name: str, usual: str) -> str:
    """Return a string field, or `usual` if the field is missing or has another type, so that no text is lost."""
    value = fields.get(name)
    return value if isinstance(value, str) and value else usual


def _is_part(part: Any, *, is_listed: bool, has_kinds: bool) -> bool:
    """True for a text among parts, and for an object of a known `type`. Other JSON is an answer, not a part.

    In a list, an object with a `type` and a text is a part of an unknown kind. With `has_kinds`, any object with a
    `type` is a part.
    """
    if isinstance(part, dict) and (kind := _word(part, "type", "")):
        is_known = kind in _TEXTS or not _is_text(kind)
        return has_kinds or is_known or (is_listed and _is_bare(part))
    return isinstance(part, str) or _is_bare(part)


def _is_bare(part: Any) -> bool:
    return isinstance(part, dict) and part.keys() <= _BESIDE and isinstance(part.get("text"), str)


def _is_text(kind: str) -> bool:
    """True if parts of this kind hold answer text. An unknown kind counts as text unless its name means thoughts."""
    return kind not in _OTHERS and not any(word in kind for word in _THOUGHTS)


def part_text(part: Any) -> str | None:
    """Return the text of a part, or None for a thought, a call or another part without text."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or not _is_text(_word(part, "type", "text")):
        return None
    text = part.get("text")
    if isinstance(text, dict):
        text = text.get("value")
    return text if isinstance(text, str) else None
