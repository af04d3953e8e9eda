"""Schemas without references, lists of types and nulls, for which the same answers hold."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from orchestrator.core.errors import InputError
from orchestrator.policy.dialect.plain_schemas import plain_schema

Json = dict[str, Any]
PART: Json = {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$defs": {"P": PART}, "$ref": "#/$defs/P"}, [{"n": 1}, {"n": None}], [{"n": "x"}, {}]),
        ({"type": ["string", "null"]}, ["x", None], [1]),
        ({"type": ["string", "null"], "enum": ["a", None]}, ["a", None], ["b", 1]),
        ({"enum": ["a", None]}, ["a", None], ["b"]),
        ({"type": ["string", "integer"], "minimum": 3}, ["x", 3], [2, None]),
        ({"properties": {"type": {"type": "string"}, "$defs": {"type": "null"}}}, [{"type": "x"}], [{"type": 1}]),
        ({"definitions": {"a/b": {"type": "null"}}, "items": {"$ref": "#/definitions/a~1b"}}, [[None]], [[1]]),
        ({"type": "object", "additionalProperties": False, "properties": {}}, [{}], [{"a": 1}]),
        ({"$defs": {"P": PART}, "anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}, [None, {"n": 2}], [1]),
    ],
)
def test_a_plain_schema_takes_the_same_answers(schema: Json, good: list[Any], bad: list[Any]) -> None:
    found = plain_schema(schema, "f")
    assert "$" not in str(found).replace("'$defs': {'type': 'null'}", "")
    for one, is_good in [*((one, True) for one in good), *((one, False) for one in bad)]:
        assert jsonschema.Draft202012Validator(schema).is_valid(one) is is_good
        assert jsonschema.Draft202012Validator(found).is_valid(one) is is_good


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"a": {"$ref": "#"}}}, "contains itself"),
        ({"$ref": "#/$defs/none"}, "#/$defs/none has no counterpart"),
        ({"$ref": "https://example.com/a.json"}, "has no counterpart"),
    ],
)
def test_a_reference_that_has_no_end_is_named(schema: Json, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("$", r"\$")) as caught:
        plain_schema(schema, "response_format")
    assert caught.value.field == "response_format"
