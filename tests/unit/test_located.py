"""Settings files: their values, the line of each, and what is said of a file that is broken."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.core.errors import InputError
from orchestrator.settings.source_lines import line_of, load_toml, spell, validated
from orchestrator.settings.yaml_files import load_yaml
from tests.support.examples import ample

on_one_file = settings(max_examples=ample(150))


def written(folder: Path, text: str | bytes, name: str = "a.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


SCALARS = {
    "22:00": "22:00",
    "06:00": "06:00",
    "no": "no",
    "yes": "yes",
    "on": "on",
    "Off": "Off",
    "n": "n",
    "2026-12-01": "2026-12-01",
    "1_000": "1_000",
    "0o17": "0o17",
    "017": "017",
    "0x1F": "0x1F",
    "1:30:00": "1:30:00",
    "~": None,
    "null": None,
    "": None,
    "true": True,
    "False": False,
    "tRUE": "tRUE",
    "0": 0,
    "-12": -12,
    "+3": 3,
    "1.50": 1.5,
    ".5": 0.5,
    "1e3": 1000.0,
    "1.": 1.0,
    "1.2.3": "1.2.3",
    "'5'": "5",
    '"no"': "no",
    "=": "=",
}


@pytest.mark.parametrize(("text", "value"), SCALARS.items(), ids=[repr(text) for text in SCALARS])
def test_scalars_are_those_of_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    data, _ = load_yaml(written(tmp_path, f"key: {text}\n"))
    assert data == {"key": value}
    assert type(data["key"]) is type(value)


def test_every_value_has_the_line_of_its_key(tmp_path: Path) -> None:
    text = """\
# a comment
name: x

tasks:
  - id: one
    prompt: |
      two
      lines
  - id: two
    schema: {type: object,
             properties: {a: {type: string}}}
tags:
  - a
  -
    b
