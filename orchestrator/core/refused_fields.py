"""Which field of a request a provider refused, read from an error in any provider's words. Pure.

Only a refusal that names a field of the request counts. An outage, an account and the content of one row name none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MOST_READ = 2000
"""Characters of a message that are examined."""


class FieldFault(StrEnum):
    """What about a field was refused."""

    FIELD = "field"  # the field, whatever its value: every request with it is refused alike
    SETTING = "setting"  # this value, by this model: another model may take it
    RANGE = "range"  # this value is out of the range that holds everywhere


@dataclass(frozen=True, slots=True)
class RefusedField:
    """A field of a request that was refused. `name` is spelled as it was sent, a part of a field with a dot."""

    name: str
    fault: FieldFault


SYSTEM = "system"
"""The name for the role of a system message, which some models refuse."""
JSON_OBJECT = "response_format.json_object"
"""The name for a request of any JSON, where that is refused as well."""
_ANY: Mapping[str, Any] = dict.fromkeys(
    (
        "max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "top_k", "seed", "stop",
        "stop_sequences", "logprobs", "top_logprobs", "logit_bias", "response_format", "text", "include", "reasoning",
        "reasoning_effort", "thinking", "output_config", "tools", "tool_choice", "parallel_tool_calls", "dimensions",
        "encoding_format", "frequency_penalty", "presence_penalty", "service_tier", "store", "metadata", "user",
        "verbosity", "modalities", "prediction", "web_search_options", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "truncation", "top_a", "min_p", "repetition_penalty", "n", "chat_template_kwargs",
        "guided_json", "structured_outputs", "endpoint", "completion_window", "output_expires_after",
    )
)  # fmt: skip
_CONTENT = frozenset({"messages", "input", "prompt", "model", "custom_id", "stream", "url", "method", "body"})
# Passing states, accounts and sizes: whatever they name, no field was refused.
_NEVER = frozenset({401, 402, 407, 408, 409, 413, 423, 425, 429, 498, 499})
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "max_tokens": ("max_completion_tokens", "max_output_tokens"),
    "max_completion_tokens": ("max_tokens", "max_output_tokens"),
    "max_output_tokens": ("max_completion_tokens", "max_tokens"),
    "max_new_tokens": ("max_completion_tokens", "max_tokens", "max_output_tokens"),
    "stop_sequences": ("stop",),
    "stop": ("stop_sequences",),
    "effort": ("reasoning_effort", "reasoning", "output_config"),
    "output_config": ("reasoning_effort", "response_format"),
    "reasoning": ("reasoning_effort",),
    "reasoning_effort": ("reasoning",),
    "thinking": ("reasoning_effort", "reasoning"),
    "format": ("response_format", "text"),
    "output_format": ("response_format", "text", "output_config"),
    "json_schema": ("response_format", "text"),
    "text": ("response_format",),
    "response_format": ("text",),
    "structured_outputs": ("response_format", "text"),
    "guided_json": ("response_format", "text"),
    "logprobs": ("top_logprobs", "include"),
    "top_logprobs": ("logprobs", "include"),
    "message": ("include",),
    "random_seed": ("seed",),
}
"""How else a field may be spelled in the request that an error speaks of; the first that was sent is meant."""
_DOTTED = {"output_config.effort": "effort", "output_config.format": "output_format", "text.format": "output_format"}
_BARE = re.compile(
    r"(?<![\w.'`\"-])(?:[a-z]+(?:_[a-z]+)+|logprobs|dimensions|temperature)(?![\w'`\"-])", re.IGNORECASE
)
"""Words that mean a field wherever they stand. Others, as `stop` or `user`, are words of the language too."""
_QUOTED = re.compile(r"(?P<quote>['`\"])(?P<name>[A-Za-z_][\w.\[\]/-]{0,80})(?P=quote)")
_LOC = re.compile(r"\bloc['\"]?\s*[:=]\s*[\[(]([^\])]{1,200})[\])]")
_PATH = re.compile(r"\bbody(?:\.|\s*(?:->|→|>|,)\s*)([A-Za-z_][\w.]{0,80})")
_FIRST = re.compile(r"^\W{0,3}(?:[\w ]{0,40}error:\s*)?([A-Za-z_][\w.\[\]/]{0,80}):\s")
_CALLED = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:parameter|field|argument|option|property|key|setting|attribute)s?(?: supplied| named| called)?:?\s+"
        r"([A-Za-z_][\w.]{0,60})\b",
        r"\b([A-Za-z_][\w.]{0,60})\s+(?:parameter|field|argument|option|property|setting)s?\b",
        r"\binvalid\s+([A-Za-z_][\w.]{0,60})\s*:",
    )
)
_PHRASES = (
    (re.compile(r"\bresponse[ _-]?format", re.IGNORECASE), "response_format"),
    (re.compile(r"\boutput[ _-]?format|\bstructured outputs?|\bjson[ _]schema", re.IGNORECASE), "output_format"),
    (re.compile(r"\beffort (?:level|parameter|['\"`])", re.IGNORECASE), "effort"),
    (re.compile(r"\bweb search options", re.IGNORECASE), "web_search_options"),
    (re.compile(r"\bstop sequences?", re.IGNORECASE), "stop_sequences"),
    (re.compile(r"\bfrequency penalty", re.IGNORECASE), "frequency_penalty"),
    (re.compile(r"\bpresence penalty", re.IGNORECASE), "presence_penalty"),
    (re.compile(r"\blog[ -]?prob(?:abilitie)?s", re.IGNORECASE), "logprobs"),
    (re.compile(r"\bsystem (?:role|messages?|prompts?|instructions?)\b", re.IGNORECASE), SYSTEM),
)
_SCHEMA = re.compile(
    r"\bschema (?:for|of|in) ['`\"]?(?:response[ _]format|text\.format|output[ _]format)", re.IGNORECASE
)
"""A refused schema. Names of its properties and its own name follow, and may be those of fields."""
_ROLE = re.compile(r"^messages?(?:\[\d+\]|\.\d+)\.role$")
_INSTEAD = re.compile(
    r"\b(?:please )?(?:use|try|set|prefer)\b[^.]{0,120}\binstead\b|\bdid you mean\b.*", re.IGNORECASE
)
_REFUSES = re.compile(
    r"\b(?:not|n't|cannot|no longer|never)\b|\bun(?:supported|recogni[sz]ed|known|expected|available|allowed)"
    r"|\b(?:in)?valid|\bdeprecated|\bextra[ _]|\bforbidden|\bonly\b|\bmust\b|\bshould be\b|\brequired\b"
    r"|literal_error|\brefused|\bdisallow|\bremoved|\bexceed|\btoo (?:large|small|many|long|high|low)|\bmaximum"
    r"|\bminimum|\brejects?\b|\bincompatible|\bspecified\b|\brestricted",
    re.IGNORECASE,
)
_SHAPE = re.compile(
    r"validation error|\bunsupported|\bnot (?:support|permit|allow|implement|accept)|does not (?:support|accept)"
    r"|literal_error|\bextra[ _](?:inputs|forbidden)|\binput should be|\bunrecogni[sz]ed|\bunknown (?:field|param)"
    r"|\binvalid\b",
    re.IGNORECASE,
)
"""What a server says of a request and not of itself. A status of 5xx needs it beside the field's name."""
_OUTAGE = re.compile(
    r"overload|\bcapacity|temporar|try again|unavailable for now|timed? ?out|connection|upstream|maintenance|restart"
    r"|out of memory|crash|\bbusy\b",
    re.IGNORECASE,
)
_ROW = re.compile(
    r"context (?:length|window|limit)|maximum (?:context|model|sequence|input) length|prompt is too long"
    r"|reduce the length|content (?:filter|management|polic)|(?:invalid|unsupported|download\w*).{0,40}\bimage"
    r"|too many (?:prompt|input) tokens|input token count|usage (?:polic|guidelines)|\bfile (?:type|data)\b",
    re.IGNORECASE,
)
_ROW_CODES = re.compile(
    r"context_?length|content_?(?:filter|polic)|string_above_max|prompt_?too_?long|too_many_prompt|image|_file|file_"
    r"|tool_use_failed|json_validate_failed|output_parse_failed|download|rate_?limit|insufficient|billing|budget"
    r"|api_?key|quota|model_?not_?found|decommissioned|deployment_?not_?found",
    re.IGNORECASE,
)
_RANGE_CODES = re.compile(
    r"invalid_function_parameters|(?:below|above)_(?:min|max)|out_of_range|greater_than|less_than|too_(?:long|short|large|small)"
)
_RANGE = re.compile(
    r"(?:minimum|maximum) (?:allowed )?(?:value|number)|expected a value|out of range|\bbetween\b"
    r"|\bat (?:least|most)\b"
    r"|must be (?:greater|less|larger|smaller|lower|higher|>|<|positive|non-?negative|below|above|in the range)"
    r"|must (?:contain|have|not contain|not be empty)|\btoo (?:large|small|long|short|high|low)\b|\bexceeds?\b"
    r"|\d\s*[<>]=?\s*\d|greater than or equal|less than or equal|\binvalid type\b",
    re.IGNORECASE,
)
_SETTING = re.compile(
    r"supported (?:levels|values|options)\b|one of|effort (?:level )?['`\"]",
    re.IGNORECASE,
)
_ONLY_ONE = re.compile(r"\bonly (?:the )?(?:default|\d[\d.]*|a value of|set to)\b", re.IGNORECASE)
_TOGETHER = re.compile(
    r"\bboth\b|at the same time|\btogether\b|only one of|mutually exclusive|use only one", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ProviderError:
    """What an error says, in the words that providers share; each may be missing."""

    status: int | None = None
    code: str | None = None
    kind: str | None = None
    param: str | None = None
    message: str | None = None


def refused_field(error: ProviderError, sent: Mapping[str, Any]) -> RefusedField | None:
    """Return the field of the body `sent` that an error refuses, None if it names none. Never raises."""
    text = (error.message or "")[:MOST_READ]
    if not _may_refuse(error, text):
        return None
    asked = _INSTEAD.sub(" ", text)
    names = [name for mention in _mentions(error.param, asked) if (name := _sent_as(mention, sent)) is not None]
    if not names or "" in names[:1]:
        return None
    is_pair = _TOGETHER.search(text) is not None and SYSTEM not in names
    pair = list(dict.fromkeys(name for name in names if name))
    name = pair[-1] if is_pair and len(pair) > 1 and not _is_bound(pair[0]) else pair[0]
    return RefusedField(_part(name, sent), _fault(error, name, text))


def names_request_field(error: ProviderError) -> bool:
    """True if an error names a field that requests or batches may have, so that it is about no account."""
    return refused_field(error, _ANY) is not None


def _may_refuse(error: ProviderError, text: str) -> bool:
    status = error.status
    words = f"{error.code or ''} {error.kind or ''}"
    if status is None or status in _NEVER or _ROW_CODES.search(words) or _ROW.search(text):
        return False
    if 400 <= status < 500:
        return error.param is not None or _REFUSES.search(f"{text} {words}") is not None
    return status == 500 and _SHAPE.search(text) is not None and _OUTAGE.search(text) is None


def _mentions(param: str | None, text: str) -> Iterator[str]:
    """What an error names, the surest first: its own `param`, a path into the body, a quoted name, a word."""
    if param:
        yield param
    if _SCHEMA.search(text):
        yield "response_format"
    for found in _LOC.finditer(text):
        parts = [part.strip(" '\"") for part in found[1].split(",")]
        yield ".".join(part for part in parts if part not in ("body", ""))
    for pattern in (_PATH, _FIRST):
        for found in pattern.finditer(text):
            yield found[1]
    for found in _QUOTED.finditer(text):
        yield found["name"]
    for pattern in _CALLED:
        for found in pattern.finditer(text):
            yield found[1]
    for pattern, name in _PHRASES:
        if pattern.search(text):
            yield name
    for found in _BARE.finditer(text):
        yield found[0]


def _sent_as(mention: str, sent: Mapping[str, Any]) -> str | None:
    """The field of the body that a mention means: an empty name for its content, None for no field of it."""
    if _ROLE.match(mention):
        return SYSTEM if has_system(sent) else ""
    path = re.sub(r"\[\d*\]", "", mention.replace("/", ".").replace("->", ".")).strip(". ").lower()
    root = path.split(".")[0]
    if root == SYSTEM and has_system(sent):
        return SYSTEM
    if root in _CONTENT:
        return "" if root in sent or root in ("messages", "input") else None
    short = next((to for start, to in _DOTTED.items() if path.startswith(start)), root)
    return next((name for name in (root, short, *_ALIASES.get(short, ())) if name in sent), None)


def has_system(sent: Mapping[str, Any]) -> bool:
    """True if a body has a message of a system or developer role."""
    asked = sent.get("messages") or sent.get("input")
    messages = asked if isinstance(asked, list) else []
    return any(isinstance(one, dict) and one.get("role") in ("system", "developer") for one in messages)


def _is_bound(name: str) -> bool:
    return name.startswith("max_")


def _part(name: str, sent: Mapping[str, Any]) -> str:
    """A field's name, or the way in which it asks for JSON where the schema is not asked for any more."""
    value = sent.get(name)
    if name == "text" and isinstance(value, dict):
        value = value.get("format")
    is_json = name in ("response_format", "text") and isinstance(value, dict) and value.get("type") == "json_object"
    return JSON_OBJECT if is_json else name


def _fault(error: ProviderError, name: str, text: str) -> FieldFault:
    if name in ("response_format", "text"):
        return FieldFault.FIELD
    if _ONLY_ONE.search(text):
        return FieldFault.FIELD
    if _RANGE_CODES.search(error.code or "") or _RANGE.search(text):
        return FieldFault.RANGE
    return FieldFault.SETTING if _SETTING.search(text) else FieldFault.FIELD
