"""Removes nulls in optional properties: a strict schema requires nulls that a task's schema may forbid. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MAX_STEPS = 5_000
"""Maximum number of schema parts to visit for an answer."""


class TooManySteps(Exception):
    """A schema has too many parts for an answer, or refers to itself endlessly."""


class NullRemover:
    """Removes nulls from an answer, but only from optional properties whose schema forbids null.

    `validator` is a jsonschema validator of the whole schema; it resolves references.
    """

    def __init__(self, validator: Any) -> None:
        self._validator = validator
        self._left = MAX_STEPS

    def removed(self, value: Any) -> Any:
        """Return the value without nulls that its schema forbids in optional properties.

        Returns the same object if the value has no null. Raises TooManySteps.
        """
        return self._removed(value, self._validator) if _has_null(value) else value

    def _removed(self, value: Any, validator: Any) -> Any:
        if isinstance(value, dict):
            value = self._of_object(value, validator)
        elif isinstance(value, list):
            value = self._of_list(value, validator)
        else:
            return value
        for one in list(self._together(validator)):
            for keyword in ("anyOf", "oneOf"):
                for schema in one.schema.get(keyword, ()):
                    choice = self._part(one, schema)
                    tried = self._removed(value, choice)
                    if choice.is_valid(tried):
                        value = tried
                        break
        return value

    def _of_object(self, value: dict[str, Any], validator: Any) -> dict[str, Any]:
        every = list(self._together(validator))
        required = {name for one in every for name in one.schema.get("required", ())}
        found = dict(value)
        for one in every:
            for name, schema in one.schema.get("properties", {}).items():
                if name not in found or isinstance(found[name], str):
                    continue
                inner = self._part(one, schema)
                if found[name] is not None:
                    found[name] = self._removed(found[name], inner)
                elif name not in required and not inner.is_valid(None):
                    del found[name]
        return found

    def _of_list(self, value: list[Any], validator: Any) -> list[Any]:
        found = list(value)
        for one in self._together(validator):
            first = one.schema.get("prefixItems", ())
            for place, item in enumerate(found):
                schema = first[place] if place < len(first) else one.schema.get("items", True)
                if isinstance(schema, dict) and _has_null(item):
                    found[place] = self._removed(item, self._part(one, schema))
        return found

    def _together(self, validator: Any) -> Iterator[Any]:
        """Yield the validators that apply to the same value, including schemas behind `$ref` and `allOf`."""
        pending = [validator]
        while pending:
            one = pending.pop()
            if not isinstance(one.schema, dict):
                continue
            yield one
            pending.extend(self._part(one, schema) for schema in one.schema.get("allOf", ()))
            if isinstance(name := one.schema.get("$ref"), str):
                target = one._resolver.lookup(name)
                pending.append(self._part(one, target.contents, _resolver=target.resolver))

    def _part(self, validator: Any, schema: Any, **more: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise TooManySteps
        return validator.evolve(schema=schema, **more)


def _has_null(value: Any) -> bool:
    level = [value]
    while level:
        if any(inner is None for inner in level):
            return True
        level = [inner for outer in level if isinstance(outer, list | dict)
                 for inner in (outer.values() if isinstance(outer, dict) else outer)]  # fmt: skip
    return False
