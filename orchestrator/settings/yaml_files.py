"""Reader of job files, which are YAML. Commands without a job file do not import PyYAML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml
from yaml.reader import ReaderError

from orchestrator.core.errors import InputError
from orchestrator.settings.source_lines import Lines, Place, read_text, refuse_long_keys, refuse_no_text, spell
from orchestrator.settings.syntax_corrections import yaml_hint

MAX_VALUES = 100_000
"""Maximum values of a YAML file after its aliases are expanded. 700 bytes of aliases can expand to a billion."""
MAX_LEVELS = 60
MAX_NUMBER = 400
"""Maximum characters of a number. The largest float has 309 digits."""

# PyYAML raises the errors after the first if an explicit tag (`!!int x`) does not fit its value.
_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError)


class _Yaml12(yaml.SafeLoader):
    """YAML loader in which `22:00` and `no` stay strings, as in YAML 1.2 and as authors expect."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}  # type: ignore[misc]

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return super().construct_yaml_int(_short_number(node))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        return super().construct_yaml_float(_short_number(node))


def _short_number(node: yaml.ScalarNode) -> yaml.ScalarNode:
    """Return a number's node. Raises ConstructorError above `MAX_NUMBER` characters: conversion could take
    minutes.
    """
    if len(node.value) > MAX_NUMBER:
        problem = f"a number of {len(node.value):,} characters, more than {MAX_NUMBER}"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return node


_Yaml12.add_constructor("tag:yaml.org,2002:int", _Yaml12.construct_yaml_int)
_Yaml12.add_constructor("tag:yaml.org,2002:float", _Yaml12.construct_yaml_float)

for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("tag:yaml.org,2002:int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("tag:yaml.org,2002:float", r"^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$",
     list("-+0123456789.")),
    ("tag:yaml.org,2002:merge", r"^<<$", ["<"]),
):  # fmt: skip
    _Yaml12.add_implicit_resolver(_tag, re.compile(_pattern), _first)


def load_yaml(path: Path) -> tuple[Any, Lines]:
    """Return the data and each value's line. Raises InputError for invalid YAML, repeated keys or exceeded limits."""
    text = read_text(path)
    try:
        loader = _Yaml12(text)
        try:
            node = loader.get_single_node()
            lines: dict[Place, int] = {}
            if node is not None:
                _note_lines(node, (), lines, path)
            data = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        is_open = str(error.context).endswith("quoted scalar")
        mark = (error.context_mark if is_open else None) or error.problem_mark or error.context_mark
        hint = None if mark is None else yaml_hint(text.splitlines(), mark.line, str(error.problem))
        raise InputError(
            f"is not valid YAML: {error.problem}", file=path, line=mark.line + 1 if mark else None, hint=hint
        ) from None
    except ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise InputError(f"is not valid YAML: {error.reason}", file=path, line=line) from None
    except RecursionError:
        raise _too_deep(path) from None
    except _UNREADABLE as error:
        raise InputError(f"is not valid YAML: {error}", file=path) from None
    refuse_long_keys(data, text, path)
    refuse_no_text(data, (), lines, path)
    return data, lines


def _too_deep(path: Path, line: int | None = None) -> InputError:
    return InputError("is nested too deeply, or in itself", file=path, line=line)


def _note_lines(node: yaml.Node, place: Place, lines: dict[Place, int], path: Path) -> None:
    line = node.start_mark.line + 1
    if len(lines) >= MAX_VALUES:
        raise InputError(
            f"has more than {MAX_VALUES:,} values when its aliases (*name) are written out", file=path, line=line
        )
    if len(place) > MAX_LEVELS:
        raise _too_deep(path, line)
    lines[place] = line
    if isinstance(node, yaml.MappingNode):
        for key_node, value in node.value:
            here = (*place, str(key_node.value))
            if here in lines and key_node.value != "<<":
                raise InputError(
                    f"the key {key_node.value!r} is given twice (first in line {lines[here]})",
                    file=path,
                    line=key_node.start_mark.line + 1,
                    field=spell(here),
                )
            _note_lines(value, here, lines, path)
            lines[here] = key_node.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _note_lines(value, (*place, index), lines, path)
