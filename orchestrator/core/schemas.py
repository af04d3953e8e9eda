"""Pure checks of JSON Schemas, and of answers against them, in bounded time.

jsonschema does the checking, but its time is unbounded. The time doubles at each level if a schema refers to itself
twice; a backtracking pattern may never end; unique items take quadratic time. So every step counts against a budget
far above what an answer of its size needs. RE2 matches the patterns (`schema_patterns`), and values are hashed before
comparison.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

from orchestrator.core.bounded.process import Trip, Tripped, WorkerLimits
from orchestrator.core.bounded.single import Single
from orchestrator.core.schema_keywords import ANNOTATIONS, CHECKING, LIST, NAMED, ONE, impossible, misspelt, mistyped
from orchestrator.core.schema_nulls import NullRemover
from orchestrator.core.schema_patterns import PatternProblem, searcher

MAX_DEPTH = 100
"""Maximum number of levels of lists and objects in an answer."""
STEPS = 200_000
STEPS_A_BYTE = 20
"""Steps that each byte of an answer adds to the base budget STEPS. A step takes about a microsecond."""
MAX_SUBSCHEMAS = 50_000

WORKER = Single(WorkerLimits(memory=1_000_000_000, seconds=10, patience=60.0))
Place = tuple[str | int, ...]
Keyword = Callable[[Any, Any, Any, Any], Iterable[Any] | None]

# Keywords whose schemas apply to the same value as the schema that contains them.
_IN_PLACE = frozenset(("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"))
# Keywords that jsonschema evaluates in uncountable steps, so they are checked in a worker process.
_UNCOUNTED = frozenset(("unevaluatedItems", "unevaluatedProperties", "$dynamicRef"))


class TooCostly(Exception):
    """A check has used up its budget."""


def meant_by(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema that a mapping without schema keywords probably means. None if the mapping is a schema.

    OpenAI's `response_format`, for example, has the schema under `schema`.
    """
    unknown = [key for key in schema if key not in ANNOTATIONS and not key.startswith("x-")]
    if not unknown or any(key in CHECKING or key.startswith("$") for key in schema):
        return None
    if isinstance(inner := schema.get("schema"), Mapping) and {*schema} <= {
        "name",
        "strict",
        "schema",
        "description",
    }:
        return dict(inner)
    names = {name: {"type": kind} if isinstance(kind, str) else kind for name, kind in schema.items()}
    return {"type": "object", "properties": names, "required": list(names)}


