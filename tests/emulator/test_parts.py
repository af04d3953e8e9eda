"""The emulator's pure parts, and that it knows nothing of the package that it tests."""

from __future__ import annotations

import ast
import json
import random
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from array import array
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emulator.batch import Batch, plan
from tests.emulator.clock import Clock, ClockFile
from tests.emulator.limits import Limits, duration
from tests.emulator.rowfaults import NAMES as ROW_FAULTS
from tests.emulator.rowfaults import PLAIN, RowFault, due, effect_of, marked, parse
from tests.emulator.rows import Draft, Effects, Rows
from tests.emulator.schema import fit
from tests.emulator.script import OPTIONS
from tests.emulator.settings import Settings

FOLDER = Path(__file__).parent
DEFINED = {"b": {"type": "null"}}
ANY_SALT = st.integers(0, 2**64 - 1)


KNOWN = ("tests.emulator", "tests.support.forking", "tests.support.sparing")
"""What starts processes is held to the same."""
SUPPORT = FOLDER.parent / "support"
SOURCES = [*sorted(FOLDER.glob("*.py")), SUPPORT / "forking.py", SUPPORT / "sparing.py"]


def brought(lines: Iterable[str]) -> set[str]:
    """The distributions that these requirements bring."""
    found, lines = set[str](), [*lines]
    while lines:
        line = lines.pop()
        name = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower().replace("_", "-")
        if "extra ==" not in line and name not in found:
            found.add(name)
            with suppress(PackageNotFoundError):
                lines += requires(name) or []
    return found


def test_the_emulator_starts_without_any_extra() -> None:
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [lines for name, lines in project["optional-dependencies"].items() if name not in ("all", "fast", "dev")]
    only_extra = brought(chain(*extras)) - brought(project["dependencies"])
    missing = [
        name
        for name, by in packages_distributions().items()
        if {one.lower().replace("_", "-") for one in by} & only_extra
    ]
    assert {"botocore", "fastavro"} <= set(missing)
    command = f"import sys; sys.modules.update(dict.fromkeys({missing})); import tests.emulator.app"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, cwd=FOLDER.parent.parent)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_it_imports_nothing_of_the_package(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found = [name.name for name in names]
            case ast.ImportFrom(module=str(module)):
                found = [module]
            case _:
                continue
        assert not [name for name in found if name.split(".")[0] in ("orchestrator", "benchmarks")]
        assert not [name for name in found if name.startswith("tests.") and not name.startswith(KNOWN)]


@pytest.mark.parametrize("name", [*OPTIONS, *ROW_FAULTS, *Settings.__struct_fields__])
def test_the_guide_names_everything(name: str) -> None:
    assert f"`{name}" in (FOLDER.parents[1] / "docs" / "reference" / "emulator.md").read_text(encoding="utf-8")


def rows_of(count: int, salt: int = 0, faults: dict[int, str] | None = None) -> Rows:
    """Rows of 1, 2, 3 ... prompt tokens and twice as many in the answer."""
    effects = Effects()
    codes = bytearray(count)
    for index, name in (faults or {}).items():
        codes[index] = effects.code(effect_of([parse(name)]))
    prompts = array("I", range(1, count + 1))
    draft = Draft(array("Q", range(count)), array("I", [1] * count), prompts, array("I", [2 * n for n in prompts]))
    draft.most = draft.completions
    return Rows(Path("nowhere"), draft, codes, effects, salt)


@given(count=st.integers(0, 300), salt=ANY_SALT)
def test_ranks_are_a_permutation(count: int, salt: int) -> None:
    rows = rows_of(count, salt)
    assert sorted(rows.by_rank()) == list(rows.in_order())
    assert sorted(rank for _, rank in rows.in_order()) == list(range(count))


@given(count=st.integers(1, 60), salt=ANY_SALT, data=st.data())
def test_sums_are_those_of_the_rows_that_ran(count: int, salt: int, data: st.DataObject) -> None:
    names = st.sampled_from(["missing", "never_ran", "status:500", "cached", "duplicate"])
    faults = data.draw(st.dictionaries(st.integers(0, count - 1), names))
    ran = data.draw(st.integers(0, count))
    rows = rows_of(count, salt, faults)
    billed = [
        index
        for index, rank in rows.in_order()
        if rank < ran and faults.get(index) not in ("never_ran", "status:500")
    ]
    number, tokens = rows.sums(ran)
    assert number == len(billed)
    assert tokens.input == sum(index + 1 for index in billed)
    assert tokens.output == 2 * tokens.input
    assert tokens.cached == sum((index + 1) // 2 for index in billed if faults.get(index) == "cached")
    assert rows.tally(ran, lambda effect: effect.lines("output")) == sum(
        {"missing": 0, "never_ran": 0, "status:500": 0, "duplicate": 2}.get(faults.get(index, ""), 1)
        for index, rank in rows.in_order()
        if rank < ran
    )


@given(count=st.integers(1, 200), seed=st.integers(0, 999), moments=st.lists(st.floats(0, 200_000), min_size=2))
def test_rows_only_ever_get_more(count: int, seed: int, moments: list[float]) -> None:
    fate = plan(Settings(), "openai", random.Random(seed), ())
    batch = Batch("b", 0, "openai", "a", "/v1/chat/completions", fate, 0.0)
    batch.start(rows_of(count), fate.validating)
    seen = []
    for moment in sorted(moments):
        while batch.due() <= moment:
            batch.step(batch.due())
        seen.append(batch.has_run(max(moment, fate.validating)))
    assert seen == sorted(seen)
    assert batch.status == "completed" or moments == [] or max(moments) < batch.due()


@given(salt=st.integers(0, 2**63))
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 20, "maxLength": 30},
        {"type": "string", "maxLength": 3},
        {"type": "string", "format": "date"},
        {"type": "integer", "minimum": 3, "maximum": 5},
        {"type": "number", "maximum": 100},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 3},
        {"type": ["null", "string"]},
        {"enum": ["a", 7, None]},
        {"const": {"x": 1}},
        {"anyOf": [{"type": "null"}, {"type": "string"}]},
        {"properties": {"a": {}, "b": {"allOf": [{"$ref": "#/$defs/b"}]}}, "required": ["a", "b"], "$defs": DEFINED},
    ],
    ids=lambda schema: next(iter(schema)) + str(len(schema)),
)
def test_what_fits_a_schema_is_valid(schema: dict[str, Any], salt: int) -> None:
    value = fit(schema, salt)
    jsonschema.validate(value, schema)
    assert fit(schema, salt) == value


