"""Schemas of answers: what is told of one beforehand, and that no answer takes long to be checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from orchestrator.core import schemas
from orchestrator.core.bounded.process import WorkerLimits
from orchestrator.core.bounded.single import Single
from orchestrator.core.errors import InputError
from orchestrator.core.schema_patterns import PatternProblem, searcher
from orchestrator.core.schemas import SchemaCheck, faults
from orchestrator.policy.answer_check import OutputCheck
from orchestrator.policy.answer_text import Answer
from orchestrator.settings import job_file


def problem(schema: dict[str, Any], text: str) -> tuple[str, str] | None:
    return OutputCheck(schema).problem(Answer(text, "stop", False))


def nested(text: str, depth: int) -> str:
    return '{"x":' * depth + text + "}" * depth


TWICE: dict[str, Any] = {
    "$defs": {"a": {"properties": {"x": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}}}
}
FAN: dict[str, Any] = {
    "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 3} for i in range(30)}
    | {"d30": {"type": "string"}},
    "$ref": "#/$defs/d0",
}
DEAREST = ("many patterns for many names", "one that no answer fits")
"""Seconds of a core each, as none of those beside them."""
HOSTILE: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "a pattern that tries again and again": ({"pattern": "^(a+)+$"}, json.dumps("a" * 5000 + "b"), "does not match"),
    "one that fits": ({"pattern": "^(a+)+$"}, json.dumps("a" * 5000), None),
    "alternatives": ({"pattern": "^(a|a|aa)*$"}, json.dumps("a" * 50_000 + "b"), "does not match"),
    "names by a pattern": (
        {"patternProperties": {"^(a+)+$": {"type": "string"}}, "additionalProperties": False},
        json.dumps({"a" * 5000 + "b": 1}),
        "Additional properties",
    ),
    "a schema that refers to itself twice": (
        {**TWICE, "$ref": "#/$defs/a"}, nested('{"x":1}', 60).replace("1", "[1]"), None,
    ),
    "one that no answer fits": (
        {"$defs": {"a": {"type": "object", "properties": {"x": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}}}},
         "$ref": "#/$defs/a"},
        nested("1", 60), "takes too long|is not valid under any",
    ),
    "references that fan out": (FAN, '"x"', "takes too long"),
    "objects that must differ": (
        {"uniqueItems": True}, json.dumps([{"a": i} for i in range(50_000)]), None,
    ),
    "objects of which two are the same": (
        {"uniqueItems": True}, json.dumps([{"a": i} for i in range(20_000)] + [{"a": 7.0}]), "non-unique",
    ),
    "many values of an enum": (
        {"items": {"enum": [f"v{i}" for i in range(50_000)]}}, json.dumps([f"v{i}" for i in range(20_000)]), None,
    ),
    "not one of many": (
        {"items": {"enum": [f"v{i}" for i in range(50_000)]}}, json.dumps(["no"]), "is not one of",
    ),
    "many patterns for many names": (
        {"patternProperties": {f"^{i}$": {} for i in range(2000)}}, json.dumps({f"{i}": 1 for i in range(20_000)}),
        "takes too long",
    ),
    "a large number and a small divisor": ({"multipleOf": 0.25}, "1" + "0" * 400, None),
    "a number that floats do not hold": ({"multipleOf": 0.3}, "1" + "0" * 4000, "is not a multiple"),
    "a number of a hundred thousand digits": ({"type": "integer"}, "9" * 100_000, "not JSON"),
    "an exponent": ({"type": "number"}, "1e999999999", "not JSON"),
    "nested a hundred thousand deep": ({"type": "array"}, "[" * 100_000 + "]" * 100_000, "not JSON"),
    "nested as deep as Python goes": ({"type": "array"}, "[" * 900 + "]" * 900, "deeper than 100 levels"),
    "nested as deep as it may be": ({"type": "array"}, "[" * 100 + "]" * 100, None),
    "many errors in many alternatives": (
        {"items": {"anyOf": [{"type": "string"}, {"type": "null"}, {"maxProperties": 0}]}},
        json.dumps([{"a": "x" * 100}] * 50_000), "is not valid under any",
    ),
    "a pattern for a long text": ({"pattern": "[ab]*a[ab]{900}"}, json.dumps("ab" * 100_000), None),
    "a pattern for a text that does not fit": (
        {"pattern": "[ab]*a[ab]{900}c"}, json.dumps("ab" * 1_000_000), "takes too long|does not match",
    ),
    "a format": ({"format": "email"}, '"nobody"', None),  # says what it is, and is not a check
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "text", "says"),
    [pytest.param(*case, id=name, marks=[pytest.mark.soak] * (name in DEAREST)) for name, case in HOSTILE.items()],
)
def test_no_answer_takes_long_to_be_checked(schema: dict[str, Any], text: str, says: str | None) -> None:
    found = problem(schema, text)
    if says is None:
        assert found is None
    else:
        assert found is not None
        assert found[0] in ("schema_mismatch", "invalid_json")
        assert any(one in found[1] for one in says.split("|")), found[1][:300]


@pytest.mark.long
def test_what_is_not_counted_is_checked_by_a_worker_process(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Single(WorkerLimits(memory=200_000_000, seconds=1))
    monkeypatch.setattr(schemas, "WORKER", worker)
    small = {"properties": {"a": {}}, "unevaluatedProperties": False}
    assert problem(small, '{"a": 1}') is None
    assert "unexpected" in (problem(small, '{"b": 1}') or ("", ""))[1]
    levels = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 4} for i in range(15)}
    endless = {"$defs": {**levels, "d15": {}}, "$ref": "#/$defs/d0", "unevaluatedProperties": False}
    assert problem(endless, '{"a": 1}') == ("schema_mismatch", "the answer takes too much time to check")
    assert problem(small, '{"a": 2}') is None
    worker.close()


ODD: dict[str, dict[str, Any]] = {
    "a pattern that was never one": {"pattern": "(["},
    "look-ahead": {"pattern": "^(?!x)"},
    "a circle": {"$ref": "#"},
    "a type that is none": {"type": "objekt"},
    "a reference to nowhere": {"$ref": "#/nowhere"},
    "nothing to divide by": {"multipleOf": 0},
    "a list where a schema is meant": {"items": [1, 2]},
}


@pytest.mark.parametrize("schema", ODD.values(), ids=ODD.keys())
def test_a_schema_of_an_older_job_makes_no_check_fail(schema: dict[str, Any]) -> None:
    """It was accepted when it was: its rows are judged as far as that goes."""
    for text in ('"x"', "1", "[1, 2]", '{"a": 1}', "1.5"):
        found = problem(schema, text)
        assert found is None or found[0] == "schema_mismatch"


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, 1.0, 0.5, "a", "ab", "b1", "", "ü"])
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "c1"]), inner, max_size=3),
    max_leaves=8,
)
TYPES = st.sampled_from(["string", "integer", "number", "array", "object", "null", "boolean"])
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=4),
        "const": VALUES,
        "pattern": st.sampled_from(["^a", "b$", "[0-9]", "^.*$", "a|b"]),
        "uniqueItems": st.booleans(),
        "multipleOf": st.sampled_from([1, 2, 0.5, 3]),
        "minimum": st.integers(-1, 2),
        "maxLength": st.integers(0, 2),
        "minItems": st.integers(0, 2),
        "required": st.lists(st.sampled_from(["a", "b"]), unique=True),
    },
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^c", "1$", "a"]), inner, max_size=2),
            "additionalProperties": inner | st.booleans(),
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "if": inner,
            "then": inner,
            "contains": inner,
        },
    ),
    max_leaves=5,
)


def is_same(one: Any, other: Any) -> bool:
    """What JSON Schema calls equal."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    return bool(one == other)


