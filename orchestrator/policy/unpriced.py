"""What an answer used that no price covers: calls of a provider's own tools, and odd counts in its usage. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from orchestrator.core.wire import JSON_ERRORS

_CALLS = (
    "web_search_call", "x_search_call", "file_search_call", "code_interpreter_call", "image_generation_call",
)  # fmt: skip
"""Items of a response for which OpenAI and xAI bill beside the tokens."""
_COUNTS = (
    "num_server_side_tools_used", "num_search_queries", "citation_tokens", "prompt_audio_seconds", "web_search_calls",
    "x_search_calls", "file_search_calls", "code_interpreter_calls", "image_generation_calls",
)  # fmt: skip
"""Counts in a usage that are billed beside the tokens: xAI, Perplexity, Mistral."""
# Most answers have none of these words, and are not decoded for them. In a text, a quote has a backslash before it.
_names = re.compile(b'"(?:%s)"' % "|".join((*_CALLS, *_COUNTS)).encode()).search


class _Body(msgspec.Struct):
    output: Any = None
    usage: Any = None


_decode = msgspec.json.Decoder(_Body).decode


def may_have_unpriced(text: bytes | msgspec.Raw) -> bool:
    """True if it is worth decoding a body, or a line with one, for them."""
    return _names(text) is not None


def unpriced(body: bytes | msgspec.Raw) -> tuple[str, ...]:
    """Names of what an answer used without a price, sorted; empty for most. Never raises."""
    if not may_have_unpriced(body):
        return ()
    try:
        answer = _decode(body)
    except JSON_ERRORS:
        return ()
    items = answer.output if isinstance(answer.output, list) else ()
    calls = {item["type"] for item in items if isinstance(item, dict) and item.get("type") in _CALLS}
    return tuple(sorted(calls | set(_counts(answer.usage))))


def _counts(usage: Any) -> Iterator[str]:
    if not isinstance(usage, Mapping):
        return
    for name, value in usage.items():
        if isinstance(value, Mapping):
            yield from _counts(value)
        elif name in _COUNTS and isinstance(value, int | float) and value > 0:
            yield name
