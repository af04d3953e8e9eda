"""A value that a simple JSON schema accepts, the same for the same seed."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def fit(schema: Json, seed: int, root: Json | None = None) -> Any:
    """Knows $ref into the schema itself, const, enum, anyOf, oneOf, allOf of one, types and their plain bounds."""
    root = schema if root is None else root
    match schema:
        case {"$ref": str(path)}:
            target: Any = root
            for step in path.removeprefix("#").strip("/").split("/"):
                target = target[step]
            return fit(target, seed, root)
        case {"const": value}:
            return value
        case {"enum": [*values]}:
            return values[seed % len(values)]
        case {"anyOf": [first, *_]} | {"oneOf": [first, *_]} | {"allOf": [first]}:
            return fit(first, seed, root)
        case {"type": [kind, *_]} | {"type": str(kind)}:
            return _of_kind(kind, schema, seed, root)
        case _:
            return _of_kind("object" if "properties" in schema else "string", schema, seed, root)


def _of_kind(kind: str, schema: Json, seed: int, root: Json) -> Any:
    match kind:
        case "object":
            parts = schema.get("properties", {})
            return {name: fit(part, seed + number, root) for number, (name, part) in enumerate(parts.items())}
        case "array":
            size = max(schema.get("minItems", 1), 0)
            return [fit(schema.get("items", {}), seed + number, root) for number in range(size)]
        case "integer" | "number":
            return _number(kind, schema, seed)
        case "boolean":
            return seed % 2 == 0
        case "null":
            return None
        case _:
            return _string(schema, seed)


def _number(kind: str, schema: Json, seed: int) -> int | float:
    low = schema.get("minimum", 0)
    high = schema.get("maximum", low + 9)
    number = low + seed % (int(high - low) + 1)
    return int(number) if kind == "integer" else float(number)


_FORMATS = {"date": "2026-11-30", "date-time": "2026-11-30T12:00:00Z", "email": "someone@example.com"}


def _string(schema: Json, seed: int) -> str:
    text = _FORMATS.get(schema.get("format", ""), f"text {seed & 0xFFFFFF:06x}")
    return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", len(text) + 4096)]
