"""JSON Schemas without references, nulls, empty objects or lists of types. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.core.errors import InputError

_LEFT_OUT = frozenset({"$schema", "$id", "$comment", "$defs", "definitions"})
Json = dict[str, Any]


def plain_schema(schema: Json, field: str) -> Json:
    """Return a plain schema that allows the same answers. Raises InputError for recursive or unresolvable
    references.
    """
    found: Json = _plain(schema, schema, field, ())
    return found


def _plain(part: Any, root: Json, field: str, within: tuple[str, ...], *, is_named: bool = False) -> Any:
    """Return a part of a schema in plain form. If `is_named`, the keys of `part` are property names."""
    if isinstance(part, list):
        return [_plain(one, root, field, within) for one in part]
    if not isinstance(part, dict):
        return part
    if not is_named and isinstance(reference := part.get("$ref"), str):
        if reference in within:
            raise InputError("a schema that contains itself has no counterpart", field=field)
        others = {name: one for name, one in part.items() if name != "$ref"}
        found = _referred(root, reference, field) | others
        return _plain(found, root, field, (*within, reference))
    if not is_named and (forms := _forms(part)):
        others = {name: one for name, one in part.items() if name not in ("type", "enum")}
        return _plain({**others, "anyOf": forms}, root, field, within)
    kept = part.items() if is_named else [(name, one) for name, one in part.items() if name not in _LEFT_OUT]
    plain = {
        name: _plain(one, root, field, within, is_named=name == "properties" and not is_named)
        for name, one in kept
        if one is not None
    }
    return {name: one for name, one in plain.items() if one != {}}


def _forms(part: Json) -> list[Json]:
    """Return one schema per type if `type` is a list or `enum` includes null; otherwise an empty list."""
    kinds, values = part.get("type"), part.get("enum")
    has_null = isinstance(values, list) and None in values
    if not isinstance(kinds, list) and not has_null:
        return []
    named = kinds if isinstance(kinds, list) else [] if kinds is None else [kinds]
    enum = {"enum": [one for one in values if one is not None]} if isinstance(values, list) else {}
    typed = [{"type": kind, **enum} for kind in named if kind != "null"] or ([enum] if enum else [])
    return [*typed, *([{"type": "null"}] if has_null or "null" in named else [])]


def _referred(root: Json, reference: str, field: str) -> Json:
    found: Any = root
    for name in filter(None, reference.removeprefix("#").split("/")):
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if not reference.startswith("#") or not isinstance(found, dict):
        raise InputError(f"the reference {reference} has no counterpart", field=field)
    return found
