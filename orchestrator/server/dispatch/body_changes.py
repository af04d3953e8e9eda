"""Changes to a row's body before it is sent: removed vLLM fields, model, priority, tier. Pure.

Only the top level of a body is read, and every value keeps its bytes. A message that mentions `guided_json` is not
changed. Decoding the top level of a 300-byte body takes 0.25 µs, as long as one substring search. In a body of 8 KB,
decoding takes 2 µs and is faster than a search. So this module never searches.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS, LineError, read_json
from orchestrator.core.errors import InputError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.server.dispatch.payload import Content
from orchestrator.server.memory_limits import SMALL

DEFAULT_MODEL = "default"

# Endpoints whose request models in vLLM have the fields `structured_outputs` and `priority` (as of 0.32).
CONSTRAINED = frozenset(
    {"/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/responses"},
)
PRIORITISED = CONSTRAINED | {
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/score",
    "/rerank",
    "/pooling",
    "/classify",
}

TIERED = frozenset({"/v1/chat/completions", "/v1/responses"})
BYTES_PER_TOKEN = 4
MOST_GENERATED = 1_000_000
"""Maximum output tokens to expect of a row, even if its own limit is higher."""

_KINDS = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
_PATTERN = "guided_whitespace_pattern"
_REMOVED = frozenset({*_KINDS, _PATTERN, "guided_decoding_backend"})
_NEW = "structured_outputs"
_TIER = "service_tier"
_EXTRA = "extra_body"
# Fields that vLLM accepts silently without effect.
_WITHOUT_EFFECT = _REMOVED | {_EXTRA}

_decode = json_decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


class BodyError(InputError):
    """Raised if a body must not be sent as it is. `fault` is the entry for the batch's errors or the result line."""

    def __init__(self, message: str, param: str | None, code: str = "invalid_request") -> None:
        super().__init__(message, field=param)
        self.fault = LineError(code, message, param)


def prepare(
    body: bytes | msgspec.Raw,
    *,
    endpoint: str,
    vllm: bool,
    model: str | None = None,
    asked: str | None = DEFAULT_MODEL,
    priority: int | None = None,
    tier: str | None = None,
) -> Content:
    """Return the body to send for a row. A body without changes is returned as it is, and a long body is not copied.

    vLLM has removed the `guided_*` fields, so they are rewritten for a `vllm` upstream. For such an upstream, the
    body also gets `priority` (64 bits, lower is earlier), unless the row has its own. `model` replaces the model name
    `asked`. `tier` becomes the `service_tier` of a row without its own. Validation has already refused `stream`.
    Raises BodyError if the body is not a JSON object, or asks for an output format that it would not get.
    """
    sent: Content = bytes(body) if len(body) <= SMALL else memoryview(body)
    constrained = vllm and endpoint in CONSTRAINED
    if not vllm or endpoint not in PRIORITISED:
        priority = None
    if endpoint not in TIERED:
        tier = None
    if not constrained and priority is None and model is None and tier is None:
        return sent
    fields = _fields(sent)
    changed = constrained and not _WITHOUT_EFFECT.isdisjoint(fields) and _rewrite(fields)
    if model is not None and "model" in fields and read_json(fields["model"]) == asked:
        fields["model"] = msgspec.Raw(_encode(model))
        changed = True
    if tier is not None and not _is_given(fields, _TIER):
        fields[_TIER] = msgspec.Raw(_encode(tier))
        changed = True
    if priority is None or "priority" in fields:
        return _encode(fields) if changed else sent
    if changed or not fields:
        return _encode({"priority": priority, **fields})
    if isinstance(sent, bytes):
        return sent.replace(b"{", b'{"priority":%d,' % priority, 1)
    return b"".join((b'{"priority":%d,' % priority, sent[1:]))


class _Asks(msgspec.Struct):
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None


_decode_asks = json_decoder(_Asks).decode


