"""JSON Schemas as columns, and the values that columns hold."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.pipeline.finish.outputs.column_types import (
    MAX_DEPTH,
    Kind,
    ListOf,
    Plain,
    Struct,
    Unfit,
    fitter,
    flattened,
    kind_of,
)

TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "next": {"$ref": "#"}},
}
SHARED = {
    "$defs": {"a/b": {"type": "integer"}},
    "type": "object",
    "properties": {"n": {"$ref": "#/$defs/a~1b"}, "none": {"$ref": "#/$defs/x/y"}, "far": {"$ref": "other.json"}},
}
TEXT, INTEGER, NUMBER, BOOLEAN, JSON = Plain.TEXT, Plain.INTEGER, Plain.NUMBER, Plain.BOOLEAN, Plain.JSON


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, TEXT),
        ({"type": "string", "enum": ["a"]}, TEXT),
        ({"type": ["integer", "null"]}, INTEGER),
        ({"type": ["integer", "number"]}, NUMBER),
        ({"type": "boolean"}, BOOLEAN),
        ({"enum": ["a", None]}, TEXT),
        ({"enum": [1, 2.5]}, NUMBER),
        ({"enum": ["a", 1]}, JSON),
        ({"enum": [[]]}, JSON),
        ({"const": True}, BOOLEAN),
        ({"type": ["string", "integer"]}, JSON),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, TEXT),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, JSON),
        ({"type": "array", "items": {"type": "string"}}, ListOf(TEXT)),
        ({"type": "array", "items": True}, ListOf(JSON)),
        ({"type": "array"}, JSON),
        ({"type": "array", "prefixItems": [{}], "items": {"type": "string"}}, JSON),
        ({"type": "object"}, JSON),
        ({"type": "object", "properties": {"a": {}, "A": {}}}, JSON),
        ({"type": "object", "properties": {"": {}}}, JSON),
        ({"properties": {"a": {"type": "string"}}}, Struct((("a", TEXT),))),
        (TREE, Struct((("name", TEXT), ("next", Struct((("name", TEXT), ("next", JSON))))))),
        (SHARED, Struct((("n", INTEGER), ("none", JSON), ("far", JSON)))),
        (True, JSON),
        ({}, JSON),
    ],
)
def test_what_a_schema_is_as_a_column(schema: Any, kind: Kind) -> None:
    assert kind_of(schema) == kind


def test_what_is_nested_too_deeply_is_text() -> None:
    kind = kind_of(deep(MAX_DEPTH + 5))
    levels = 0
    while isinstance(kind, ListOf):
        kind, levels = kind.item, levels + 1
    assert (kind, levels) == (JSON, MAX_DEPTH + 1)


PERSON = Struct((("name", TEXT), ("ages", ListOf(INTEGER))))


@pytest.mark.parametrize(
    ("value", "kind", "cell"),
    [
        (None, INTEGER, None),
        ("é", TEXT, "é"),
        (3, INTEGER, 3),
        (3.0, INTEGER, 3),
        (-(2**63), INTEGER, -(2**63)),
        (3, NUMBER, 3.0),
        (False, BOOLEAN, False),
        ({"a": None}, JSON, '{"a":null}'),
        ("x", JSON, '"x"'),
        ({"name": "A"}, PERSON, {"name": "A", "ages": None}),
        ({"ages": [1, None]}, PERSON, {"name": None, "ages": [1, None]}),
    ],
)
def test_a_value_that_fits(value: Any, kind: Kind, cell: Any) -> None:
    fitted = fitter(kind)(value)
    assert (fitted, type(fitted)) == (cell, type(cell))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, TEXT), ("1", INTEGER), (True, INTEGER), (1.5, INTEGER), (2**63, INTEGER), (True, NUMBER), ("1", NUMBER),
        (2**53 + 1, NUMBER), (10**400, NUMBER), (1, BOOLEAN), ({}, ListOf(TEXT)), ([1], ListOf(TEXT)), ([], PERSON),
        ({"name": "A", "more": 1}, PERSON), ({"ages": ["x"]}, PERSON),
    ],
)  # fmt: skip
def test_a_value_that_would_lose_something(value: Any, kind: Kind) -> None:
    with pytest.raises(Unfit):
        fitter(kind)(value)


def test_a_flat_table_has_no_lists() -> None:
    assert flattened(Struct((("a", PERSON), ("b", ListOf(TEXT))))) == Struct(
        (("a", Struct((("name", TEXT), ("ages", JSON)))), ("b", JSON))
    )