"""
    _, lines = load_yaml(written(tmp_path, text))
    assert lines == {
        (): 2,
        ("name",): 2,
        ("tasks",): 4,
        ("tasks", 0): 5,
        ("tasks", 0, "id"): 5,
        ("tasks", 0, "prompt"): 6,
        ("tasks", 1): 9,
        ("tasks", 1, "id"): 9,
        ("tasks", 1, "schema"): 10,
        ("tasks", 1, "schema", "type"): 10,
        ("tasks", 1, "schema", "properties"): 11,
        ("tasks", 1, "schema", "properties", "a"): 11,
        ("tasks", 1, "schema", "properties", "a", "type"): 11,
        ("tags",): 12,
        ("tags", 0): 13,
        ("tags", 1): 15,
    }


def test_a_merge_key_takes_values_over_and_own_keys_win(tmp_path: Path) -> None:
    text = "base: &base {a: 1, b: 2}\none:\n  <<: *base\n  b: 3\n"
    assert load_yaml(written(tmp_path, text))[0]["one"] == {"a": 1, "b": 3}


@pytest.mark.parametrize("text", ["\ufeffa: 1\n", "a: 1\r\n", "--- \na: 1\n...\n"], ids=["BOM", "CRLF", "document"])
def test_files_of_other_editors_are_read(tmp_path: Path, text: str) -> None:
    assert load_yaml(written(tmp_path, text))[0] == {"a": 1}


def test_an_empty_file_has_no_data(tmp_path: Path) -> None:
    assert load_yaml(written(tmp_path, "# nothing\n")) == (None, {})


BROKEN_YAML = {
    "not closed": ("a:\n  b: [1, 2\n", 3, "is not valid YAML: expected ',' or ']'"),
    "a tab": ("a:\n\tb: 1\n", 2, "is not valid YAML: found character '\\t' that cannot start any token"),
    "key twice": ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' is given twice (first in line 1)"),
    "inner key twice": ("a:\n  - x: 1\n    x: 2\n", 3, "the key 'x' is given twice (first in line 2)"),
    "two documents": ("a: 1\n---\nb: 2\n", 2, "is not valid YAML: but found another document"),
    "a control character": ("a: 1\nb: \x01\n", 2, "is not valid YAML: special characters are not allowed"),
    "an unknown tag": ("a: 1\nb: !thing 2\n", 2, "is not valid YAML: could not determine a constructor"),
    "an object": ("a: !!python/object:os.system x\n", 1, "is not valid YAML: could not determine a constructor"),
    "a tag that does not fit": ("a: !!int x\n", None, "is not valid YAML: invalid literal for int()"),
    "a bool that is none": ("a: !!bool x\n", None, "is not valid YAML: 'x'"),
    "a time that is none": ("a: !!timestamp x\n", None, "is not valid YAML:"),
    "a list as a key": ("? [a]\n: b\n", 1, "is not valid YAML: found unhashable key"),
    "an endless number": (f"a: {'9' * 5000}\n", 1, "is not valid YAML: a number of 5,000 characters"),
    "an endless fraction": (f"a: 0.{'3' * 5000}\n", 1, "is not valid YAML: a number of 5,002 characters"),
    "an endless number of minutes": (f"a: !!int '{'1:' * 200_000}1'\n", 1, "is not valid YAML: a number of 400,001"),
    "a list in itself": ("a: &x [*x]\n", 1, "is nested too deeply, or in itself"),
    "aliases of aliases": (
        "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)),
        None,
        "has more than 100,000 values when its aliases",
    ),
    "mappings merged with themselves": (
        "a0: &a0 {x: 1}\n"
        + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 30)),
        None,
        "has more than 100,000 values when its aliases",
    ),
    "a long list repeated": (
        f"a: &a [{'x, ' * 1000}]\nb: [{'*a, ' * 101}]",
        None,
        "has more than 100,000 values when its aliases",
    ),
    "a level too many": ("[" * 62 + "]" * 62, 1, "is nested too deeply"),
    "a large file": ("a: " + "x" * 1_000_000, None, "is larger than 1,000,000 bytes"),
    "nested too deeply": ("[" * 3000, None, "is nested too deeply, or in itself"),
    "no UTF-8": (b"a: 1\nb: \xff\n", 2, "is not UTF-8 text: invalid start byte"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "line", "message"), BROKEN_YAML.values(), ids=BROKEN_YAML.keys())
def test_broken_yaml_is_told_with_its_line(tmp_path: Path, text: str | bytes, line: int | None, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as raised:
        load_yaml(path)
    assert raised.value.file == path
    assert raised.value.line == line or (line is None and "aliases" in message)
    assert raised.value.message.startswith(message)
    assert "\n" not in raised.value.message


def test_a_key_given_twice_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        load_yaml(written(tmp_path, "tasks:\n  - id: a\n    id: b\n"))
    assert raised.value.field == "tasks[0].id"


YAML_ISH = st.lists(
    st.sampled_from([*"abn01:-[]{},&*!|>#?%@`'\"\\~.<=_+ \n\t", "\n  ", ": ", "- ", "!!int ", "!!bool ", "&x ", "*x",
                     "<<: ", "---", "\x00", "\ud7ff", "é", "\u2028"]),
    max_size=25,
).map("".join)  # fmt: skip


@pytest.mark.slow
@on_one_file
@given(YAML_ISH | st.binary(max_size=20))
def test_no_text_makes_yaml_raise_anything_else(tmp_path: Path, text: str | bytes) -> None:
    path = written(tmp_path, text)
    with suppress(InputError):
        _, lines = load_yaml(path)
        assert all(line >= 1 for line in lines.values())


TOML = """\
home = "x"

[report]
compare = "a:b"

[backends.gpu]
location = "local"   # a comment
"quoted" = 1

[backends.gpu.limits]
max_rows = 5

[backends."my gpu"]
idle = true

[[things]]
name = "one"
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("home",), 1),
        (("report",), 3),
        (("report", "compare"), 4),
        (("backends", "gpu"), 6),
        (("backends", "gpu", "location"), 7),
        (("backends", "gpu", "quoted"), 8),
        (("backends", "gpu", "limits", "max_rows"), 11),
        (("backends", "my gpu", "idle"), 14),
        (("things", 0, "name"), 17),
        (("backends", "gpu", "missing"), 6),
        (("nothing",), None),
    ],
    ids=str,
)
def test_toml_values_have_lines(tmp_path: Path, place: tuple[str, ...], line: int | None) -> None:
    _, lines = load_toml(written(tmp_path, TOML, "orch.toml"))
    assert line_of(place, lines) == line


