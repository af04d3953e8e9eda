"""Usage in an answer that no price covers: calls of a provider's tools, and unusual counts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.json_decoders import json_decoder

_CALLS = (
    "web_search_call", "x_search_call", "file_search_call", "code_interpreter_call", "image_generation_call",
)  # fmt: skip
"""Items of a response that OpenAI and xAI bill in addition to the tokens."""
_COUNTS = (
    "num_server_side_tools_used", "num_sources_used", "citation_tokens", "prompt_audio_seconds", "web_search_calls",
    "x_search_calls", "file_search_calls", "code_interpreter_calls", "image_generation_calls",
    "document_search_calls", "code_execution_requests", "tool_calls_executed", "video_tokens", "iteration_tokens",
)  # fmt: skip
"""Counts that xAI, Perplexity, Mistral, OpenRouter or Anthropic bill in addition to the tokens, or at another
price.
"""
_TOOLS = "executed_tools"
"""Field in which Groq's compound systems list the tools and models that they called."""
_KNOWN = frozenset(
    {
        "prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens", "num_cached_tokens",
        "cached_tokens", "cached_input_tokens", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens",
        "cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation_tokens", "cache_write_tokens",
        "cache_write_1h_tokens", "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens", "reasoning_tokens",
        "thinking_tokens", "text_tokens", "audio_tokens", "image_tokens", "accepted_prediction_tokens",
        "rejected_prediction_tokens", "web_search_requests", "web_fetch_requests", "num_search_queries",
    }
)  # fmt: skip
"""Counts in a usage that are priced, are part of a priced count, or are free."""
_is_count = re.compile(
    r"num_\w+|(?:\w+_)?(?:tokens|units|requests|calls|searches|queries|pages|images|characters)"
).fullmatch
_USAGE = b'"usage"'
# With two levels of objects; no server is known to have more.
_usage_at = re.compile(rb'"usage"\s*:\s*(null|\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\})').match
_find_total = re.compile(rb'"total_tokens"\s*:\s*(\d{1,9})').search
_names = re.compile(rb'"(\w+)"\s*:').findall
_DIGITS = b"0123456789"
_plain_usages: set[bytes] = set()
"""Encoded usages without their digits that have only known counts: a cache, as most usages differ in digits only."""
MOST_SHAPES, MOST_SHAPE = 256, 1_000
UNCOUNTED = "uncounted_tokens"
"""Our name for tokens that only a usage's total includes, such as Gemini's thoughts in OpenAI's API."""


class _Body(msgspec.Struct):
    output: Any = None
    usage: Any = None
    choices: Any = None


_decode = json_decoder(_Body).decode


def may_have_unpriced(text: bytes | msgspec.Raw, counted: int = 0) -> bool:
    """True if a body, or a line with a body, must be decoded to find usage without a price.

    `counted` is the number of prompt and answer tokens, or 0 if unknown. Most answers name no tools and have a usage
    of a known shape, so they are not decoded.
    """
    text = bytes(text)
    if b'_call"' in text or _TOOLS.encode() in text:
        return True
    start = text.find(_USAGE)
    if start < 0:
        return False
    found = _usage_at(text, start)
    if found is None or text.find(_USAGE, found.end()) >= 0 or not _is_plain(found[1]):
        return True
    total = _find_total(found[1]) if counted > 0 else None
    return total is not None and int(total[1]) > counted


def _is_plain(usage: bytes) -> bool:
    shape = usage.translate(None, _DIGITS)
    if shape in _plain_usages:
        return True
    if any(_has_own_price(name.decode()) for name in _names(shape)):
        return False
    if len(_plain_usages) < MOST_SHAPES and len(shape) < MOST_SHAPE:
        _plain_usages.add(shape)
    return True


def _has_own_price(count: str) -> bool:
    return count in _COUNTS or (count not in _KNOWN and _is_count(count) is not None)


def unpriced(body: bytes | msgspec.Raw, counted: int = 0) -> tuple[str, ...]:
    """Return the sorted names of an answer's usage that has no price. Never raises.

    `counted` is as in `may_have_unpriced`. Most answers have no such usage.
    """
    if not may_have_unpriced(body, counted):
        return ()
    try:
        answer = _decode(body)
    except JSON_ERRORS:
        return ()
    items = answer.output if isinstance(answer.output, list) else ()
    calls = {item["type"] for item in items if isinstance(item, dict) and item.get("type") in _CALLS}
    tools = {_TOOLS} if any(map(_has_tools, answer.choices if isinstance(answer.choices, list) else ())) else set()
    total = answer.usage.get("total_tokens") if isinstance(answer.usage, dict) else None
    beyond = {UNCOUNTED} if counted and isinstance(total, int) and total > counted else set()
    return tuple(sorted(calls | tools | beyond | set(_counts(answer.usage))))


def _has_tools(choice: Any) -> bool:
    message = choice.get("message") if isinstance(choice, dict) else None
    return bool(message.get(_TOOLS)) if isinstance(message, dict) else False


def _counts(usage: Any) -> Iterator[str]:
    if not isinstance(usage, Mapping):
        return
    for name, value in usage.items():
        if isinstance(value, Mapping):
            yield from _counts(value)
        elif _has_own_price(name) and isinstance(value, int | float) and value > 0:
            yield name
