"""The emulator takes what the dialect lets pass: two tables by two hands, over every model of OpenAI's SDK."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, get_args

import pytest
from openai.types.shared import AllModels

from orchestrator.backends.anthropic.messages import translate
from orchestrator.backends.bedrock.requests import translate as converse
from orchestrator.backends.cohere.requests import translate as cohere_row
from orchestrator.backends.gemini.requests import translate as generate
from orchestrator.backends.package import rules_for
from orchestrator.policy.dialect import Recipient, dialect_of
from tests.emulator.refusals import refusal_of

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
Body = dict[str, Any]


def _names(kind: Any) -> Iterator[str]:
    for one in get_args(kind):
        if isinstance(one, str):
            yield one
        else:
            yield from _names(one)


OPENAI = [
    *_names(AllModels),
    "gpt-5.2-codex", "gpt-5.3-codex", "gpt-5.4-pro", "gpt-5-search-api", "gpt-audio", "gpt-3.5-turbo-instruct",
    "davinci-002", "text-embedding-3-small", "text-embedding-ada-002", "whisper-1", "gpt-4o-mini-tts", "gpt-image-1",
    "gpt-4o-realtime-preview", "omni-moderation-latest",
]  # fmt: skip
CLAUDE = [
    f"claude-{name}"
    for name in (
        "3-haiku-20240307", "3-5-sonnet-20241022", "3-7-sonnet-20250219", "sonnet-4-20250514", "opus-4-1-20250805",
        "opus-4-5", "sonnet-4-5", "haiku-4-5-20251001", "opus-4-6", "sonnet-4-6", "opus-4-7", "opus-4-8", "opus-5",
        "sonnet-5", "haiku-5", "fable-5", "mythos-5", "mythos-preview", "opus-5-5", "sonnet-5-5",
    )
]  # fmt: skip
GEMINI = (
    "gemini-2.0-flash",
    "gemini-2.5-pro",
    "gemini-2.5-flash",
    "gemini-3.1-pro-preview",
    "gemini-3.5-flash",
    "gemini-3.5-flash-lite",
    "gemini-3.8-flash",
)
OTHERS = {
    "groq": ("llama-3.3-70b-versatile", "openai/gpt-oss-120b", "qwen/qwen3-32b", "whisper-large-v3"),
    "mistral": ("mistral-small-latest", "magistral-medium-latest", "ministral-8b-2512", "mistral-embed"),
    "deepseek": ("deepseek-chat", "deepseek-reasoner", "deepseek-v4-flash"),
    "xai": (
        "grok-3",
        "grok-3-mini",
        "grok-4",
        "grok-4-fast-reasoning",
        "grok-4.3",
        "grok-4.5",
        "grok-4.6",
        "grok-build-0.1",
    ),
    "moonshot": ("kimi-k2.6", "kimi-k2.7-code", "kimi-k2-0905-preview", "kimi-k3", "moonshot-v1-8k"),
    "gemini": ("gemma-3-27b-it", *GEMINI),
    "vertex": GEMINI,
    "cohere": ("command-a-03-2025", "command-r7b-12-2024", "command-a-reasoning-08-2025"),
    "bedrock": (
        "us.anthropic.claude-3-haiku-20240307-v1:0",
        "us.anthropic.claude-haiku-4-5-20251001-v1:0",
        "global.anthropic.claude-opus-5",
        "us.amazon.nova-lite-v1:0",
        "global.xai.grok-4.6",
        "us.openai.gpt-6-sol",
        "openai.gpt-oss-20b-1:0",
        "qwen.qwen3-32b-v1:0",
    ),
}
TRANSLATED = {
    "gemini": ("generateContent", generate),
    "vertex": ("generateContent", generate),
    "bedrock": ("converse", converse),
    "cohere": (CHAT, cohere_row),
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
THINKING = [{"thinking": {"type": kind}} for kind in ("adaptive", "disabled")]
THINKING.append({"thinking": {"type": "enabled", "budget_tokens": 2000}})  # type: ignore[dict-item]
SETTINGS: list[Body] = [
    {},
    *({"reasoning_effort": effort} for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max")),
    {"temperature": 0}, {"temperature": 1}, {"temperature": 1.8}, {"temperature": 2.5},
    {"stop": ["a", "b", "c", "d", "e"]},
    {"top_logprobs": 30, "logprobs": True}, {"n": 200}, {"top_p": 0}, {"top_p": 0.5},
    {"stop": ["."]}, {"stop": ["\n"]}, {"seed": 3}, {"n": 2},
    {"logprobs": True, "top_logprobs": 3}, {"presence_penalty": 1}, {"frequency_penalty": 1},
    {"logit_bias": {"1": 2}}, {"max_tokens": 5}, {"max_tokens": 500_000},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA, "strict": True}}},
    {"tools": [TOOL], "tool_choice": "required"}, {"verbosity": "low"}, {"verbosity": "medium"},
    {"parallel_tool_calls": False}, {"service_tier": "flex"}, {"prompt_cache_options": {"mode": "explicit"}},
]  # fmt: skip
CASES = [
    *(("openai", model, endpoint) for model in OPENAI for endpoint in (CHAT, RESPONSES, EMBEDDINGS)),
    *(("anthropic", model, CHAT) for model in CLAUDE),
    *((provider, model, CHAT) for provider, models in OTHERS.items() for model in models),
]


@pytest.mark.parametrize(("provider", "model", "endpoint"), CASES)
def test_what_the_dialect_lets_pass_is_taken(provider: str, model: str, endpoint: str) -> None:
    kinds = {"anthropic": THINKING, "moonshot": THINKING[1:], "deepseek": THINKING[1:]}.get(provider)
    settings = SETTINGS if kinds is None else [*SETTINGS, *_pairs(kinds)]
    dialect = dialect_of(Recipient(provider, table=rules_for(provider)), model, endpoint)
    for setting in [{}] if endpoint == EMBEDDINGS else settings:
        body = _body(model, endpoint, setting)
        losses = dialect.losses(body)
        if all(loss.may_be_dropped for loss in losses):
            sent = {"model": model, **dialect.body(body, drop=True)}
            refusal = _refusal(provider, dialect.endpoint, sent)
            assert refusal is None, (setting, losses, sent)


def _one(part: Any, **more: Any) -> Body:
    """A schema with one property, which has to be there."""
    return {"type": "object", "properties": {"a": part}, "required": ["a"], **more}


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "name": {"type": "string"}}}
TEXT = {"type": "string"}
SCHEMAS: dict[str, Any] = {
    "a null among values that are texts": _one({"type": "string", "enum": ["a", None]}),
    "a null among values": _one({"enum": ["a", None]}),
    "a null among the values of an optional property": {
        "type": "object", "properties": {"a": {"type": "string", "enum": ["a", None]}},
    },
    "values of another type": _one({"type": "integer", "enum": ["1", 2, 2.5]}),
    "values of any type": _one({"enum": ["a", 1, True, None]}),
    "a constant of another type": _one({"type": "string", "const": 3}),
    "a null that is the only value": _one({"const": None}),
    "no value at all": _one({"type": "string", "enum": []}),
    "a value of two lines": _one({"enum": ["a\nb", "c"]}),
    "a constant of two lines": _one({"type": "string", "const": "a\nb"}),
    "numbers with a fraction": _one({"type": "number", "enum": [1, 2.5]}),
    "a list in a circle": _one({"$ref": "#/$defs/node"}, **{"$defs": {"node": NODE}}),
    "itself": _one({"type": "array", "items": {"$ref": "#"}}),
    "a part of its own": {"type": "object", "properties": {"a": TEXT, "b": {"$ref": "#/properties/a"}}},
    "one of several": _one({"oneOf": [TEXT, {"type": "object", "properties": {"b": {"type": "null"}}}]}),
    "one of several, beside a type": _one({"type": "string", "oneOf": [{"minLength": 1}, {"const": ""}]}),
    "one of several, as a whole": {"oneOf": [_one(TEXT), _one({"type": "integer"})]},
    "all of several": {"allOf": [_one(TEXT), {"properties": {"b": TEXT}}]},
    "names by a pattern": _one({"type": "object", "patternProperties": {"^x": TEXT}}),
    "names by a pattern, as a whole": {"type": "object", "patternProperties": {"^x": TEXT}},
    "a list of tuples": _one({"type": "array", "items": {"type": "array", "prefixItems": [TEXT, TEXT]}}),
    "a tuple in the old spelling": _one({"type": "array", "items": [TEXT, {"type": "integer"}]}),
    "any list": _one({"type": "array"}),
    "an empty object": _one({"type": "object"}),
    "an empty object as a whole": {"type": "object"},
    "an object of no properties": {"type": "object", "properties": {}, "additionalProperties": False},
    "nothing": {},
    "anything": _one({}),
    "all or nothing": _one(True, additionalProperties=False),
    "a property that must not be": {"type": "object", "properties": {"a": TEXT, "b": False}, "required": ["a"]},
    "any other names": _one(TEXT, additionalProperties={"type": "integer"}),
    "a name that is not listed": {"type": "object", "properties": {"a": TEXT}, "required": ["a", "b"]},
    "conditions": _one(TEXT, **{"if": {"properties": {"a": {"const": "x"}}}, "then": {"required": ["b"]}}),
    "what depends on another": {
        "type": "object", "properties": {"a": TEXT, "b": TEXT}, "dependentRequired": {"a": ["b"]},
    },
    "not a text": _one({"type": "integer", "not": {"const": 3}}),
    "properties without a type": {"properties": {"a": TEXT}, "required": ["a"]},
    "an object or null": {"type": ["object", "null"], "properties": {"a": TEXT}},
    "an inner object or null": _one({"type": ["object", "null"], "properties": {"b": TEXT}}),
    "OpenAPI's null": _one({"type": "string", "nullable": True}),
    "names of keywords": {
        "type": "object", "properties": {"$ref": TEXT, "properties": TEXT, "type": TEXT, "enum": TEXT},
        "required": ["type"],
    },
    "a default and examples": _one({"type": "string", "default": "x", "examples": ["y"], "readOnly": True}),
    "limits": _one({"type": "array", "items": {"type": "number", "minimum": 0, "multipleOf": 0.5}, "minItems": 2,
                    "maxItems": 9, "uniqueItems": True}),
    "a form of texts": _one({"type": "string", "format": "date", "pattern": "^2", "minLength": 3, "maxLength": 10}),
}  # fmt: skip
"""Schemas that people write, and that no strict mode takes as they are."""
WITH_SCHEMAS = [
    *(("openai", model, endpoint) for model in ("gpt-4o", "gpt-5-nano", "gpt-4", "gpt-3.5-turbo", "gpt-5-pro",
      "ft:gpt-4o-mini-2024-07-18:acme::Ab1", "our-own") for endpoint in (CHAT, RESPONSES)),
    ("azure", "gpt-4.1", CHAT),
    ("openrouter", "openai/gpt-5-nano", CHAT),
    *(("anthropic", model, CHAT) for model in ("claude-3-haiku-20240307", "claude-haiku-4-5", "claude-opus-5")),
    *((provider, model, CHAT) for provider, models in OTHERS.items() for model in models[:3]),
]  # fmt: skip


@pytest.mark.parametrize("case", SCHEMAS)
def test_no_provider_refuses_a_schema(case: str) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMAS[case], "strict": True}}
    for provider, model, endpoint in WITH_SCHEMAS:
        dialect = dialect_of(Recipient(provider, table=rules_for(provider)), model, endpoint)
        form = {"text": {"format": {"type": "json_schema", **asked["json_schema"]}}} if endpoint == RESPONSES else {
            "response_format": asked}  # fmt: skip
        body = _body(model, endpoint, form)
        if any(not loss.may_be_taken_out for loss in dialect.losses(body)):
            continue
        sent = {"model": model, **dialect.body(body)}
        assert _refusal(provider, dialect.endpoint, sent) is None, (provider, model, endpoint, sent)


def _pairs(some: list[Body]) -> Iterator[Body]:
    for first, second in combinations([*some, *SETTINGS], 2):
        if first in some and first.keys().isdisjoint(second):
            yield first | second


def _body(model: str, endpoint: str, setting: Body) -> Body:
    if endpoint == EMBEDDINGS:
        return {"model": model, "input": "a"}
    asked = [{"role": "system", "content": "Answer in json."}, {"role": "user", "content": "a"}]
    return {"model": model, "input" if endpoint == RESPONSES else "messages": asked, "max_tokens": 4000, **setting}


def _refusal(provider: str, endpoint: str, sent: Body) -> object:
    if provider == "anthropic":
        params, _ = translate(sent, 512)
        return refusal_of(provider, "/v1/messages", params)
    if provider in TRANSLATED:
        address, translated = TRANSLATED[provider]
        return refusal_of(provider, address, {**translated(sent), "model": sent["model"]})
    return refusal_of(provider, endpoint, sent)