PARTS = "is not valid TOML: a key of more than 50 parts"
BROKEN_TOML = {
    "no value": ('a = 1\nb = \nc = 2\n', 2, "is not valid TOML: Invalid value"),
    "the end too early": ("a = 1\nb = [1,\n", 2, "is not valid TOML:"),
    "table twice": ("[a]\n[b]\n[a]\n", 3, "is not valid TOML: Cannot declare ('a',) twice"),
    "key twice": ("a = 1\na = 2\n", 2, "is not valid TOML: Cannot overwrite a value"),
    "nested too deeply": ("a = " + "[" * 5000, None, "is not valid TOML:"),
    "an endless number": (f"a = {'9' * 5000}", 1, "a number has more than 4,300 digits"),
    "a key of many parts": ("x = 1\n" + "a." * 50_000 + "b = 1", 2, PARTS),
    "a key of many parts in a value": ("x = {" + "a." * 50_000 + "b = 1}", 1, PARTS),
    "a key of many quoted parts": ("""'x=' . "\\"" .""" * 30_000 + "b = 1", 1, PARTS),
    "a table of many parts": ("[" + "a." * 50_000 + "b]\n", 1, PARTS),
    "a large file": ("a = '" + "x" * 1_000_000 + "'", None, "is larger than 1,000,000 bytes"),
    "no UTF-8": (b'a = 1\nb = "\xe4"\n', 2, "is not UTF-8 text: invalid continuation byte"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "message"), BROKEN_TOML.values(), ids=BROKEN_TOML.keys())
def test_broken_toml_is_told_with_its_line(tmp_path: Path, text: str | bytes, line: int | None, message: str) -> None:
    with pytest.raises(InputError) as raised:
        load_toml(written(tmp_path, text, "orch.toml"))
    assert raised.value.line == line
    assert raised.value.message.startswith(message)


@pytest.mark.parametrize("load", [load_yaml, load_toml])
def test_a_file_that_is_not_there_or_a_folder_is_told(tmp_path: Path, load: Any) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        load(tmp_path)


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = Field(1, ge=1)
    other: str | None = None


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    items: tuple[Inner, ...] = ()
    named: dict[str, Inner] = {}
    maybe: Inner | None = None
    required: int = 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("items:\n- size: 1\n- sise: 2\n", ":3: items[1].sise: unknown field\n  hint: did you mean 'size'?"),
        ("named:\n  a:\n    sise: 2\n", ":3: named.a.sise: unknown field\n  hint: did you mean 'size'?"),
        ("maybe:\n  zzz: 2\n", ":2: maybe.zzz: unknown field\n  hint: known fields: other, size"),
        ("itmes: []\n", ":1: itmes: unknown field\n  hint: did you mean 'items'?"),
        ("items:\n- size: 0\n", ":2: items[0].size: Input should be greater than or equal to 1"),
        ("items: {}\n", ":1: items: must be a list (`- item`)\n  hint: begin each with a dash:  items: [{…}, {…}]"),
        ("items:\n  - 5\n", ":2: items[0]: must be a mapping (`key: value`)"),
    ],
    ids=["in a list", "in a mapping", "in an optional", "at the top", "a bound", "no list", "no mapping"],
)  # fmt: skip
def test_a_mistake_is_told_with_line_field_and_hint(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path, text)
    data, lines = load_yaml(path)
    with pytest.raises(InputError) as raised:
        validated(Outer, data, lines, path)
    assert str(raised.value) == f"{path}{told}"


def test_every_mistake_is_told_in_the_order_of_the_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "required: x\nnamed:\n  a: {size: 0}\nitems: 3\nzzz: 1\n")
    data, lines = load_yaml(path)
    with pytest.raises(InputError) as raised:
        validated(Outer, data, lines, path)
    told = [line for line in str(raised.value).splitlines() if line.startswith(str(path))]
    assert [line.removeprefix(f"{path}:").split(": ")[:2] for line in told] == [
        ["1", "required"], ["3", "named.a.size"], ["4", "items"], ["5", "zzz"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "text"),
    [((), ""), (("a",), "a"), (("tasks", 0, "id"), "tasks[0].id"), (("a", 1, 2), "a[1][2]"), ((0, "a"), "[0].a")],
    ids=str,
)
def test_places_are_spelt_as_in_code(place: tuple[str | int, ...], text: str) -> None:
    assert spell(place) == text


def test_infinity_in_toml_is_a_number_that_bounds_refuse(tmp_path: Path) -> None:
    assert load_toml(written(tmp_path, "a = inf"))[0] == {"a": math.inf}


def test_as_many_aliases_as_people_write_are_fine(tmp_path: Path) -> None:
    text = "base: &b {x: 1, y: [1, 2]}\n" + "".join(f"k{i}: {{<<: *b, z: {i}}}\n" for i in range(500))
    data, lines = load_yaml(written(tmp_path, text))
    assert data["k7"] == {"x": 1, "y": [1, 2], "z": 7}
    assert lines[("k7", "z")] == 9


@pytest.mark.parametrize("load", [load_yaml, load_toml])
def test_a_device_without_end_is_not_read_to_its_end(tmp_path: Path, load: Any) -> None:
    (tmp_path / "a.yaml").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="larger than"):
        load(tmp_path / "a.yaml")
