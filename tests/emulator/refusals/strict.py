"""Schemas that structured outputs refuse: OpenAI's guide (supported schemas), Groq's and Anthropic's.

Sources: platform.openai.com/docs/guides/structured-outputs, console.groq.com/docs/structured-outputs,
docs.claude.com/en/docs/build-with-claude/structured-outputs, and `anthropic/lib/_parse/_transform.py` of its SDK.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.emulator.errors import Json

MAX_PROPERTIES, MAX_DEPTH, MAX_ENUM, MAX_LETTERS = 5_000, 10, 1_000, 120_000
BIG_ENUM, BIG_ENUM_LETTERS = 250, 15_000

NOT_PERMITTED = (
    *"allOf oneOf not dependentRequired dependentSchemas if then else patternProperties propertyNames".split(),
    *"unevaluatedProperties minProperties maxProperties unevaluatedItems contains minContains maxContains".split(),
    *"uniqueItems prefixItems minLength maxLength".split(),
)
FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid".split())
TUNED_TOO = ("pattern", "format", "minimum", "maximum", "multipleOf", "minItems", "maxItems")
"""What fine-tuned models lack of structured outputs, beside the others."""
GROQ_TOO = ("minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

Path = tuple[str, ...]


def parts(schema: Any, path: Path = (), depth: int = 0) -> Iterator[tuple[Path, Json, int]]:
    """Each schema within a schema: its path, itself, and how many objects and arrays it lies in."""
    if not isinstance(schema, dict):
        return
    yield path, schema, depth
    for name, part in (schema.get("properties") or {}).items():
        yield from parts(part, (*path, "properties", name), depth + 1)
    if "items" in schema:
        yield from parts(schema["items"], (*path, "items"), depth + 1)
    for name in ("anyOf", "allOf", "oneOf"):
        for number, part in enumerate(schema.get(name) or ()):
            yield from parts(part, (*path, name, str(number)), depth)
    for name in ("$defs", "definitions"):
        for key, part in (schema.get(name) or {}).items():
            yield from parts(part, (*path, name, key), 1)


def openai_problem(schema: Any, *, is_tuned: bool = False) -> str | None:
    """What OpenAI says of a schema under `strict: true`, None if it takes it."""
    found = list(parts(schema))
    not_permitted = (*NOT_PERMITTED, *TUNED_TOO) if is_tuned else NOT_PERMITTED
    for path, part, _ in found:
        told = _openai_part(part, not_permitted)
        if told is not None:
            return f"In context={_context(path)}, {told}"
    return _too_large(found)


def root_problem(schema: Any) -> str | None:
    """Every schema there has to be an object, strict or not."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind != "object":
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    return None


def _openai_part(part: Json, not_permitted: tuple[str, ...]) -> str | None:
    bad = next((name for name in not_permitted if name in part), None)
    if bad is not None:
        return f"'{bad}' is not permitted."
    if "$ref" in part:
        others = sorted(set(part) - {"$ref"})
        return f"$ref cannot have keywords {set(others)}." if others else None
    if not any(name in part for name in ("type", "anyOf", "enum", "const")):
        return "schema must have a 'type' key."
    if part.get("format") is not None and part["format"] not in FORMATS:
        return f"'format' is not permitted: '{part['format']}'."
    if part.get("type") == "array" and "items" not in part:
        return "array schema missing items."
    return _value_problem(part) or (_object_problem(part) if _is_object(part) else None)


_TYPES: dict[type, tuple[str, ...]] = {
    bool: ("boolean",), int: ("integer", "number"), float: ("number",), str: ("string",), type(None): ("null",),
}  # fmt: skip


def _value_problem(part: Json) -> str | None:
    """What OpenAI says of the values of an enum or a const: they have to be of the type, and on one line."""
    values = [*(part.get("enum") or ()), *([part["const"]] if "const" in part else ())]
    kinds = part["type"] if isinstance(part.get("type"), list) else [part.get("type")]
    for value in values:
        if isinstance(value, str) and "\n" in value:
            return "\\n is not allowed in string literals for structured outputs (strict=true)."
        if "type" in part and not set(_TYPES.get(type(value), kinds)) & set(kinds):
            return f"enum value {value} does not validate against {{'type': {part['type']!r}}}."
    return None


def _is_object(part: Json) -> bool:
    kind = part.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in part


