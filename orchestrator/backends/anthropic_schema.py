"""JSON Schemas as Anthropic's structured outputs take them. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.core.errors import InputError

_NUMBER_LIMITS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_LIMITS = _NUMBER_LIMITS | {"minLength", "maxLength", "maxItems", "uniqueItems"}
_NAMED = frozenset({"properties", "$defs", "definitions"})
_LISTED = frozenset({"anyOf", "allOf"})


DEEPEST = 100


def fitted(schema: Any, where: str, levels: int = DEEPEST) -> dict[str, Any]:
    """A schema with its objects closed and its limits told in words: they are not taken there, and answers are
    checked for them here.

    What else is not accepted (recursion, `oneOf`), the answer to the row says. Raises InputError for what is not a
    schema, for more `levels`, and for objects with keys that are not listed, which would be empty there.
    """
    if not isinstance(schema, dict):
        raise InputError("must be a schema object", field=where)
    if not levels:
        raise InputError(f"has more than {DEEPEST} levels", field=where)
    found: dict[str, Any] = {}
    limits = {}
    for name, value in schema.items():
        if name in _LIMITS or (name == "minItems" and value not in (0, 1)):
            limits[name] = value
        elif name in _NAMED and isinstance(value, dict):
            found[name] = {key: fitted(inner, f"{where}.{name}.{key}", levels - 1) for key, inner in value.items()}
        elif name in _LISTED and isinstance(value, list):
            found[name] = [fitted(inner, f"{where}.{name}[{at}]", levels - 1) for at, inner in enumerate(value)]
        elif name == "items":
            found[name] = fitted(value, f"{where}.items", levels - 1)
        else:
            found[name] = value
    kind = found.get("type")
    is_object = kind == "object" or (isinstance(kind, list) and "object" in kind)
    if is_object and found.setdefault("additionalProperties", False) is not False:
        raise InputError("objects with keys that are not listed have no counterpart", field=where)
    if limits:
        words = ", ".join(f"{name}: {value}" for name, value in limits.items())
        found["description"] = f"{found.get('description', '')} ({words})".strip()
    return found
