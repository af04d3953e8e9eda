"""Column types for JSON Schemas, and conversion of values to these types. Pure.

A schema can express more than a column (unions, patterns, `allOf`). Anything without a plain type becomes JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

MAX_DEPTH = 16
"""Deepest nesting that gets its own columns. Table readers do not show deeper values, so these become JSON text."""
INT64 = range(-(2**63), 2**63)


class Plain(StrEnum):
    TEXT = "text"
    INTEGER = "integer"  # 64 bits
    NUMBER = "number"  # a double
    BOOLEAN = "boolean"
    JSON = "json"  # text: anything without a type of its own
    MONEY = "money"  # US dollars, with twelve decimal places
    INSTANT = "instant"  # aware UTC


class ListOf(msgspec.Struct, frozen=True):
    item: Kind


class Struct(msgspec.Struct, frozen=True):
    """One or more named fields, each with its type."""

    fields: tuple[tuple[str, Kind], ...]


class VectorOf(msgspec.Struct, frozen=True):
    """A vector of `size` 32-bit numbers, the precision of models. A size of None means any size."""

    size: int | None = None


Kind = Plain | ListOf | Struct | VectorOf


class Unfit(Exception):
    """Raised for a value that its column cannot hold unchanged."""


def root_of(schema: Any) -> Any:
    """Return a JSON Schema with its top-level `$ref` resolved, or None if the reference points nowhere."""
    seen: set[str] = set()
    part = schema
    while isinstance(part, Mapping) and isinstance(reference := part.get("$ref"), str):
        if reference in seen:
            return None
        seen.add(reference)
        part = _at(schema, reference)
    return part


def kind_of(schema: Any) -> Kind:
    return _kind(schema, schema, frozenset(), 0)


def _kind(schema: Any, root: Any, seen: frozenset[str], depth: int) -> Kind:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return Plain.JSON
    reference = schema.get("$ref")
    if reference is not None:
        # A recursive schema would nest without end.
        target = None if reference in seen else _at(root, reference)
        return _kind(target, root, seen | {reference}, depth)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            members = {_kind(part, root, seen, depth) for part in schema[union] if not _is_null(part)}
            return members.pop() if len(members) == 1 else Plain.JSON
    match sorted(_types(schema)):
        case ["string"]:
            return Plain.TEXT
        case ["integer"]:
            return Plain.INTEGER
        case ["number"] | ["integer", "number"]:
            return Plain.NUMBER
        case ["boolean"]:
            return Plain.BOOLEAN
        case ["array"] if "items" in schema and "prefixItems" not in schema:
            return ListOf(_kind(schema["items"], root, seen, depth + 1))
        case ["object"]:
            return _struct(schema.get("properties", {}), root, seen, depth)
        case _:
            return Plain.JSON


def _struct(properties: Mapping[str, Any], root: Any, seen: frozenset[str], depth: int) -> Kind:
    # DuckDB treats names that differ only by case as equal, and rejects empty names.
    if not properties or "" in properties or len({name.casefold() for name in properties}) < len(properties):
        return Plain.JSON
    return Struct(tuple((name, _kind(part, root, seen, depth + 1)) for name, part in properties.items()))


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema names, or that its `enum` or `const` implies.

    Null is left out, as it is always allowed.
    """
    said = schema.get("type")
    if said is not None:
        found = set(said) if isinstance(said, list | tuple) else {said if isinstance(said, str) else "other"}
    elif "properties" in schema:
        found = {"object"}
    else:
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        found = {_NAMES.get(type(value), "other") for value in values}
    return found - {"null"}


_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"


def _at(root: Any, reference: str) -> Any:
    """Resolve a `$ref` within the schema. Return None for an external or broken reference."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    here = root
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        here = here.get(name) if isinstance(here, Mapping) else None
    return here


def flattened(kind: Kind) -> Kind:
    """Return the type for formats without lists: lists become JSON text, but vectors stay."""
    match kind:
        case ListOf():
            return Plain.JSON
        case Struct(fields):
            return Struct(tuple((name, flattened(inner)) for name, inner in fields))
        case _:
            return kind


def fitter(kind: Kind) -> Callable[[Any], Any]:
    """Return a function that converts a decoded JSON value for its column; a missing field becomes None.

    The function raises Unfit if part of the value would be lost.
    """
    convert = _converter(kind)
    return lambda value: None if value is None else convert(value)


def _converter(kind: Kind) -> Callable[[Any], Any]:
    match kind:
        case ListOf(item):
            of_item = fitter(item)
            return lambda value: [of_item(part) for part in _of(value, list)]
        case VectorOf(size):
            return lambda value: _vector(value, size)
        case Struct(fields):
            inner = {name: fitter(of_field) for name, of_field in fields}
            return lambda value: _object(value, inner)
        case _:
            return _PLAIN.get(kind, lambda value: msgspec.json.encode(value).decode())


def _object(value: Any, fields: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    if not _of(value, dict).keys() <= fields.keys():
        raise Unfit
    return {name: fitted(value.get(name)) for name, fitted in fields.items()}


def _vector(value: Any, size: int | None) -> list[float]:
    numbers = _of(value, list)
    if (size is not None and len(numbers) != size) or not all(type(one) in (int, float) for one in numbers):
        raise Unfit
    return [float(one) for one in numbers]


def _of(value: Any, wanted: type) -> Any:
    if not isinstance(value, wanted):
        raise Unfit
    return value


def _integer(value: Any) -> int:
    # JSON Schema also accepts 3.0 as an integer.
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        raise Unfit
    whole = int(value)
    if whole not in INT64:
        raise Unfit
    return whole


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unfit
    try:
        number = float(value)
    except OverflowError:
        raise Unfit from None
    if number != value:
        raise Unfit
    return number


_PLAIN: dict[Plain, Callable[[Any], Any]] = {
    Plain.TEXT: lambda value: _of(value, str),
    Plain.INTEGER: _integer,
    Plain.NUMBER: _number,
    Plain.BOOLEAN: lambda value: _of(value, bool),
}
