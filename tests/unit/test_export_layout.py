"""Which columns a table has, and that every merged row is in it once with all that it says."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.pipeline.finish.outputs.column_types import Kind, ListOf, Plain, Struct, flattened, kind_of
from orchestrator.pipeline.finish.outputs.formats import encode
from orchestrator.pipeline.finish.outputs.layout import IDENTITY, ON_REQUEST, PROVENANCE, Layout, unique
from tests.support import merged
from tests.support.examples import ample


def answers(layout: Layout) -> dict[str, Kind]:
    """The columns between who a row is and where it is from."""
    return {column.name: column.kind for column in layout.columns[len(IDENTITY) : -len(PROVENANCE)]}


def test_a_table_has_a_column_for_each_field_of_each_task() -> None:
    tasks = {"facts": merged.SCHEMA, "gist": None, "grade": {"enum": ["a", "b"]}}
    text, json_text = Plain.TEXT, Plain.JSON
    nested = answers(Layout("j", tasks, flat=False))
    assert nested == {
        "facts.topic": text, "facts.pages": Plain.INTEGER, "facts.score": Plain.NUMBER,
        "facts.urgent": Plain.BOOLEAN, "facts.kind": text,
        "facts.sender": Struct((("name", text), ("town", text))), "facts.dates": ListOf(text),
        "facts.rest": json_text, "grade.answer": text,
    }  # fmt: skip
    flat = answers(Layout("j", tasks, flat=True))
    assert list(flat)[5:] == ["facts.sender.name", "facts.sender.town", "facts.dates", "facts.rest", "grade.answer"]
    assert (flat["facts.dates"], flat["facts.sender.town"]) == (json_text, text)


def test_the_docs_name_every_column() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "results.md").read_text(encoding="utf-8")
    assert [name for name, _ in (*IDENTITY, *PROVENANCE, *ON_REQUEST) if f"`{name}`" not in page] == []


def test_names_that_differ_by_case_alone_get_a_number() -> None:
    both = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert list(answers(Layout("j", {"T": both, "t": both}, flat=True))) == ["T.a", "t.a_2"]
    assert unique(["a", "A", "a_2", "a"]) == ["a", "A_2", "a_2_2", "a_3"]
    assert unique(["é" * 5, "é" * 6, "é" * 7], 5) == ["éé", "é_2", "é_3"]


def cells(line: bytes, *, flat: bool = False) -> dict[str, Any]:
    layout = Layout("letters-1", {"facts": merged.SCHEMA, "gist": None}, flat=flat)
    return {column.name: cell for column, cell in zip(layout.columns, layout.cells(line), strict=True)}


def test_a_row_has_its_answer_and_where_it_is_from() -> None:
    first, second, third, fourth, fifth, sixth = (cells(line) for line in merged.lines())
    assert first["facts.sender"] == {"name": "Ann", "town": None}
    assert (first["answer"], first["facts.rest"], first["job"]) == (None, '{"a":[1,null]}', "letters-1")
    assert (first["input_tokens"], first["cached_tokens"], first["output_tokens"]) == (100, 20, 30)
    assert (str(first["cost_usd"]), first["model"], first["attempt"]) == ("0.000001847917", "m-1", 1)
    assert (second["answer"], second["carried_from"]) == ("Ann writes.\r\n=1+1", "letters-0")
    assert (third["answer"], third["facts.topic"], third["error_code"]) == ("no JSON", None, "invalid_json")
    assert (fourth["state"], fourth["answer"], fourth["error_message"]) == ("expired", None, "late")
    assert (fifth["facts.topic"], fifth["facts.pages"]) == ("x", None)
    assert json.loads(fifth["answer"]) == {"topic": "x", "pages": 2**70, "more": 1}
    assert (sixth["answer"], sixth["settled_at"]) == ("", None)


def test_a_failed_answer_is_in_no_typed_column() -> None:
    layout = Layout("j", {"facts": {"type": "string"}}, flat=False)
    place = [column.name for column in layout.columns].index("facts.answer")
    for state, cells in (("succeeded", (None, "x")), ("failed", ("x", None))):
        row = layout.cells(merged.line(0, '"x"' if state == "succeeded" else "x", state=state))
        assert (row[len(IDENTITY) - 1], row[place]) == cells


def test_a_flat_row_has_its_leaves() -> None:
    first = cells(merged.lines()[0], flat=True)
    assert (first["facts.sender.name"], first["facts.sender.town"]) == ("Ann", None)
    assert first["facts.dates"] == '["2026-01-01","x"]'
    without = cells(merged.line(0, '{"topic": "x", "sender": 5}'), flat=True)
    assert (without["facts.topic"], without["facts.sender.name"]) == ("x", None)
    assert json.loads(without["answer"]) == {"topic": "x", "sender": 5}


def test_when_a_row_was_settled_is_an_instant() -> None:
    line = json.loads(merged.line(0, "x", task="gist"))
    line["provenance"]["settled_at"] = "2026-11-21T22:00:00.5+00:00"
    assert cells(json.dumps(line).encode())["settled_at"].isoformat() == "2026-11-21T22:00:00.500000+00:00"


def test_an_answer_that_cannot_be_read_is_told_as_it_came() -> None:
    depth = 100_000
    line = merged.line(0, "x").replace(b'"output":"x"', b'"output":' + b"[" * depth + b"]" * depth)
    assert cells(line)["answer"] == "[" * depth + "]" * depth


NAMES = st.text('abAé.,"\n ', max_size=3)
LEAVES = st.sampled_from(
    [{"type": "string"}, {"type": "integer"}, {"type": ["number", "null"]}, {"type": "boolean"}, {}, {"enum": ["x"]}]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(
            lambda fields: {"type": "object", "properties": fields}, st.dictionaries(NAMES, inner, max_size=3)
        )
    ),
    max_leaves=6,
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=5
)


def fitting(schema: Any) -> st.SearchStrategy[Any]:
    """Values that a schema is about; now and then something else."""
    match schema:
        case {"type": "array", "items": items}:
            own: st.SearchStrategy[Any] = st.lists(fitting(items), max_size=3)
        case {"type": "object", "properties": fields}:
            named = st.fixed_dictionaries({}, optional={name: fitting(part) for name, part in fields.items()})
            others = st.just({}) | st.dictionaries(NAMES, SCALARS, max_size=1)
            own = st.builds(lambda more, known: {**more, **known}, others, named)
        case {"type": "string"}:
            own = st.text(max_size=5)
        case _:
            own = SCALARS
    return st.one_of(own, own, own, ANYTHING)


def pruned(value: Any, *, flat: bool) -> Any:
    """Without fields that are null, and in a flat table empty: it cannot tell them from missing ones."""
    if isinstance(value, dict):
        parts = {name: pruned(part, flat=flat) for name, part in value.items()}
        return {name: part for name, part in parts.items() if part is not None and not (flat and part == {})}
    return [pruned(part, flat=flat) for part in value] if isinstance(value, list) else value


def undone(cell: Any, kind: Kind) -> Any:
    """What a cell says, as JSON."""
    match kind:
        case _ if cell is None:
            return None
        case Struct(fields):
            return {name: undone(cell[name], inner) for name, inner in fields}
        case ListOf(item):
            return [undone(part, item) for part in cell]
        case Plain.JSON:
            return json.loads(cell)
        case _:
            return cell


def gathered(kind: Kind, values: Iterator[Any], *, flat: bool, top: bool = True) -> Any:
    """An answer out of its columns."""
    if isinstance(kind, Struct) and (top or flat):
        return {name: gathered(inner, values, flat=flat, top=False) for name, inner in kind.fields}
    return undone(next(values), kind)


@pytest.mark.thinned(2)
@pytest.mark.slow
@pytest.mark.parametrize("flat", [False, True])
@settings(max_examples=ample(60))
@given(data=st.data(), schema=SCHEMAS)
def test_each_row_is_in_the_table_once_with_what_it_says(data: st.DataObject, schema: Any, flat: bool) -> None:
    outputs = data.draw(st.lists(fitting(schema), max_size=4))
    lines = [merged.line(seq, json.dumps(output)) for seq, output in enumerate(outputs)]
    tasks = {"facts": schema}
    layout = Layout("j", tasks, flat=flat)
    if flat:
        rows = [layout.cells(line) for line in lines]
    else:
        file = io.BytesIO()
        encode(file, lines, "parquet", "j", tasks)
        table = pq.read_table(file)
        assert table.column_names == [column.name for column in layout.columns]
        rows = list(zip(*[column.to_pylist() for column in table.columns], strict=True))

    assert [row[3] for row in rows] == [f"facts-{seq}" for seq in range(len(outputs))]
    kind = flattened(kind_of(schema)) if flat else kind_of(schema)
    for row, output in zip(rows, outputs, strict=True):
        answer = row[len(IDENTITY) - 1]
        if isinstance(answer, str):
            found = output if answer == output else json.loads(answer)
        else:
            found = gathered(kind, iter(row[len(IDENTITY) : -len(PROVENANCE)]), flat=flat)
        # No answer at all and one without fields are columns of nulls alike.
        said = {} if output is None and isinstance(kind, Struct) else output
        assert pruned(found, flat=flat) == pruned(said, flat=flat)


def test_a_row_group_is_bounded_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.pipeline.finish.outputs.formats.GROUP_ROWS", 3)
    monkeypatch.setattr("orchestrator.pipeline.finish.outputs.formats.PART_ROWS", 2)
    lines = [merged.line(seq, "x", task="gist") for seq in range(7)]
    file = io.BytesIO()
    encode(file, lines, "parquet", "j", {})
    assert [pq.ParquetFile(file).metadata.row_group(group).num_rows for group in range(3)] == [3, 3, 1]
    monkeypatch.setattr("orchestrator.pipeline.finish.outputs.formats.GROUP_BYTES", len(lines[0]) + 1)
    file = io.BytesIO()
    encode(file, lines, "parquet", "j", {})
    assert pq.ParquetFile(file).metadata.num_row_groups == 4
