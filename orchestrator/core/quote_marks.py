"""Finds the quotes in an answer: texts copied from the document, in places that the schema marks. Pure.

`x-quote: true` or `check: quotes` marks a text, or a list of texts. Only orch reads these marks; it never sends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from orchestrator.core.schema_keywords import LIST, NAMED, ONE
from orchestrator.core.schema_patterns import PatternProblem, searcher

MARK, CHECK, QUOTES = "x-quote", "check", "quotes"
NAMES = frozenset({"quote", "quotes"})
"""Names of properties that hold quotes if the task itself has `check: quotes`."""
_SAME_VALUE = ("anyOf", "oneOf", "allOf")
_SAME_VALUE_SINGLE = ("if", "then", "else")
_Path = tuple[str | int, ...]


class Quote(Struct, frozen=True):
    """A quote in an answer; `path` is its place in the answer, such as `clauses/0/quote`."""

    path: str
    text: str


def has_marks(schema: Any) -> bool:
    """True if a schema marks a quote."""
    return bool(schema != unmarked(schema))


def unmarked(schema: Any) -> Any:
    """Return the schema without marks. A property that has the name of a mark stays.

    Raises ValueError if a mark is invalid, or marks a type without texts.
    """
    if not isinstance(schema, dict):
        return schema
    found = {name: value for name, value in schema.items() if not _is_mark(name, value)}
    if len(found) < len(schema):
        _check_mark(schema)
    for name, value in found.items():
        if name in NAMED and isinstance(value, dict):
            found[name] = {key: unmarked(inner) for key, inner in value.items()}
        elif name in LIST and isinstance(value, list):
            found[name] = [unmarked(inner) for inner in value]
        elif name in ONE:
            found[name] = unmarked(value)
    return found


def _check_mark(schema: Mapping[str, Any]) -> None:
    mark, kinds = schema.get(MARK, True), schema.get("type", "string")
    if not isinstance(mark, bool):
        raise ValueError(f"`{MARK}` must be true or false, not {mark!r}")
    if mark and not {"string", "array"} & set([kinds] if isinstance(kinds, str) else kinds):
        raise ValueError(f"`{MARK}` is for texts and lists of texts, and not for {kinds}")


def _is_mark(name: str, value: Any) -> bool:
    return name == MARK or (name == CHECK and value == QUOTES)


def marked_quotes(schema: Mapping[str, Any], answer: Any) -> list[Quote]:
    """Return the quotes of an answer that fits its schema. Marks count in all alternatives of the schema."""
    quotes: dict[_Path, str] = {}
    seen: set[tuple[int, _Path]] = set()
    open_nodes: list[tuple[Any, Any, _Path]] = [(schema, answer, ())]
    while open_nodes:
        node, value, path = open_nodes.pop()
        if not isinstance(node, dict) or (id(node), path) in seen:
            continue
        seen.add((id(node), path))
        if node.get(MARK) is True or node.get(CHECK) == QUOTES:
            quotes.update(_texts(value, path))
        open_nodes += [*_same_value(schema, node, value, path), *_inner(node, value, path)][::-1]
    return [Quote("/".join(map(str, path)), text) for path, text in quotes.items()]


def named_quotes(answer: Any) -> list[Quote]:
    """Return the texts under every property called `quote` or `quotes`."""
    quotes: dict[_Path, str] = {}
    open_values: list[tuple[Any, _Path]] = [(answer, ())]
    while open_values:
        value, path = open_values.pop()
        inner = _items(value)
        for name, part in inner:
            if name in NAMES:
                quotes.update(_texts(part, (*path, name)))
        open_values += [(part, (*path, name)) for name, part in inner][::-1]
    return [Quote("/".join(map(str, path)), text) for path, text in quotes.items()]


def _items(value: Any) -> list[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _texts(value: Any, path: _Path) -> Iterator[tuple[_Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        yield from (((*path, index), one) for index, one in enumerate(value) if isinstance(one, str))


def _same_value(root: Mapping[str, Any], node: Mapping[str, Any], value: Any, path: _Path) -> Iterator[Any]:
    if isinstance(node.get("$ref"), str):
        yield _referred(root, node["$ref"]), value, path
    for name in _SAME_VALUE:
        if isinstance(node.get(name), list):
            yield from ((inner, value, path) for inner in node[name])
    for name in _SAME_VALUE_SINGLE:
        yield node.get(name), value, path


def _inner(node: Mapping[str, Any], value: Any, path: _Path) -> Iterator[tuple[Any, Any, _Path]]:
    if isinstance(value, list):
        first = node.get("prefixItems")
        first = first if isinstance(first, list) else []
        for index, part in enumerate(value):
            yield (first[index] if index < len(first) else node.get("items")), part, (*path, index)
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from ((schema, part, (*path, name)) for schema in _of_property(node, name))


def _of_property(node: Mapping[str, Any], name: str) -> list[Any]:
    properties, patterns = node.get("properties"), node.get("patternProperties")
    found = [properties[name]] if isinstance(properties, dict) and name in properties else []
    if isinstance(patterns, dict):
        found += [inner for pattern, inner in patterns.items() if _fits(pattern, name)]
    return found or [node.get("additionalProperties")]


def _fits(pattern: str, name: str) -> bool:
    try:
        return searcher(pattern).found_in(name)
    except PatternProblem:
        return False


def _referred(root: Mapping[str, Any], reference: str) -> Any:
    """Return the part of the schema that a reference points to; None if it points to nothing in the schema."""
    if not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            return None
    return found