def unique_items(_: Any, unique: bool, value: Any, __: Any) -> Iterator[ValidationError]:
    """jsonschema sorts what it compares, and overlooks that [[1], [true], [1]] has the same item twice."""
    if unique and isinstance(value, list) and any(is_same(*pair) for pair in combinations(value, 2)):
        yield ValidationError("has non-unique elements")


JSONSCHEMA = extend(Draft202012Validator, {"uniqueItems": unique_items})  # type: ignore[no-untyped-call]


@pytest.mark.slow
@given(SCHEMAS, VALUES)
def test_the_verdict_is_that_of_jsonschema(schema: dict[str, Any], value: Any) -> None:
    """Of several errors jsonschema tells another first in each process: it goes through a set of names."""
    assert list(faults(schema)) == []
    places = {"/".join(map(str, error.path)) or "the answer" for error in JSONSCHEMA(schema).iter_errors(value)}
    found = SchemaCheck(schema).problem(value, 10)
    assert (found is None) == (not places)
    assert found is None or found.partition(":")[0] in places


def test_of_several_errors_the_first_in_the_answer_is_told_and_equal_items_are_found_wherever_they_are() -> None:
    names = [f"n{number}" for number in range(20)]
    found = SchemaCheck({"additionalProperties": {"type": "string"}}).problem(dict.fromkeys(names), 10)
    assert found == "n0: None is not of type 'string'"
    assert "non-unique" in (SchemaCheck({"uniqueItems": True}).problem([[1], [True], [1]], 10) or "")
    assert SchemaCheck({"uniqueItems": True}).problem([[1], [True], [0], [False]], 10) is None


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "#"}, ()),
        ({"allOf": [{"$ref": "#"}]}, ()),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {}]}, "b": {"not": {"$ref": "#/$defs/a"}}}}, ("$defs",)),
        ({"properties": {"x": {"$ref": "#/properties/x"}}}, ("properties", "x")),
        ({"if": True, "then": {"$ref": "#"}}, ()),
        ({"$defs": {"a": {"$anchor": "me", "oneOf": [{"$ref": "#me"}]}}, "$ref": "#me"}, ()),
    ],
)
def test_a_schema_that_goes_in_a_circle_is_told(schema: dict[str, Any], place: tuple[str, ...]) -> None:
    ((found, message),) = faults(schema)
    assert found[: len(place)] == place
    assert "refers to itself" in message


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"child": {"$ref": "#"}}},
        {"items": {"$ref": "#"}, "type": "array"},
        {"$defs": {"a": {}}, "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]},
        {"properties": {"pattern": {"const": "(["}, "$ref": {"type": "string"}}},
        {"enum": [{"pattern": "(["}], "default": {"$ref": "#"}},
        {"$id": "http://a/b", "$defs": {"c": {"$id": "d", "properties": {"x": {"$ref": "http://a/b"}}}}},
        TWICE,
    ],
)
def test_a_schema_that_may_refer_to_itself_is_sound(schema: dict[str, Any]) -> None:
    assert list(faults(schema)) == []


