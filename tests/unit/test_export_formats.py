"""The files load as they are into what people use: pandas, polars, DuckDB; and CSV into anything."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.pipeline.finish.outputs import vectors
from orchestrator.pipeline.finish.outputs.column_types import VectorOf
from orchestrator.pipeline.finish.outputs.formats import CountedLines, Format, encode
from tests.support import merged

# `make dev` leaves them out.
duckdb = pytest.importorskip("duckdb")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

TASKS = {"facts": merged.SCHEMA, "gist": None}
AT = datetime(2026, 11, 21, 22, 0, 0, 123456, tzinfo=UTC)


def settled(line: bytes) -> bytes:
    row = msgspec.json.decode(line)
    row["provenance"]["settled_at"] = AT
    return msgspec.json.encode(row)


LINES = [settled(line) for line in merged.lines()]


def written(folder: Path, form: Format, lines: list[bytes]) -> Path:
    path = folder / f"rows.{form}"
    with path.open("wb") as file:
        encode(file, lines, form, "letters-1", TASKS)
    return path


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    return written(tmp_path, "parquet", LINES)


def test_parquet_loads_into_pandas(parquet: Path) -> None:
    table = pd.read_parquet(parquet)
    assert list(table["custom_id"]) == ["facts-0", "gist-1", "facts-2", "facts-3", "facts-4", "gist-5"]
    first = table.iloc[0]
    assert (first["facts.topic"], first["facts.pages"], first["facts.score"]) == (merged.ANSWER["topic"], 3, 0.5)
    assert first["facts.sender"] == {"name": "Ann", "town": None}
    assert list(first["facts.dates"]) == ["2026-01-01", "x"]
    assert first["cost_usd"] == Decimal("0.000001847917")
    assert first["settled_at"] == pd.Timestamp(AT)
    assert table["facts.pages"].isna().sum() == 5
    assert str(table["settled_at"].dtype) == "datetime64[us, UTC]"


def test_parquet_loads_into_polars(parquet: Path) -> None:
    table = pl.read_parquet(parquet)
    assert {name: table.schema[name] for name in ("facts.pages", "facts.score", "facts.urgent", "cost_usd")} == {
        "facts.pages": pl.Int64, "facts.score": pl.Float64, "facts.urgent": pl.Boolean, "cost_usd": pl.Decimal(38, 12)
    }  # fmt: skip
    assert table.schema["facts.dates"] == pl.List(pl.String)
    assert table.schema["settled_at"] == pl.Datetime("us", "UTC")
    names = table.select(pl.col("facts.sender").struct.field("name")).to_series().to_list()
    assert names == ["Ann", None, None, None, None, None]
    assert table.filter(state="succeeded")["task"].to_list() == ["facts", "gist", "facts"]


def test_parquet_loads_into_duckdb(parquet: Path) -> None:
    with duckdb.connect() as db:
        found = db.execute(
            """
            SELECT task, count(*), sum(cost_usd), max(epoch_us(settled_at)), max("facts.sender".name),
                   max(len("facts.dates"))
            FROM read_parquet(?) GROUP BY task ORDER BY task
            """,
            [str(parquet)],
        ).fetchall()
        types = dict(db.execute("SELECT column_name, column_type FROM (DESCRIBE FROM read_parquet(?))",
                                [str(parquet)]).fetchall())  # fmt: skip
    micros = int(AT.timestamp()) * 1_000_000 + 123456
    assert found == [
        ("facts", 4, Decimal("0.000007391668"), micros, "Ann", 2),
        ("gist", 2, Decimal("0.000001847917"), micros, None, None),
    ]
    assert types["facts.sender"] == 'STRUCT("name" VARCHAR, town VARCHAR)'
    assert (types["cost_usd"], types["settled_at"]) == ("DECIMAL(38,12)", "TIMESTAMP WITH TIME ZONE")


def test_csv_loads_into_all_three(tmp_path: Path) -> None:
    path = written(tmp_path, "csv", LINES)
    frames: list[Any] = [
        pd.read_csv(path)["facts.sender.name"].tolist(),
        pl.read_csv(path)["facts.sender.name"].to_list(),
    ]
    with duckdb.connect() as db:
        frames.append([row[0] for row in db.execute('SELECT "facts.sender.name" FROM read_csv(?)', [str(path)])
                       .fetchall()])  # fmt: skip
    for names in frames:
        assert (names[0], len(names)) == ("Ann", 6)


def test_csv_keeps_what_is_in_a_cell(tmp_path: Path) -> None:
    text = written(tmp_path, "csv", LINES).read_bytes().decode()
    rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    first, second, *_, last = rows
    assert (first["facts.topic"], first["facts.pages"], first["facts.urgent"]) == (
        merged.ANSWER["topic"],
        "3",
        "true",
    )
    assert (first["cost_usd"], first["settled_at"]) == ("0.000001847917", "2026-11-21T22:00:00.123456+00:00")
    assert (first["facts.score"], first["facts.dates"]) == ("0.5", '["2026-01-01","x"]')
    assert second["answer"] == "Ann writes.\r\n=1+1"
    assert last["document"] == "d/5.txt"
    lines = text.split("\r\n")
    assert lines[-1] == ""  # each line ends so, the last one too
    assert ",expired,batch_expired,late,,," in lines[5]  # null is nothing ...
    assert ',nothing,"",' in lines[7]  # ... and the empty text is quoted


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_without_rows_has_its_columns(tmp_path: Path, form: Format) -> None:
    path = written(tmp_path, form, [])
    table = pl.read_parquet(path) if form == "parquet" else pl.read_csv(path)
    assert (table.height, table.columns[:2], "facts.pages" in table.columns) == (0, ["job", "document"], True)


@pytest.mark.parametrize("form", ["jsonl", "batch"])
def test_lines_are_written_as_they_are(tmp_path: Path, form: Format) -> None:
    counted = CountedLines(LINES)
    file = io.BytesIO()
    encode(file, counted, form, "letters-1", TASKS)
    assert file.getvalue() == b"".join(line + b"\n" for line in LINES)
    assert (counted.rows, counted.bytes) == (6, len(file.getvalue()))


def vector(seq: int, output: Any, task: str = "vec") -> bytes:
    row = msgspec.json.decode(merged.line(seq, "x", task="gist"))
    return msgspec.json.encode({**row, "task": task, "output": output})


def test_the_first_vector_tells_the_size_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "IN_MEMORY", 100)  # what comes before it waits in a file
    path = tmp_path / "rows.parquet"
    lines = [merged.line(0, "text", task="gist"), merged.line(1, None, state="failed", task="vec")]
    lines += [vector(2, [0.5, 1]), vector(3, [2, 3]), vector(4, [1, 2, 3]), vector(5, "no vector")]
    with path.open("wb") as file:
        encode(file, lines, "parquet", "j", {"vec": VectorOf(), "none": VectorOf(), "gist": None})
    table = pl.read_parquet(path)
    assert table.schema["vec.vector"] == pl.Array(pl.Float32, 2)
    assert table.schema["none.vector"] == pl.List(pl.Float32)
    assert table["vec.vector"].to_list() == [None, None, [0.5, 1], [2, 3], None, None]
    assert table["answer"].to_list() == ["text", None, None, None, "[1,2,3]", "no vector"], (
        "what does not fit is kept"
    )


def test_a_vector_is_json_in_csv(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with path.open("wb") as file:
        encode(file, [vector(0, [0.5, -1])], "csv", "j", {"vec": VectorOf(2)})
    [row] = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    assert row["vec.vector"] == "[0.5,-1.0]"
