"""Strict form of a JSON Schema for structured outputs: closed objects, every property required. Pure.

The strict schema allows roughly the same answers. orch checks answers against the user's schema in any case. Open
objects and untyped lists have no strict form.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

Schema = dict[str, Any]

# OpenAI's guide to structured outputs, and refusals that pydantic-ai 2026-11 found.
_READ = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "oneOf", "allOf",
     "$ref", "$defs", "definitions", "patternProperties", "prefixItems", "description", "title"}
)  # fmt: skip
"""Keywords that are sent, or that decide whether a strict form exists. orch checks all other keywords itself."""
RARE = frozenset(
    {"not", "if", "then", "else", "patternProperties", "prefixItems", "contains", "dependentRequired",
     "dependentSchemas", "propertyNames", "unevaluatedProperties", "minProperties", "maxProperties"}
)  # fmt: skip
"""Keywords that no provider except OpenAI accepts."""
_NUMBER_AND_LIST_LIMITS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "pattern",
     "format"}
)  # fmt: skip
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
DESCRIBED_LIMITS = frozenset({*_NUMBER_AND_LIST_LIMITS, "minLength", "maxLength", "uniqueItems"})
_LOOKAROUND = re.compile(r"(?<!\\)\(\?(?:[=!]|<[=!])")
_DEFINITION = re.compile(r"#(?:/(?:\$defs|definitions)/[^/]+)?")
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", dict: "object",
          list: "array"}  # fmt: skip
DEEPEST = 10
MOST_PROPERTIES = 5_000
MOST_VALUES = 1_000
MOST_TEXT = 120_000
"""Maximum total characters of names and values in a strict schema: a limit of OpenAI.

A schema above this limit, or above the limits of depth, properties and enum values, has no strict form.
"""
BIG_ENUM = 250
MOST_TEXT_OF_ONE = 15_000
"""Maximum total length, in characters, of the values of an enum with more than `BIG_ENUM` values.