JOB = """\
name: j
documents: d
tasks:
  - id: t
    model: m
    prompt: What?
    schema:
      type: object
      properties:
        code: {type: string, pattern: "^(?!x)a"}
        zip:
          pattern: '^\\d{5}$'
        same:
          pattern: (a)\\1
      patternProperties:
        "^a{2000}$": {}
"""


def test_what_a_pattern_may_not_have_is_told_with_file_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    with pytest.raises(InputError) as told:
        job_file.load(path)
    expected = (
        "10: tasks[0].schema.properties.code.pattern: the pattern '^(?!x)a' uses look-ahead",
        "14: tasks[0].schema.properties.same.pattern: the pattern '(a)\\\\1' refers back",
        "15: tasks[0].schema.patternProperties: the pattern '^a{2000}$' cannot be used",
    )
    for line, begins in zip(str(told.value).splitlines(), expected, strict=True):
        assert line.startswith(f"{path}:{begins}")


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        (r"^\d{4}-\d\d$", "2024-01", True),
        (r"^\d+$", "1\n", False),
        (r"A", "A", True),
        (r"\u{1F600}", "😀", True),
        (r"[\uD83D\uDE00-\uD83D\uDE02]", "😁", True),
        (r"\cA", "\x01", True),
        (r"[^]", "\n", True),
        (r"[]", "a", False),
        (r"[\b]", "\b", True),
        (r"^\p{Letter}+$", "éa", True),
        (r"\p{Script=Greek}", "α", True),
        (r"^[[:alpha:]]$", "a]", True),
        (r"a\/b\-c", "a/b-c", True),
        (r"^(?<year>\d+)$", "12", True),
        (r"[^[]", "[", False),
        (r"\\u0041", r"\u0041", True),
        (r"^[\w.+-]+@[\w-]+\.[\w.]+$", "a.b@c.de", True),
    ],
)
def test_patterns_mean_what_they_mean_in_javascript(pattern: str, text: str, fits: bool) -> None:
    assert searcher(pattern).found_in(text) is fits


@pytest.mark.parametrize(
    "pattern",
    [r"(?=a)b", r"(?<!a)b", r"(a)\1", r"(?<n>a)\k<n>", "a{1,5000}", "(", "[", r"\Z", r"\Qa", r"\p{Nope}", "*", "a**",
     "\\", "((a{100}){100}){100}", "\ud800", "(?:" * 3000, r"\p{L}{1000}"],
)  # fmt: skip
def test_a_pattern_that_cannot_be_used_is_told(pattern: str) -> None:
    with pytest.raises(PatternProblem) as told:
        searcher(pattern)
    assert len(str(told.value)) < 400


@given(st.text(st.sampled_from(r"ab1[](){}|*+?.^$\u0-,:=!<>pP"), max_size=12))
def test_no_text_makes_the_engine_fail(pattern: str) -> None:
    try:
        searcher(pattern).found_in("ab1[]u0-")
    except PatternProblem as told:
        assert str(told)  # noqa: PT017 (either outcome is right)


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    schemas.WORKER.close()