def faults(schema: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield mistakes in a formally valid schema: bad patterns, misspelled keywords, cycles, impossible
    requirements.
    """
    for number, (place, part) in enumerate(_parts(schema, ())):
        if number == MAX_SUBSCHEMAS:
            yield (), f"has more than {MAX_SUBSCHEMAS:,} parts"
            return
        mistakes = (*misspelt(part), *impossible(part), *mistyped(part))
        yield from (((*place, keyword), message) for keyword, message in mistakes)
        patterns = [] if not isinstance(part.get("pattern"), str) else [("pattern", part["pattern"])]
        named = part.get("patternProperties")
        if isinstance(named, dict):
            patterns += [("patternProperties", name) for name in named]
        for keyword, pattern in patterns:
            try:
                searcher(pattern)
            except PatternProblem as problem:
                yield (*place, keyword), str(problem)
    if (circle := _circle(schema)) is not None:
        yield circle, "refers to itself without going deeper into the answer, so no check would end"


def without_nullable(schema: Mapping[str, Any]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield each part with OpenAPI's `nullable: true`, which checks nothing: its place and its correct form."""
    for place, part in _parts(schema, ()):
        if part.get("nullable") is not True or "null" in (kind := part.get("type", ())):
            continue
        plain = {keyword: value for keyword, value in part.items() if keyword != "nullable"}
        if not isinstance(kind, str | list) or not ONE.isdisjoint(part) or not LIST.isdisjoint(part):
            plain = {"anyOf": [plain, {"type": "null"}]}
        else:
            plain["type"] = [*([kind] if isinstance(kind, str) else kind), "null"]
            plain |= {"enum": [*part["enum"], None]} if isinstance(part.get("enum"), list) else {}
        yield place, plain


def _parts(schema: Any, place: Place) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    pending = [(place, schema)]
    while pending:
        here, part = pending.pop()
        if not isinstance(part, dict):
            continue
        yield here, part
        pending.extend((inner, sub) for inner, sub in _inside(part, here))


def _inside(part: Mapping[str, Any], place: Place) -> Iterator[tuple[Place, Any]]:
    for keyword, value in part.items():
        if keyword in ONE:
            yield (*place, keyword), value
        elif keyword in LIST and isinstance(value, list):
            yield from (((*place, keyword, index), sub) for index, sub in enumerate(value))
        elif keyword in NAMED and isinstance(value, dict):
            yield from (((*place, keyword, name), sub) for name, sub in value.items())


def _circle(schema: Mapping[str, Any]) -> Place | None:
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    resource = DRAFT202012.create_resource(dict(schema))
    start = Registry().with_resource("", resource).resolver_with_root(resource)
    done: set[int] = set()
    for place, part in _parts(schema, ()):
        if id(part) not in done and _refers_to_itself(part, start, done):
            return place
    return None


def _refers_to_itself(part: Mapping[str, Any], resolver: Any, done: set[int]) -> bool:
    open_: set[int] = {id(part)}
    path = [(part, resolver, _same_value_schemas(part, resolver))]
    while path:
        current, _, following = path[-1]
        step = next(following, None)
        if step is None:
            path.pop()
            open_.discard(id(current))
            done.add(id(current))
            continue
        other, its = step
        if id(other) in open_:
            return True
        if id(other) not in done and isinstance(other, dict):
            open_.add(id(other))
            path.append((other, its, _same_value_schemas(other, its)))
    return False


def _same_value_schemas(part: Mapping[str, Any], resolver: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the schemas that `part` applies to the same value. Unresolvable references are reported elsewhere."""
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    if isinstance(part.get("$id"), str):
        resolver = resolver.in_subresource(DRAFT202012.create_resource(dict(part)))
    for keyword in ("$ref", "$dynamicRef"):
        if isinstance(part.get(keyword), str):
            with suppress(Unresolvable):
                found = resolver.lookup(part[keyword])
                yield found.contents, found.resolver
    for place, sub in _inside(part, ()):
        if place[0] in _IN_PLACE:
            yield sub, resolver


class SchemaCheck:
    """Checks answers against a schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._is_counted = not any(_UNCOUNTED & part.keys() for _, part in _parts(schema, ()))
        self._validator = _validator()(schema) if self._is_counted else None

    def problem(self, value: Any, size: int) -> str | None:
        """Return the problem of an answer of `size` bytes, or None if the answer fits. Never raises."""
        if _is_deep(value):
            return f"the answer is nested deeper than {MAX_DEPTH} levels"
        if self._validator is None:
            return self._in_worker(value)
        _budget.left = STEPS + STEPS_A_BYTE * size
        try:
            error = next(iter(self._validator.iter_errors(value)), None)
        except TooCostly:
            return "the answer takes too long to check: it is too large for its schema, or repeats too much"
        except RecursionError:
            return "the answer is nested too deeply to check"
        except Exception as error:  # noqa: BLE001 (a schema may make jsonschema fail in any way)
            return f"the answer cannot be checked: {type(error).__name__}: {error}"[:300]
        return None if error is None else _message(error)

    def fitted(self, value: Any, size: int) -> tuple[Any, str | None]:
        """Return an answer in the form that its schema allows, and the remaining problem or None.

        Nulls of optional properties are removed if the schema forbids these nulls and the answer fits without them.
        """
        problem = self.problem(value, size)
        if problem is None or self._validator is None or _is_deep(value):
            return value, problem
        with suppress(Exception):  # a schema may raise anything, as above: then report the first problem
            _budget.left = STEPS + STEPS_A_BYTE * size
            other = NullRemover(self._validator).removed(value)
            if other != value and self.problem(other, size) is None:
                return other, None
        return value, problem

    def _in_worker(self, value: Any) -> str | None:
        try:
            (found,) = WORKER.call(f"{__name__}:check_uncounted", dict(self._schema), value)
        except Tripped as tripped:
            what = "memory" if tripped.trip is Trip.MEMORY else "time"
            return f"the answer takes too much {what} to check"
        problem: str | None = found[0]
        return problem


def check_uncounted(schema: dict[str, Any], value: Any) -> Iterator[list[str | None]]:
    """Yield the problem of an answer, or None; runs in a worker process."""
    from jsonschema import Draft202012Validator

    try:
        error = next(iter(Draft202012Validator(schema).iter_errors(value)), None)
    except Exception as error:  # noqa: BLE001 (as above)
        yield [f"the answer cannot be checked: {type(error).__name__}: {error}"[:300]]
        return
    yield [None if error is None else _message(error)]


def _message(error: Any) -> str:
    return f"{'/'.join(map(str, error.path)) or 'the answer'}: {error.message}"


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level if isinstance(outer, list | dict)
                 for inner in (outer.values() if isinstance(outer, dict) else outer)]  # fmt: skip
        if not level:
            return False
    return True


class _Budget(threading.local):
    left = 0.0


_budget = _Budget()


def _spend(steps: float) -> None:
    _budget.left -= steps
    if _budget.left < 0:
        raise TooCostly


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    known: dict[str, Keyword] = dict(Draft202012Validator.VALIDATORS)
    known |= {
        "pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items, "const": _const, "multipleOf": _multiple_of,
    }  # fmt: skip
    counted = {name: _counted(keyword) for name, keyword in known.items()}
    return extend(Draft202012Validator, {**counted, "type": _type, "enum": _enum})  # type: ignore[no-untyped-call]


def _counted(keyword: Keyword) -> Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _spend(1 + len(value) / 4 if type(value) in (list, dict) else 1)
        for error in keyword(validator, value, instance, schema) or ():
            _spend(len(error.message) / 50)  # the message quotes the whole value, and may be kept during other checks
            yield error

    return counted


def _type(validator: Any, types: str | list[str], instance: Any, schema: Any) -> list[Any]:
    """Check `type` without the cost of a generator, since nearly every schema has this keyword."""
    wanted = (types,) if isinstance(types, str) else types
    for name in wanted:
        if validator.is_type(instance, name):
            return []
    message = f"{instance!r} is not of type {', '.join(map(repr, wanted))}"
    _spend(1 + len(message) / 50)
    return [_error(message)]


def _error(message: str) -> Any:
    from jsonschema import ValidationError

    return ValidationError(message)


def _matches(pattern: str, text: str) -> bool:
    try:
        found = searcher(pattern)
    except PatternProblem:
        return True  # the job is from before unsupported patterns were refused
    _spend(3 + len(text) * found.size / 100)
    return found.found_in(text)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield _error(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if _matches(pattern, name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, more: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    _spend(len(instance) / 10)
    extras = [
        name for name in instance
        if name not in properties and not any(_matches(pattern, name) for pattern in patterns)
    ]  # fmt: skip
    if isinstance(more, dict):
        for name in extras:
            yield from validator.descend(instance[name], more, path=name)
    elif more is False and extras:
        names = ", ".join(map(repr, sorted(extras)))
        was = "was" if len(extras) == 1 else "were"
        yield _error(f"Additional properties are not allowed ({names} {was} unexpected)")


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if unique and isinstance(instance, list):
        seen = set()
        for item in instance:
            key = _key(item)
            if key in seen:
                yield _error(f"{instance!r} has non-unique elements")
                return
            seen.add(key)


def _enum(validator: Any, values: list[Any], instance: Any, schema: Any) -> list[Any]:
    if _key(instance) in _keys(_ById(values)):
        return []
    message = f"{instance!r} is not one of {values!r}"
    _spend(1 + len(message) / 50)
    return [_error(message)]


def _const(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if _key(instance) != _constant(_ById(value)):
        yield _error(f"{value!r} was expected")


def _multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from fractions import Fraction

    if isinstance(instance, bool) or not isinstance(instance, int | float):
        return
    if isinstance(divisor, int):
        fits = instance % divisor == 0
    else:
        try:
            quotient = instance / divisor
            fits = int(quotient) == quotient
        except OverflowError:  # too large for a float: compute exactly
            fits = (Fraction(instance) / Fraction(divisor)).denominator == 1
    if not fits:
        yield _error(f"{instance!r} is not a multiple of {divisor}")


class _ById:
    """A value of a schema, compared by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.value is self.value


@lru_cache(maxsize=1024)
def _keys(held: _ById) -> frozenset[Any]:
    return frozenset(_key(value, _free) for value in held.value)


@lru_cache(maxsize=1024)
def _constant(held: _ById) -> Any:
    return _key(held.value, _free)


def _free(steps: float) -> None:
    """Spend no steps. For keys of a schema's own values, which are computed only once."""


def _key(value: Any, spend: Callable[[float], None] = _spend) -> Any:
    """Return a hashable key. Values that JSON Schema calls equal have equal keys: 1 equals 1.0, but not true."""
    spend(0.5)
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, list):
        return list, tuple(_key(inner, spend) for inner in value)
    if isinstance(value, dict):
        return dict, frozenset((name, _key(inner, spend)) for name, inner in value.items())
    return value