A schema with a longer enum has no strict form.
"""


class _NotStrictError(Exception):
    """A part of a schema has no strict form."""


class _Size(Struct):
    properties: int = 0
    values: int = 0
    text: int = 0

    def check(self) -> None:
        if self.properties > MOST_PROPERTIES or self.values > MOST_VALUES or self.text > MOST_TEXT:
            raise _NotStrictError


def strict_schema(schema: Mapping[str, Any], *, limits: bool = True) -> Schema | None:
    """Return the strict form of a schema, or None if it has no strict form.

    Optional properties become nullable. `limits` is True if the recipient accepts patterns, formats, and bounds of
    numbers and lists. Other limits go into descriptions, and orch checks them.
    """
    try:
        return _Strict(limits).root(schema)
    except _NotStrictError:
        return None


class _Strict:
    def __init__(self, limits: bool) -> None:
        self._limits = limits
        self._size = _Size()

    def root(self, schema: Mapping[str, Any]) -> Schema:
        definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        reference = schema.get("$ref")
        if reference is not None:
            schema = {**_definition(schema, reference), **definitions}
        if schema.get("type") != "object" or "anyOf" in schema or "oneOf" in schema:
            raise _NotStrictError
        found = self._node({name: value for name, value in schema.items() if name not in definitions}, DEEPEST)
        for name, inner in definitions.items():
            if not isinstance(inner, dict):
                raise _NotStrictError
            found[name] = {key: self._node(value, DEEPEST) for key, value in inner.items()}
            self._size.text += sum(map(len, inner))
        self._size.check()
        return found

    def _node(self, schema: Any, levels: int) -> Schema:
        if not isinstance(schema, dict) or not levels:
            raise _NotStrictError
        found = {name: value for name, value in schema.items() if name in _READ or self._is_taken(name, value)}
        limits = {name: value for name, value in schema.items() if name in DESCRIBED_LIMITS - found.keys()}
        return described(self._resolve(found, levels), limits)

    def _is_taken(self, name: str, value: Any) -> bool:
        if not self._limits or name not in _NUMBER_AND_LIST_LIMITS:
            return False
        if name == "format":
            return value in FORMATS
        return name != "pattern" or not (isinstance(value, str) and has_lookaround(value))

    def _resolve(self, found: Schema, levels: int) -> Schema:
        if "oneOf" in found:
            if "anyOf" in found:
                raise _NotStrictError
            found["anyOf"] = found.pop("oneOf")
        if "allOf" in found:
            inner = found.pop("allOf")
            if not isinstance(inner, list) or len(inner) != 1 or not isinstance(inner[0], dict):
                raise _NotStrictError
            if found.keys() & inner[0].keys() - {"description", "title"}:
                raise _NotStrictError
            return self._node({**inner[0], **found}, levels)
        if "$ref" in found:
            return self._reference(found)
        if "anyOf" in found:
            return self._choice(found, levels)
        if "$defs" in found or "definitions" in found or "patternProperties" in found or "prefixItems" in found:
            raise _NotStrictError
        return self._typed(found, levels)

    def _reference(self, found: Schema) -> Schema:
        reference = found.pop("$ref")
        if not isinstance(reference, str) or not _DEFINITION.fullmatch(reference):
            raise _NotStrictError
        if found.keys() - {"description", "title"}:
            raise _NotStrictError
        return {"anyOf": [{"$ref": reference}], **found} if found else {"$ref": reference}

    def _choice(self, found: Schema, levels: int) -> Schema:
        choices = found["anyOf"]
        if not isinstance(choices, list) or not choices or found.keys() - {"anyOf", "description", "title", "type"}:
            raise _NotStrictError
        found.pop("type", None)
        return {**found, "anyOf": [self._node(choice, levels) for choice in choices]}

    def _typed(self, found: Schema, levels: int) -> Schema:
        _keep_possible_values(found)
        values = found["enum"] if isinstance(found.get("enum"), list) else []
        known = [*values, *([found["const"]] if "const" in found else [])]
        if any(isinstance(value, str) and "\n" in value for value in known):
            raise _NotStrictError
        text = sum(len(str(value)) for value in known)
        if len(values) > BIG_ENUM and text > MOST_TEXT_OF_ONE:
            raise _NotStrictError
        self._size.values += len(values)
        self._size.text += text
        if "type" not in found:
            if not known:
                raise _NotStrictError
            kinds = [*dict.fromkeys(_TYPES[type(value)] for value in known)]
            found["type"] = kinds[0] if len(kinds) == 1 else kinds
        kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
        if "array" in kinds:
            found["items"] = self._node(found.get("items"), levels - 1)
        if "object" in kinds:
            self._close(found, levels)
        elif "properties" in found or "additionalProperties" in found:
            raise _NotStrictError
        self._size.check()
        return found

    def _close(self, found: Schema, levels: int) -> None:
        properties, required = found.get("properties"), found.get("required") or []
        if (
            not isinstance(properties, dict)
            or not properties
            or found.get("additionalProperties") not in (None, False)
        ):
            raise _NotStrictError
        if not set(required) <= properties.keys():
            raise _NotStrictError
        self._size.properties += len(properties)
        self._size.text += sum(map(len, properties))
        found["properties"] = {
            name: self._node(inner, levels - 1) if name in required else _nullable(self._node(inner, levels - 1))
            for name, inner in properties.items()
        }
        found["required"] = [*properties]
        found["additionalProperties"] = False


def _keep_possible_values(found: Schema) -> None:
    """Remove enum values that the type forbids. Providers refuse them, and no valid answer has them.

    Raises _NotStrictError if no value is left, or if `const` is forbidden.
    """
    if "type" not in found:
        return
    kinds = set(found["type"] if isinstance(found["type"], list) else [found["type"]])
    if "number" in kinds:
        kinds.add("integer")
    if isinstance(found.get("enum"), list):
        found["enum"] = [value for value in found["enum"] if _TYPES[type(value)] in kinds]
        if not found["enum"]:
            raise _NotStrictError
    if "const" in found and _TYPES[type(found["const"])] not in kinds:
        raise _NotStrictError


def described(schema: Schema, limits: Mapping[str, Any]) -> Schema:
    """Append limits to the description: the provider refuses them as keywords, but the model reads them."""
    if limits:
        words = ", ".join(f"{name}: {value}" for name, value in limits.items())
        schema["description"] = f"{schema.get('description', '')} ({words})".strip()
    return schema


def has_limits(schema: Any) -> bool:
    """Return True if a part of a schema has a limit."""
    if isinstance(schema, list):
        return any(map(has_limits, schema))
    if not isinstance(schema, dict):
        return False
    return not DESCRIBED_LIMITS.isdisjoint(schema) or any(map(has_limits, schema.values()))


def has_lookaround(pattern: str) -> bool:
    """Return True if a pattern has a lookahead or lookbehind, which providers do not support."""
    return _LOOKAROUND.search(pattern) is not None


def _definition(schema: Mapping[str, Any], reference: Any) -> Schema:
    """Return the definition that a root `$ref` names. A root with other keywords has no strict form."""
    found = _DEFINITION.fullmatch(reference) if isinstance(reference, str) else None
    if found is None or reference == "#" or schema.keys() - {"$ref", "$defs", "definitions", "$schema", "title"}:
        raise _NotStrictError
    _, place, name = reference.split("/")
    definitions = schema.get(place)
    if not isinstance(definitions, dict) or not isinstance(definitions.get(name), dict):
        raise _NotStrictError
    return dict(definitions[name])


def _nullable(schema: Schema) -> Schema:
    if "anyOf" in schema:
        if _allows_null(schema["anyOf"]):
            return schema
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    kinds: Collection[str] = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    found = {**schema, "type": [*kinds, *(() if "null" in kinds else ("null",))]}
    if "const" in found:
        found["enum"] = [found.pop("const")]
    if isinstance(found.get("enum"), list) and None not in found["enum"]:
        found["enum"] = [*found["enum"], None]
    return found


def _allows_null(choices: list[Schema]) -> bool:
    return any(choice.get("type") == "null" or "null" in (choice.get("type") or ()) for choice in choices)
