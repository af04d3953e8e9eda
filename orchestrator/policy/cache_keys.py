"""Cache keys: equal for requests that can share an answer, so that a job can reuse an earlier job's answer."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS, WITHOUT_OUTPUT
from orchestrator.core.json_decoders import json_decoder

# With these fields, an answer depends on state elsewhere, which may change.
_CHANGING = frozenset({"conversation", "previous_response_id", "tools", "web_search_options"})


class _Sampling(msgspec.Struct):
    temperature: Any = None
    seed: Any = None


_decode_sampling = json_decoder(_Sampling).decode


def cache_key(url: str, body: Mapping[str, Any]) -> str | None:
    """Return a key that is equal for requests that can share an answer. None if a request needs its own answer.

    The key covers the endpoint and the body without its model. The order of the body's own fields does not count. The
    order inside them does, because answers follow the order of a schema's properties. A body that samples
    (temperature above 0 and no seed) needs its own answer. So does a body with tools, or a continued conversation
    that the provider stores.
    """
    temperature = body.get("temperature")
    samples = isinstance(temperature, int | float) and temperature > 0 and body.get("seed") is None
    if samples or _CHANGING & body.keys():
        return None
    told = {name: body[name] for name in sorted(body) if name != "model" and body[name] is not None}
    return sha256(url.encode() + b"\0" + msgspec.json.encode(told)).hexdigest()[:32]


def line_cache_key(url: str, body: msgspec.Raw) -> str | None:
    """Return the cache key of a finished request line. None unless the line itself allows only one answer.

    If a file contains a line twice, its author may want two answers. With `temperature` 0, a `seed`, or an endpoint
    without sampling, there is only one answer.
    """
    try:
        sampling = _decode_sampling(body)
        if url not in WITHOUT_OUTPUT and sampling.temperature != 0 and sampling.seed is None:
            return None
        told = _decode_object(body)
    except JSON_ERRORS:
        return None
    return cache_key(url, told)


def has_one_answer(line: bytes) -> bool:
    """True if a finished request line does not ask for sampling: it can share a pending answer to the same request.

    Lines that may want two answers (see `line_cache_key`) have different `custom_id`s.
    """
    try:
        told = _decode_object(line)
        url, body = told.get("url"), told.get("body")
        return isinstance(url, str) and isinstance(body, dict) and cache_key(url, body) is not None
    except JSON_ERRORS:
        return False


_decode_object = json_decoder(dict[str, Any]).decode