def _object_problem(part: Json) -> str | None:
    if part.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false."
    names, required = part.get("properties") or {}, part.get("required")
    missing = next((name for name in names if name not in (required or ())), None)
    if missing is not None:
        return (
            "'required' is required to be supplied and to be an array including every key in properties. "
            f"Missing '{missing}'."
        )
    extra = next((name for name in required or () if name not in names), None)
    return None if extra is None else f"'required' is required to name properties only. Extra required key '{extra}'."


def _too_large(found: list[tuple[Path, Json, int]]) -> str | None:
    names = [name for _, part, _ in found for name in part.get("properties") or ()]
    values = [value for _, part, _ in found for value in part.get("enum") or ()]
    if len(names) > MAX_PROPERTIES:
        return f"Expected at most {MAX_PROPERTIES} object properties total, but got {len(names)}."
    deepest = max((depth for _, _, depth in found), default=0)
    if deepest > MAX_DEPTH:
        return f"{deepest} levels of nesting exceeds limit of {MAX_DEPTH}."
    if len(values) > MAX_ENUM:
        return f"Expected at most {MAX_ENUM} enum values in total within a schema, but got {len(values)}."
    for _, part, _ in found:
        letters = sum(len(str(value)) for value in part.get("enum") or ())
        if len(part.get("enum") or ()) > BIG_ENUM and letters > BIG_ENUM_LETTERS:
            return f"Expected at most {BIG_ENUM_LETTERS} characters in a large enum, but got {letters}."
    total = sum(len(str(one)) for one in (*names, *values))
    return f"Total string length exceeds limit of {MAX_LETTERS}." if total > MAX_LETTERS else None


def _context(path: Path) -> str:
    return repr(path)


def groq_problem(schema: Any) -> str | None:
    """What Groq says of a strict schema: OpenAI's rules, and no bounds at all."""
    for path, part, _ in parts(schema):
        where = "/".join(name for name in path if name != "properties") or "schema"
        bad = next((name for name in (*NOT_PERMITTED, *GROQ_TOO) if name in part), None)
        if bad is not None:
            return f"response_format/json_schema/{where}: {bad} is not supported"
        problem = _object_problem(part) if _is_object(part) else None
        if problem is not None:
            return f"response_format/json_schema/{where}: {problem}"
    return None


_ANTHROPIC_BOUNDS = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("maxItems", "uniqueItems", "contains", "prefixItems"),
    "object": ("patternProperties", "minProperties", "maxProperties", "propertyNames"),
}
_ANTHROPIC_NOT = ("oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas")
_ANTHROPIC_FORMATS = FORMATS | {"uri"}
_MOST_OPTIONAL, _MOST_UNIONS = 24, 16


def anthropic_problem(schema: Any) -> str | None:
    """What Anthropic says of a schema in `output_config.format`, None if it takes it."""
    found = list(parts(schema))
    for _, part, _ in found:
        told = _anthropic_part(part)
        if told is not None:
            return told
    optional = sum(
        name not in (part.get("required") or ()) for _, part, _ in found for name in part.get("properties") or ()
    )
    if optional > _MOST_OPTIONAL:
        return f"Schemas contains too many optional parameters ({optional}), the limit is {_MOST_OPTIONAL}."
    unions = sum("anyOf" in part or isinstance(part.get("type"), list) for _, part, _ in found)
    if unions > _MOST_UNIONS:
        return f"Schemas contains too many parameters with union types ({unions}), the limit is {_MOST_UNIONS}."
    return None


def _anthropic_part(part: Json) -> str | None:
    bad = next((name for name in _ANTHROPIC_NOT if name in part), None)
    if bad is not None:
        return f"Schema keyword '{bad}' is not supported"
    kinds = part["type"] if isinstance(part.get("type"), list) else [part.get("type")]
    for kind in kinds:
        bounds = [name for name in _ANTHROPIC_BOUNDS.get(str(kind), ()) if name in part]
        if bounds:
            return f"For '{kind}' type, properties {', '.join(bounds)} are not supported"
    if "object" in kinds and part.get("additionalProperties") is not False:
        return "For 'object' type, 'additionalProperties' must be explicitly set to false"
    if part.get("minItems", 0) not in (0, 1):
        return "For 'array' type, 'minItems' values other than 0 or 1 are not supported"
    if part.get("format") is not None and part["format"] not in _ANTHROPIC_FORMATS:
        return f"String format '{part['format']}' is not supported"
    return None
