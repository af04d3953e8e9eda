"""JSON Schemas in the form of Gemini's `responseSchema`, a subset of OpenAPI. Pure.

Gemini's batches do not follow a `responseJsonSchema` (crmne/ruby_llm#894) or refuse it
(googleapis/js-genai#882). Source: google-genai 3.6.1, types.Schema.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from orchestrator.core.errors import InputError
from orchestrator.policy.dialect.draft import Draft
from orchestrator.policy.dialect.plain_schemas import plain_schema
from orchestrator.policy.dialect.strict_schemas import DESCRIBED_LIMITS, RARE, described
from orchestrator.policy.dialect.structured import FIELD, ask_for_an_object, schema_of

_TYPES = {kind: kind.upper() for kind in ("object", "array", "string", "number", "integer", "boolean")}
_KINDS: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
_KEPT = frozenset({"description", "minimum", "maximum", "minItems"})
"""Keywords that are sent unchanged. Other limits go into the description, and orch checks them."""
_WORDS = frozenset({"description", "title", "default", "examples", "example"})
Json = dict[str, Any]


class _NoFormError(Exception):
    """A part of a schema has no form in OpenAPI's subset."""


def ask_gemini(draft: Draft) -> None:
    """Choose how to ask Gemini for a draft's schema.

    A schema in OpenAPI's subset stays as it is. If the subset cannot express the schema, put the schema in the prompt
    and ask for any JSON.
    """
    asked = schema_of(draft)
    if asked is not None and openapi_schema(asked["schema"]) is None:
        ask_for_an_object(draft)


def openapi_schema(schema: Json) -> Json | None:
    """Return a schema in OpenAPI's subset, or None if the subset cannot express it."""
    return _converted(msgspec.json.encode(schema))


@lru_cache(maxsize=64)
def _converted(schema: bytes) -> Json | None:
    """Convert an encoded schema. The result is cached, because the rows of a task share their schema."""
    try:
        return _node(plain_schema(msgspec.json.decode(schema), FIELD))
    except (InputError, _NoFormError):
        return None


def _node(node: Any) -> Json:
    if not isinstance(node, dict) or RARE & node.keys():
        raise _NoFormError
    if isinstance(inner := node.get("allOf"), list):
        others = {name: value for name, value in node.items() if name != "allOf"}
        if len(inner) != 1 or not isinstance(inner[0], dict) or inner[0].keys() & others.keys() - _WORDS:
            raise _NoFormError
        return _node({**inner[0], **others})
    choices = node.get("anyOf", node.get("oneOf"))
    if choices is not None:
        return _choice(node, choices)
    if "const" in node or "enum" in node:
        return _enum(node)
    kind = node.get("type", "object" if "properties" in node else None)
    if not isinstance(kind, str) or kind not in _TYPES:
        raise _NoFormError
    found: Json = {"type": _TYPES[kind]} | {name: node[name] for name in _KEPT & node.keys()}
    if kind == "object":
        found |= _object(node)
    elif kind == "array":
        found["items"] = _node(node.get("items"))
    elif kind == "string" and node.get("format") == "date-time":
        found["format"] = "date-time"
    limits = {name: node[name] for name in sorted(DESCRIBED_LIMITS & node.keys() - found.keys())}
    return described(found, limits)


def _object(node: Json) -> Json:
    properties, required = node.get("properties"), node.get("required") or []
    # Gemini would answer an empty object.
    if not isinstance(properties, dict) or not properties or not set(required) <= properties.keys():
        raise _NoFormError
    found: Json = {"properties": {name: _node(inner) for name, inner in properties.items()}}
    if required:
        found["required"] = required
    # Without `propertyOrdering`, Gemini answers the properties in alphabetical order.
    return found | {"propertyOrdering": [*properties]}


def _choice(node: Json, choices: Any) -> Json:
    if not isinstance(choices, list) or not all(isinstance(one, dict) for one in choices):
        raise _NoFormError
    others = {name: value for name, value in node.items() if name not in ("anyOf", "oneOf", *_WORDS)}
    options = [_node({**others, **one}) for one in choices if one != {"type": "null"}]
    words = {"description": node["description"]} if "description" in node else {}
    nullable = {"nullable": True} if len(options) < len(choices) else {}
    if not options:
        raise _NoFormError
    return {**(options[0] if len(options) == 1 else {"anyOf": options}), **words, **nullable}


def _enum(node: Json) -> Json:
    values = [node["const"]] if "const" in node else node["enum"]
    kinds = {_KINDS.get(type(value)) for value in values} if isinstance(values, list) else set()
    kind = kinds.pop() if len(kinds) == 1 else None
    # Gemini refuses an empty string among the values.
    if kind is None or "" in values:
        raise _NoFormError
    found: Json = {"type": _TYPES[kind]} | ({"description": node["description"]} if "description" in node else {})
    return found | {"format": "enum", "enum": values} if kind == "string" else described(found, {"one of": values})
