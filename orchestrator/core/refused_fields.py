"""Finds the request field that a provider refused, in an error of any provider. Pure.

Only a refusal that names a field of the request counts. Errors about outages, accounts or a row's content name no
field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from orchestrator.core.lazy_patterns import regex

MOST_READ = 2000
"""Maximum number of characters of a message to examine."""


class FieldFault(StrEnum):
    """Scopes of a refusal."""

    FIELD = "field"  # the field with any value: every request with it is refused
    SETTING = "setting"  # this model refuses this value: another model may accept it
    RANGE = "range"  # this value is out of range for all models


class RefusedField(Struct, frozen=True):
    """A refused field of a request. `name` is spelled as in the request; a dot separates parts."""

    name: str
    fault: FieldFault


SYSTEM = "system"
"""`RefusedField.name` for the role of a system message, which some models refuse."""
JSON_OBJECT = "response_format.json_object"
"""`RefusedField.name` for JSON without a schema, which some providers refuse in addition to schemas."""
_ANY: Mapping[str, Any] = dict.fromkeys(
    (
        "max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "top_k", "seed", "stop",
        "stop_sequences", "logprobs", "top_logprobs", "logit_bias", "response_format", "text", "include", "reasoning",
        "reasoning_effort", "thinking", "output_config", "tools", "tool_choice", "parallel_tool_calls", "dimensions",
        "encoding_format", "frequency_penalty", "presence_penalty", "service_tier", "store", "metadata", "user",
        "verbosity", "modalities", "prediction", "web_search_options", "safety_identifier", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "truncation", "top_a", "min_p", "repetition_penalty", "n",
        "chat_template_kwargs", "guided_json", "structured_outputs", "endpoint", "completion_window",
        "output_expires_after",
    )
)  # fmt: skip
_CONTENT = frozenset({"messages", "input", "prompt", "model", "custom_id", "stream", "url", "method", "body"})
# Statuses of temporary states, accounts and sizes: these never refuse a field, whatever the message names.
_OF_REQUESTS = frozenset({400, 422})
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
    "penalty": ("presence_penalty", "frequency_penalty"),
}
"""Other names of a field. If an error names a field that was not sent, it means the first of these names that was
sent.
"""
_DOTTED = {"output_config.effort": "effort", "output_config.format": "output_format", "text.format": "output_format"}
_BARE = regex(
    r"(?<![\w.'`\"-])(?:[a-z]+(?:_[a-z]+)+|logprobs|dimensions|temperature|verbosity|modalities)(?![\w'`\"-])",
    re.IGNORECASE,
)
"""Matches field names that cannot be ordinary words, unlike `stop` or `user`."""
_HUMP = regex(r"(?<=[a-z])(?=[A-Z])")
_QUOTED = regex(r"(?P<quote>['`\"])(?P<name>[A-Za-z_][\w.\[\]/-]{0,80})(?P=quote)")
_LOC = regex(r"\bloc['\"]?\s*[:=]\s*[\[(]([^\])]{1,200})[\])]")
_PATH = regex(r"\b(?:body|parameters?)(?:\.|\s*(?:->|→|>|,)\s*)([A-Za-z_][\w.]{0,80})")
_FIRST = regex(r"^\W{0,3}(?:[\w ]{0,40}error:\s*)?([A-Za-z_][\w.\[\]/]{0,80}):\s")
_CALLED = tuple(
    regex(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:parameter|field|argument|option|property|key|setting|attribute)s?(?: supplied| named| called)?:?\s+"
        r"[\[(]?([A-Za-z_][\w.]{0,60})\b",
        r"参数\s*[:\uff1a\u201c]?\s*([A-Za-z_][A-Za-z0-9_.]{0,60})",
        r"(?<![\w.])([A-Za-z_][A-Za-z0-9_.]{0,60})\s*参数",
        r"\b([A-Za-z_][\w.]{0,60})\s+(?:param(?:eter)?|field|argument|option|property|setting)s?\b",
        r"\binvalid\s+(?!input\b)([A-Za-z_][\w.]{0,60})\s*:",
        r"\bdoes(?: not|n['\u2019]t) support (?:this )?([A-Za-z_][\w.]{0,60})"
        r"(?=\s*(?:[.,;:)]|$|\b(?:with|for|on|at)\b))",
        r"(?<![\w.])([A-Za-z_][\w.]{0,60}) (?:is|are) not (?:supported|enabled)\b",
        r"\b(?:parameter|argument|option)s? (?:is |are )?not supported\b[^:]{0,40}: ([A-Za-z_][\w.]{0,60})\b",
    )
)
_PHRASES = (
    (regex(r"\bresponse[ _-]?format|\bjson[ _-]mode\b", re.IGNORECASE), "response_format"),
    (
        regex(r"\boutput[ _-]?format|\bstructured outputs?|\bjson[ _]schema|\bguided decoding", re.IGNORECASE),
        "output_format",
    ),
    (regex(r"\beffort (?:level|parameter|['\"`])", re.IGNORECASE), "effort"),
    (regex(r"\bthinking[ _](?:level|budget|mode)\b", re.IGNORECASE), "thinking"),
    (regex(r"\bmaximum tokens you requested\b", re.IGNORECASE), "max_tokens"),
    (regex(r"\bweb search options", re.IGNORECASE), "web_search_options"),
    (regex(r"\bstop sequences?", re.IGNORECASE), "stop_sequences"),
    (regex(r"\btool choice\b", re.IGNORECASE), "tool_choice"),
    (regex(r"\bfrequency penalty", re.IGNORECASE), "frequency_penalty"),
    (regex(r"\bpresence penalty", re.IGNORECASE), "presence_penalty"),
    (regex(r"\bpenalt(?:y is|ies are) not enabled", re.IGNORECASE), "penalty"),
    (regex(r"\bmultiple (?:candidates|choices|completions)\b", re.IGNORECASE), "n"),
    (regex(r"\blog[ -]?prob(?:abilitie)?s", re.IGNORECASE), "logprobs"),
    (regex(r"\bparallel tool[ -]call(?:s|ing)\b", re.IGNORECASE), "parallel_tool_calls"),
    (regex(r"\b(?:system|developer) (?:role|messages?|prompts?|instructions?)\b", re.IGNORECASE), SYSTEM),
)
_SCHEMA = regex(
    r"\bschema (?:for|of|in) ['`\"]?(?:response[ _]format|text\.format|output[ _]format)|^grammar error\b"
    r"|\b(?:convert|parse|compile|build) (?:the )?(?:\w+ )?grammar\b|\bgrammar is not valid\b"
    r"|\bthe specified schema\b"
    r"|\ba schema in generationconfig\b|^schema is too complex\b|\bcompiled grammar is too\b"
    r"|^schemas? contains? too many\b",
    re.IGNORECASE,
)
"""Words about a refused schema. Names that follow belong to the schema, even if they look like fields."""
_ROLE = regex(r"^messages?(?:\[\d+\]|\.\d+)\.role$")
_INSTEAD = regex(r"\b(?:please )?(?:use|try|set|prefer)\b[^.]{0,120}\binstead\b|\bdid you mean\b.*", re.IGNORECASE)
_REFUSES = regex(
    r"\b(?:not|cannot|no longer|never)\b|n['\u2019]t\b"
    r"|\bun(?:supported|recogni[sz]ed|known|expected|available|allowed)"
    r"|\b(?:in)?valid|\bdeprecated|\bextra[ _]|\bforbidden|\billegal|\bonly\b|\bmust\b|\bshould be\b|\brequired\b"
    r"|literal_error|\brefused|\bdisallow|\bremoved|\bexceed|\btoo (?:large|small|many|long|high|low)|\bmaximum"
    r"|\bminimum|\b(?:greater|less) than\b|\breject(?:s|ed)?\b|\bincompatible|\bconflicts?\b|\bspecified\b"
    r"|\brestricted"
    r"|不(?:受)?支持|不允许|无效|非法|未知",
    re.IGNORECASE,
)
_SHAPE = regex(
    r"validation error|\bunsupported|\bnot (?:support|permit|allow|implement|accept)|does not (?:support|accept)"
    r"|literal_error|\brequires --\w"
    r"|\bextra[ _](?:inputs|forbidden)|\binput should be|\bunrecogni[sz]ed|\bunknown (?:field|param)"
    r"|\binvalid\b",
    re.IGNORECASE,
)
"""Words that blame the request, not the server. Without these words or _SCHEMA, status 500 refuses no field."""
_OUTAGE = regex(
    r"overload|\bcapacity|temporar|try again|unavailable for now|timed? ?out|connection|upstream|maintenance|restart"
    r"|out of memory|crash|\bbusy\b",
    re.IGNORECASE,
)
_PASSING = regex(
    r"overload|\btemporar|try again (?:later|in|after|shortly|soon)\b|maintenance|\brestart|\bstarting up|\bbusy\b"
    r"|\btimed out|\b(?:cannot|could not|failed to) (?:reach|connect)|\bunreachable"
    r"|\bconnection (?:error|refused|reset|closed|aborted|lost)|\bout of memory|\bcrashe?[ds]?\b"
    r"|\bbad gateway|\bgateway time|\bservice unavailable|\bnot responding"
    r"|\bno (?:healthy|available) \w+|\bquota\b|\bexhausted\b|\brate limit",
    re.IGNORECASE,
)
"""Words about a temporary state. They override any status and any field name."""
_ROW = regex(
    r"context (?:length|window|limit)|maximum (?:context|model|sequence|input) length|prompt is too long"
    r"|reduce the length|content (?:filter|management|polic)|(?:invalid|unsupported|download\w*).{0,40}\bimage"
    r"|too many (?:prompt|input) tokens|input token count|usage (?:polic|guidelines)|\bfile (?:type|data)\b"
    r"|\bmessages?\b.{0,80}\balternate\b",
    re.IGNORECASE,
)
_ROW_CODES = regex(
    r"context_?length|content_?(?:filter|polic)|string_above_max|prompt_?too_?long|too_many_prompt|image|_file|file_"
    r"|tool_use_failed|json_validate_failed|output_parse_failed|download|rate_?limit|insufficient|billing|budget"
    r"|api_?key|quota|model_?not_?found|decommissioned|deployment_?not_?found",
    re.IGNORECASE,
)
_RANGE_CODES = regex(
    r"invalid_function_parameters|missing_required_parameter|(?:below|above)_(?:min|max)|out_of_range|greater_than|less_than|too_(?:long|short|large|small)"
)
_RANGE = regex(
    r"(?:minimum|maximum) (?:allowed )?(?:value|number)|expected a value|out of range|\bbetween\b"
    r"|\bat (?:least|most)\b"
    r"|must be (?:greater|less|larger|smaller|lower|higher|>|<|positive|non-?negative|below|above|in the range)"
    r"|must (?:contain|have|not contain|not be empty)|\btoo (?:large|small|long|short|high|low)\b|\bexceeds?\b"
    r"|\bvalid range\b|\brange (?:of|is)\b|\b(?:in|within) (?:the )?(?:interval |range )?[\[(]-?\d"
    r"|\d\s*[<>]=?\s*\d|greater than or equal|less than or equal|\binvalid type\b"
    r"|(?:greater|less) than the (?:maximum|minimum) of|\brange: |\btype must be\b"
    r"|\bmissing required parameter\b|: field required\b",
    re.IGNORECASE,
)
_SETTING = regex(
    r"supported (?:levels|values|options)\b|one of|effort (?:level )?['`\"]|\binvalid value\b"
    r"|\bthinking level [A-Z]|\bbudget (?:of )?\d+|_budget to \d",
    re.IGNORECASE,
)
_ONE_TOOL = regex(r"\btools[.\[]\d")
"""Matches a reference into one tool; the provider may accept other tools."""
_ONLY_ONE = regex(r"\bonly (?:the )?(?:default|\d[\d.]*|a value of|set to)\b", re.IGNORECASE)
_TOGETHER = regex(
    r"\bboth\b|at the same time|\btogether\b|only one of|mutually exclusive|use only one|\bcombin(?:ed|ation)\b"
    r"|\balongside\b|\bconjunction with|\bconflicts? with|\bincompatible with",
    re.IGNORECASE,
)
_NAME_REFUSED = regex(
    r"\binstead\b|\bun(?:supported|recogni[sz]ed|known|expected)|\bextra[ _]|\bdeprecated|\bremoved|\bno longer\b"
    r"|(?:\bnot|n['\u2019]t|\bcannot) (?:be )?(?:a )?"
    r"(?:support|permit|allow|accept|implement|available|recogni|valid|used|known)"
    r"|\bdoes not (?:take|know)|\bforbidden|\brejects?\b|不(?:受)?支持|不允许|未知",
    re.IGNORECASE,
)
"""Words that refuse a field's name. Without them, only the value of a `max_` field is refused: another name would not
help.
"""


class ProviderError(Struct, frozen=True):
    """Fields that errors of all providers share; each may be missing."""

    status: int | None = None
    code: str | None = None
    kind: str | None = None
    param: str | None = None
    message: str | None = None


def refused_field(error: ProviderError, sent: Mapping[str, Any]) -> RefusedField | None:
    """Return the field of the body `sent` that an error refuses, None if the error names no field. Never raises."""
    text = (error.message or "")[:MOST_READ]
    asked = _INSTEAD.sub(" ", text)
    if not _may_refuse(error, text, asked):
        return None
    names = [name for mention in _mentions(error.param, asked) if (name := _sent_as(mention, sent)) is not None]
    if not names or "" in names[:1]:
        return None
    is_pair = _TOGETHER.search(text) is not None and SYSTEM not in names
    pair = list(dict.fromkeys(name for name in names if name))
    name = pair[-1] if is_pair and len(pair) > 1 and not _is_bound(pair[0]) else pair[0]
    return RefusedField(_part(name, sent), _fault(error, name, text))


def names_request_field(error: ProviderError) -> bool:
    """True if an error names a field of requests or batches, and so is not about an account."""
    return refused_field(error, _ANY) is not None


def says_it_passes(message: str) -> bool:
    """True if a message is about a temporary state: a load, a restart, maintenance."""
    return _PASSING.search(message[:MOST_READ]) is not None


def _may_refuse(error: ProviderError, text: str, asked: str) -> bool:
    status = error.status
    words = f"{error.code or ''} {error.kind or ''}"
    if status is None or status in _NEVER or _ROW_CODES.search(words) or _ROW.search(text) or _PASSING.search(text):
        return False
    if 400 <= status < 500:
        is_sure = status in _OF_REQUESTS and next(_sure_mentions(error.param, asked), None) is not None
        return is_sure or error.param is not None or _REFUSES.search(f"{text} {words}") is not None
    is_shape = _SHAPE.search(text) is not None or _SCHEMA.search(text) is not None
    return status == 500 and is_shape and _OUTAGE.search(text) is None


def _mentions(param: str | None, text: str) -> Iterator[str]:
    """Yield the field names in an error, most reliable first: `param`, a path into the body, a quoted name, a
    word.
    """
    yield from _sure_mentions(param, text)
    for pattern in _CALLED:
        for found in pattern.finditer(text):
            yield found[1]
    for pattern, name in _PHRASES:
        if pattern.search(text):
            yield name
    for found in _BARE.finditer(text):
        yield found[0]


def _sure_mentions(param: str | None, text: str) -> Iterator[str]:
    """Yield names that an error marks as fields. With status 400 or 422 they count even without a word of refusal."""
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


def _sent_as(mention: str, sent: Mapping[str, Any]) -> str | None:
    """Return the body's field that a mention means; "" if it means the content, None if it is not a field."""
    if _ROLE.match(mention):
        return SYSTEM if has_system(sent) else ""
    path = re.sub(r"\[\d*\]", "", mention.replace("/", ".").replace("->", ".")).strip(". ")
    path = _HUMP.sub("_", path).lower()
    root = path.split(".")[0]
    if root == SYSTEM and has_system(sent):
        return SYSTEM
    if root in _CONTENT:
        return "" if root in sent or root in ("messages", "input") else None
    short = next((to for start, to in _DOTTED.items() if path.startswith(start)), root)
    return next((name for name in (root, short, *_ALIASES.get(short, ())) if name in sent), None)


def has_system(sent: Mapping[str, Any]) -> bool:
    """True if a body has a system or developer message."""
    asked = sent.get("messages") or sent.get("input")
    messages = asked if isinstance(asked, list) else []
    return any(isinstance(one, dict) and one.get("role") in ("system", "developer") for one in messages)


def _is_bound(name: str) -> bool:
    return name.startswith("max_")


def _part(name: str, sent: Mapping[str, Any]) -> str:
    """Return a field's name, or JSON_OBJECT if the schema has already been dropped."""
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
    if _is_bound(name) and not _NAME_REFUSED.search(f"{text} {error.code or ''}".replace("_", " ")):
        return FieldFault.RANGE
    is_one_tool = name == "tools" and _ONE_TOOL.search(f"{error.param or ''} {text}") is not None
    return FieldFault.SETTING if is_one_tool or _SETTING.search(text) else FieldFault.FIELD