def test_marks_are_read_in_order_and_slips_are_errors() -> None:
    assert marked(b"a [[fault:status:429:2]] b [[fault:missing]]") == (
        RowFault("status", 429, 2),
        RowFault("missing"),
    )
    for slip in (b"[[fault:MISSING]]", b"[[fault:missing", b"[[fault:nonsense]]", b"[[fault:missing:1:2]]"):
        with pytest.raises(ValueError, match="fault"):
            marked(slip)


def test_faults_are_over_after_their_tries() -> None:
    faults = (RowFault("missing", tries=1), RowFault("duplicate"))
    assert [len(due(faults, attempt)) for attempt in (1, 2, 3)] == [2, 1, 1]
    assert effect_of(()) == PLAIN


def test_clock_file_is_read_again_after_every_setting(tmp_path: Path) -> None:
    file = ClockFile(tmp_path / "clock.json")
    clock = Clock(file.path)
    start = clock.time()
    assert start == datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    for step in range(1, 200):
        file.advance(1)
        assert clock.time() == start + step
    file.set(datetime(2027, 1, 1, tzinfo=UTC))
    assert file.now() == datetime(2027, 1, 1, tzinfo=UTC)
    file.set(speed=1e9)
    assert file.now() > datetime(2027, 1, 1, tzinfo=UTC)
    assert abs(Clock().time() - datetime.now(UTC).timestamp()) < timedelta(hours=1).total_seconds()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.12, "120ms"), (1.5, "1.5s"), (360, "6m0s"), (61.5, "1m1.5s")],
)
def test_durations_are_spelt_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 90)), max_size=40))
def test_no_minute_has_more_than_its_limit_and_what_was_full(steps: list[tuple[float, int]]) -> None:
    limits, now, taken = Limits(), 0.0, 0
    for pause, wanted in steps:
        now += pause
        if not limits.take({"requests": None, "tokens": 60}, {"requests": 1, "tokens": wanted}, now):
            taken += min(wanted, 60)
    assert taken <= 60 + now + 1e-6


@pytest.mark.long
def test_settings_and_faults_are_given_by_flags(tmp_path: Path) -> None:
    fault = {"do": "status", "match": {"verb": "models"}, "status": 503}
    command = [sys.executable, "-m", "tests.emulator", "--folder", str(tmp_path / "files")]
    told = ["--settings", '{"models": ["gpt-5-nano"]}', "--script", json.dumps([fault])]
    with subprocess.Popen(
        [*command, *told], cwd=FOLDER.parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": "Bearer k"})
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(asked)
        with urllib.request.urlopen(asked) as answer:
            assert [one["id"] for one in json.load(answer)["data"]] == ["gpt-5-nano"]
        process.kill()


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("flag", "told", "problem"),
    [("--script", '[{"do": "nothing"}]', "unknown fault 'nothing'"), ("--settings", '{"modles": []}', "modles")],
)
def test_flags_that_it_does_not_know_end_it(flag: str, told: str, problem: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.emulator", "--folder", str(tmp_path / "files"), flag, told],
        cwd=FOLDER.parents[1], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert problem in ran.stderr
