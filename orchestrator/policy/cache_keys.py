"""Cache keys: which requests have one answer in common, so that a job may take it from an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from orchestrator.core.wire import JSON_ERRORS
from orchestrator.policy.request_limits import WITHOUT_OUTPUT

# What an answer then depends on lies elsewhere, and may be another tomorrow.
_CHANGING = frozenset({"conversation", "previous_response_id", "tools", "web_search_options"})


def cache_key(url: str, body: Mapping[str, Any]) -> str | None:
    """The same for all requests that one answer would do for; None for those that are asked each by itself.

    It is made of the endpoint and the body without its model. The order of the body's own fields does not count; that
    within them does, since a schema's properties are answered in their order. A body that asks for sampling, by a
    temperature above 0 and no seed, asks for an answer of its own; so does one with tools, or that goes on with what
    the provider keeps.
    """
    temperature = body.get("temperature")
    samples = isinstance(temperature, int | float) and temperature > 0 and body.get("seed") is None
    if samples or _CHANGING & body.keys():
        return None
    told = {name: body[name] for name in sorted(body) if name != "model" and body[name] is not None}
    return sha256(url.encode() + b"\0" + msgspec.json.encode(told)).hexdigest()[:32]


def line_cache_key(url: str, body: msgspec.Raw) -> str | None:
    """The cache key of a ready request line: None where it does not itself say that it has one answer.

    Who writes the same line twice into a file may want two answers; with `temperature` 0, with a `seed`, or where
    nothing is sampled, there is but one.
    """
    try:
        told = _decode_object(body)
    except JSON_ERRORS:
        return None
    if url not in WITHOUT_OUTPUT and told.get("temperature") != 0 and told.get("seed") is None:
        return None
    return cache_key(url, told)


def has_one_answer(line: bytes) -> bool:
    """True if a ready request line asks for no sampling, so that its own answer under way will do for it.

    Lines that may want two answers (`line_cache_key`) have two `custom_id`s.
    """
    try:
        told = _decode_object(line)
        url, body = told.get("url"), told.get("body")
        return isinstance(url, str) and isinstance(body, dict) and cache_key(url, body) is not None
    except JSON_ERRORS:
        return False


_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
