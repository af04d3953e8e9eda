"""JSON Schemas for Anthropic's structured outputs: closed objects, with most limits moved to descriptions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.core.errors import InputError
from orchestrator.policy.dialect.draft import Draft
from orchestrator.policy.dialect.strict_schemas import DESCRIBED_LIMITS, FORMATS, RARE, described, has_lookaround
from orchestrator.policy.dialect.structured import FIELD, ask_in_prompt, schema_of

_LIMITS = DESCRIBED_LIMITS - {"pattern", "format", "minItems"}
_NAMED = frozenset({"properties", "$defs", "definitions"})
_LISTED = frozenset({"anyOf", "allOf"})
# Anthropic's guide to structured outputs, read on 2026-11-26, and the transformation of schemas in its SDK 2.14.
_NOT_TAKEN = RARE | {"oneOf"}
_TYPED = frozenset({"type", "enum", "const", "$ref", *_LISTED})
_READ = frozenset(
    {"required", "additionalProperties", "items", "description", "title", "default", "pattern", "format", "minItems",
     *_TYPED, *_NAMED, *_NOT_TAKEN}
)  # fmt: skip
"""Keywords that are sent, or that make a schema unusable. Other keywords are left out."""
DEEPEST = 100


def ask_closed(draft: Draft) -> None:
    """Convert the schema to its closed form. If the model does not accept it, state the schema in the prompt."""
    asked = schema_of(draft)
    if asked is None:
        return
    try:
        schema = closed_schema(asked["schema"], FIELD)
    except InputError:
        schema = {}
    if not schema or not is_taken(schema):
        ask_in_prompt(draft)
        return
    draft.fields[FIELD] = {"type": "json_schema", "json_schema": {**asked, "schema": schema}}


def closed_schema(schema: Any, where: str, levels: int = DEEPEST) -> dict[str, Any]:
    """Return a schema with closed objects, and with unsupported limits moved to its descriptions.

    orch checks answers against the limits. The provider reports other unsupported features (recursion, `oneOf`) in
    the row's answer. Raises InputError for a value that is not a schema, and for more than `levels` levels. Raises
    InputError also for objects with unlisted keys, because the provider would leave them empty. `where` is the field
    that the error names.
    """
    if not isinstance(schema, dict):
        raise InputError("must be a schema object", field=where)
    if not levels:
        raise InputError(f"has more than {DEEPEST} levels", field=where)
    found: dict[str, Any] = {}
    limits = {}
    for name, value in schema.items():
        if name in _LIMITS or _is_limit(name, value):
            limits[name] = value
        elif name in _NAMED and isinstance(value, dict):
            found[name] = {
                key: closed_schema(inner, f"{where}.{name}.{key}", levels - 1) for key, inner in value.items()
            }
        elif name in _LISTED and isinstance(value, list):
            found[name] = [
                closed_schema(inner, f"{where}.{name}[{at}]", levels - 1) for at, inner in enumerate(value)
            ]
        elif name == "items":
            found[name] = closed_schema(value, f"{where}.items", levels - 1)
        elif name in _READ:
            found[name] = value
    kind = found.get("type")
    is_object = kind == "object" or (isinstance(kind, list) and "object" in kind)
    if is_object and found.setdefault("additionalProperties", False) is not False:
        raise InputError("objects with keys that are not listed have no counterpart", field=where)
    return described(found, limits)


def _is_limit(name: str, value: Any) -> bool:
    if name == "pattern":
        return isinstance(value, str) and has_lookaround(value)
    return (name == "minItems" and value not in (0, 1)) or (name == "format" and value not in {*FORMATS, "uri"})


MOST_OPTIONAL = 24
MOST_UNIONS = 16
"""Maximum number of unions in a schema; `MOST_OPTIONAL` is the maximum number of optional properties.

A schema above a limit is stated in the prompt instead.
"""


def is_taken(schema: Any) -> bool:
    """True if structured outputs accept a closed schema.

    They accept no recursion, empty object, untyped part or unsupported keyword. They limit the numbers of optional
    properties and unions.
    """
    nodes = [*_nodes(schema)]
    unions = sum("anyOf" in node or isinstance(node.get("type"), list) for node in nodes)
    optional = sum(
        len(node["properties"].keys() - set(node.get("required") or ())) for node in nodes if _has_properties(node)
    )
    return (
        optional <= MOST_OPTIONAL
        and unions <= MOST_UNIONS
        and all(_TYPED & node.keys() for node in nodes)
        and not any(_NOT_TAKEN & node.keys() for node in nodes)
        and all(_has_properties(node) for node in nodes if node.get("type") == "object")
        and not _is_recursive(schema)
    )


def _has_properties(node: Mapping[str, Any]) -> bool:
    return isinstance(node.get("properties"), dict) and bool(node["properties"])


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, list):
        for inner in schema:
            yield from _nodes(inner)
    elif isinstance(schema, dict):
        yield schema
        for name, inner in schema.items():
            if name in _NAMED and isinstance(inner, dict):
                for one in inner.values():
                    yield from _nodes(one)
            elif name in _LISTED or name == "items":
                yield from _nodes(inner)


def _is_recursive(schema: Any) -> bool:
    """True if a definition refers to itself, or a reference points to anything but a definition."""
    definitions = {
        f"#/{place}/{name}": inner
        for place in ("$defs", "definitions")
        for name, inner in (schema.get(place) or {}).items()
    }
    uses = {
        place: {node["$ref"] for node in _nodes(inner) if isinstance(node.get("$ref"), str)}
        for place, inner in definitions.items()
    }
    used = {node["$ref"] for node in _nodes(schema) if isinstance(node.get("$ref"), str)}
    if not used <= definitions.keys():
        return True
    left = dict(uses)
    while ends := [place for place, refs in left.items() if not refs & left.keys()]:
        for place in ends:
            del left[place]
    return bool(left)
