"""Keywords of JSON Schema, and mistakes in their use. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from orchestrator.core.near_names import meant

ONE = frozenset(
    ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames", "unevaluatedItems",
     "unevaluatedProperties")
)  # fmt: skip
LIST = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
NAMED = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
"""Keywords whose values contain schemas: one schema (ONE), a list of schemas (LIST), or schemas by name (NAMED)."""

CHECKING = ONE | LIST | NAMED | {
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength",
    "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties",
    "minProperties", "required", "dependentRequired", "dependencies",
}  # fmt: skip
"""Keywords that check an answer."""
ANNOTATIONS = frozenset(
    (
        "title", "description", "default", "deprecated", "readOnly", "writeOnly", "examples", "format",
        "contentEncoding", "contentMediaType", "contentSchema", "nullable",
    )
)  # fmt: skip
"""Keywords that only describe a value and check nothing."""
_OTHER_WORDS: Mapping[str, str] = {
    "min": "minimum", "max": "maximum", "min_length": "minLength", "max_length": "maxLength", "min_items": "minItems",
    "max_items": "maxItems", "regex": "pattern", "choices": "enum", "values": "enum", "options": "enum",
    "maxlen": "maxLength", "minlen": "minLength", "max_len": "maxLength", "min_len": "minLength", "allowed": "enum",
    "fields": "properties", "property": "properties", "props": "properties",
    "ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum",
}  # fmt: skip
"""JSON Schema keywords by their names in other tools. These names are mistakes in a schema: they check nothing."""
FORMATS = (
    "date", "date-time", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri",
    "uri-reference", "iri", "iri-reference", "uuid", "regex", "json-pointer", "relative-json-pointer", "uri-template",
)  # fmt: skip
"""Formats of JSON Schema 2020-12 (validation, section 7.3). Applications may define other formats."""
FOREIGN = frozenset(("example", "xml", "externalDocs", "discriminator", "optional"))
"""Keywords of other vocabularies, which providers and editors know."""
_BOUNDS = (
    ("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"), ("minimum", "maximum"),
    ("minContains", "maxContains"),
)  # fmt: skip
_MORE_PROPERTIES = frozenset(("patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if"))
"""Keywords that may add properties from other schemas."""


def misspelt(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield keyword and mistake for each misspelled keyword or format, empty `enum`, and lower limit above its upper
    limit.

    JSON Schema silently ignores unknown keywords.
    """
    for key in schema:
        if key in CHECKING or key in ANNOTATIONS or key in FOREIGN or key.startswith(("$", "x-")):
            continue
        if near := [_OTHER_WORDS[key]] if key in _OTHER_WORDS else get_close_matches(key, CHECKING, 1, 0.8):
            yield key, f"is not a keyword of JSON Schema, and checks nothing; did you mean {near[0]!r}?"
    named = schema.get("format")
    if isinstance(named, str) and named not in FORMATS and (near := get_close_matches(named, FORMATS, 1, 0.8)):
        yield "format", f"{named!r} is not a format of JSON Schema; did you mean {near[0]!r}?"
    if schema.get("enum") == []:
        yield "enum", "has no values, so no answer fits; list those that are allowed"
    for low, high in _BOUNDS:
        least, most = schema.get(low), schema.get(high)
        if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
            yield low, f"is {least}, above `{high}` {most}, so no answer fits; swap them"


def impossible(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield `required` and the mistake for each required name that `properties` lacks and the schema forbids or
    misspells.
    """
    names, required = schema.get("properties"), schema.get("required")
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    has_all = schema.keys().isdisjoint(_MORE_PROPERTIES)
    if not isinstance(names, dict) or not isinstance(required, list):
        return
    for name in required:
        if name in names:
            continue
        if is_closed:
            yield "required", f"{name!r} is required, but `properties` lacks it and no others are allowed"
        elif has_all and isinstance(name, str) and (near := meant(name, names.keys() - {*required})) is not None:
            yield "required", f"{name!r} is required, but `properties` lacks it; {near}"


def mistyped(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield `enum` or `const` and the mistake for each of its values that `type` rules out: no answer can have the
    value.
    """
    kinds = schema.get("type")
    wanted = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    values = schema.get("enum")
    allowed = [("enum", value) for value in values] if isinstance(values, list) else []
    allowed += [("const", schema["const"])] if "const" in schema else []
    for keyword, value in allowed if wanted else ():
        if not any(_is_of(value, kind) for kind in wanted):
            told = json.dumps(value, ensure_ascii=False)
            yield (
                keyword,
                f"{told} is not of type {' or '.join(wanted)}, so no answer has it; {_typed(value, wanted)}",
            )


def _is_of(value: Any, kind: str) -> bool:
    from jsonschema import Draft202012Validator

    return bool(Draft202012Validator.TYPE_CHECKER.is_type(value, kind))


def _typed(value: Any, wanted: list[str]) -> str:
    if value is None:
        return f'write  type: [{", ".join(wanted)}, "null"]'
    if "string" in wanted and isinstance(value, bool | int | float):
        return f'put it in quotes: "{json.dumps(value)}"'
    try:
        is_bare = isinstance(value, str) and any(_is_of(json.loads(value), kind) for kind in wanted)
    except ValueError:
        is_bare = False
    return f"write {value}, without quotes" if is_bare else "correct the value or `type`"