def likely_tokens(body: bytes | msgspec.Raw) -> int:
    """Estimate the tokens that a body counts against a rate limit: its text plus its maximum output."""
    text = memoryview(body).nbytes // BYTES_PER_TOKEN
    try:
        asks = _decode_asks(body)
    except JSON_ERRORS:
        return text
    given = (asks.max_completion_tokens, asks.max_tokens, asks.max_output_tokens)
    return text + min(MOST_GENERATED, next((most for most in given if type(most) is int and most > 0), 0))


def _fields(body: Content) -> dict[str, msgspec.Raw]:
    try:
        return _decode(body)
    except JSON_ERRORS:
        raise BodyError("The body must be a JSON object.", "body") from None


def _is_given(fields: dict[str, msgspec.Raw], name: str) -> bool:
    return name in fields and bytes(fields[name]) != b"null"


def _rewrite(fields: dict[str, msgspec.Raw]) -> bool:
    """Move a body's removed fields into `structured_outputs`. Return True if anything changed. Raises BodyError."""
    params = {name: f"body.{name}" for name in (*_KINDS, _NEW)}
    lifted = _lift(fields, params)
    kinds = [name for name in _KINDS if _is_given(fields, name)]
    both = [_NEW, *kinds] if _is_given(fields, _NEW) else kinds
    if kinds and len(both) > 1:
        first, second = (params[name].removeprefix("body.") for name in both[:2])
        raise BodyError(
            f"'{first}' and '{second}' both set the output format: give only one of them.", params[both[1]]
        )
    if not lifted and _REMOVED.isdisjoint(fields):
        return False
    pattern = _is_given(fields, _PATTERN)
    for name in kinds:
        wanted = {_KINDS[name]: fields[name]}
        if pattern:
            wanted["whitespace_pattern"] = fields[_PATTERN]
        fields[_NEW] = msgspec.Raw(_encode(wanted))
    for name in _REMOVED:
        fields.pop(name, None)
    return True


def _lift(fields: dict[str, msgspec.Raw], params: dict[str, str]) -> bool:
    """Move output constraints out of `extra_body`, an SDK argument that people paste into bodies.

    Records in `params` which fields were moved. Returns True if any were moved. Raises BodyError if a field is given
    twice.
    """
    try:
        extra = _decode(fields[_EXTRA])
    except (KeyError, *JSON_ERRORS):
        return False
    names = [name for name in (*sorted(_REMOVED), _NEW) if name in extra]
    for name in names:
        value = extra.pop(name)
        if bytes(value) == b"null":
            continue
        param = f"body.{_EXTRA}.{name}"
        if _is_given(fields, name):
            raise BodyError(f"'{name}' is given twice: in the body and in its '{_EXTRA}'.", param)
        fields[name], params[name] = value, param
    if names and not extra:
        del fields[_EXTRA]
    elif names:
        fields[_EXTRA] = msgspec.Raw(_encode(extra))
    return bool(names)


# Error messages of vLLM's first engine and of its second engine's early versions, then of other servers.
# Only the beginning of a message counts: the rest may quote the row.
_REFUSAL = re.compile(
    r"Got priority -?\d+ but|(vLLM )?V1 does not support priority"
    r"|un(recognized|known|supported|expected) [^.]{0,40}\bpriority\b",
    re.IGNORECASE,
)


def is_priority_refused(status: int, body: bytes) -> bool:
    """True if an answer refuses the `priority` that `prepare` added. Call it only for rows that got a priority."""
    if status not in (400, 422):
        return False
    answer = read_json(msgspec.Raw(body))
    if not isinstance(answer, dict):
        return False
    if isinstance(details := answer.get("detail"), list):
        return any(isinstance(each, dict) and _is_about_priority(each) for each in details)
    error = answer.get("error", answer)  # old versions of vLLM answer only the inner object
    message = error.get("message") if isinstance(error, dict) else None
    return isinstance(message, str) and _REFUSAL.match(message) is not None


def _is_about_priority(detail: dict[str, Any]) -> bool:
    return (detail.get("type"), detail.get("loc")) == ("extra_forbidden", ["body", "priority"])
