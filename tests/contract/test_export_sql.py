"""A job's rows in a table of SQLite and of Postgres."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect, text

from orchestrator.core import addresses
from orchestrator.core.errors import OutputError, OutputFault, StorageError
from orchestrator.core.model import Job
from orchestrator.pipeline.finish import outputs
from orchestrator.pipeline.finish.outputs import sqltable
from orchestrator.pipeline.finish.outputs.layout import Layout
from orchestrator.settings.job_spec import Output
from tests.support import merged

NIGHT = date(2026, 11, 21)
OUTPUT = Output(table="nights", url_env="ORCH_TEST_TABLE_URL")


@pytest.fixture
def url(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ORCH_TEST_TABLE_URL", database_url)
    return addresses.database_url(database_url, Path("/"))


def put(lines: list[bytes], job: Job | None = None) -> outputs.Written:
    return outputs.deliver(OUTPUT, job or merged.job(), lines, NIGHT)


def asked(url: str, query: str) -> list[Any]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]
    finally:
        engine.dispose()


def execute(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def test_a_job_has_a_row_per_row_with_typed_columns(url: str) -> None:
    line = json.loads(merged.lines()[0])
    line["provenance"]["settled_at"] = "2026-11-21T22:00:00+00:00"
    written = put([json.dumps(line).encode(), *merged.lines()[1:]])

    assert (str(written), written.bytes) == ("6 rows in table nights", None)
    columns = "custom_id, facts_topic, facts_pages, facts_sender_name, facts_urgent, answer"
    rows = asked(url, f"SELECT {columns} FROM nights ORDER BY document")
    assert rows[0] == ("facts-0", merged.ANSWER["topic"], 3, "Ann", True, None)
    assert rows[1] == ("gist-1", None, None, None, None, "Ann writes.\r\n=1+1")
    assert [row[0] for row in rows[2:]] == ["facts-2", "facts-3", "facts-4", "gist-5"]
    [(cost, at)] = asked(url, "SELECT sum(cost_usd), max(settled_at) FROM nights")
    assert round(Decimal(cost), 12) == Decimal("0.000009239585")
    assert str(at).startswith("2026-11-21 22:00:00")
    if not isinstance(at, str):
        assert at == datetime(2026, 11, 21, 22, tzinfo=UTC)


def test_a_job_replaces_its_own_rows_and_no_others(url: str) -> None:
    put(merged.lines())
    put(merged.lines()[:2], merged.job("letters-2"))
    put(merged.lines()[3:])
    assert asked(url, "SELECT job, count(*) FROM nights GROUP BY job ORDER BY job") == [
        ("letters-1", 3), ("letters-2", 2)
    ]  # fmt: skip


def test_a_write_that_fails_leaves_the_table_as_it_was(url: str) -> None:
    put(merged.lines())

    def broken() -> Iterator[bytes]:
        yield from (merged.line(seq, "x", task="gist") for seq in range(sqltable.CHUNK + 1))
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError):
        outputs.deliver(OUTPUT, merged.job(), broken(), NIGHT)
    assert asked(url, "SELECT count(*) FROM nights") == [(6,)]


def test_a_table_gets_the_columns_that_a_new_schema_brings(url: str) -> None:
    put(merged.lines()[:1])
    schema = {"type": "object", "properties": {"Topic": {"type": "string"}, "a-b %(x)s": {"type": "number"}}}
    spec = {**merged.job().spec, "tasks": [{**merged.TASKS[0], "schema": schema}]}
    answer = {"Topic": "new \0 one", "a-b %(x)s": 1.5}
    put([merged.line(0, json.dumps(answer))], merged.job("letters-2", spec=spec))
    assert asked(url, "SELECT job, facts_topic, facts_a_b___x_s FROM nights ORDER BY job") == [
        ("letters-1", merged.ANSWER["topic"], None),
        ("letters-2", "new \ufffd one", 1.5),
    ]


def test_many_rows_go_in_chunks(url: str) -> None:
    put([merged.line(seq, "x", task="gist") for seq in range(2 * sqltable.CHUNK + 1)])
    assert asked(url, "SELECT count(*) FROM nights") == [(2 * sqltable.CHUNK + 1,)]


def test_a_table_of_something_else_is_left_alone(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE nights (job TEXT, other TEXT)"))
    engine.dispose()
    with pytest.raises(StorageError, match=r"table nights: it already exists, and does not hold rows"):
        put(merged.lines())
    assert asked(url, "SELECT * FROM nights") == []


def test_a_sqlite_file_is_seen_from_the_job_file(tmp_path: Path) -> None:
    job = merged.job(source=str(tmp_path / "job.yaml"))
    output = Output(table="nights", url="sqlite:///out.db")
    outputs.deliver(output, job, merged.lines(), NIGHT)
    connection = sqlite3.connect(tmp_path / "out.db")
    try:
        assert connection.execute("SELECT count(*) FROM nights").fetchone() == (6,)
    finally:
        connection.close()


def test_a_database_that_is_away_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_TEST_TABLE_URL", "postgresql://me:hush-hush@127.0.0.1:1/x")
    with pytest.raises(StorageError, match="table nights") as raised:
        put(merged.lines())
    assert "hush-hush" not in str(raised.value)
    assert "ORCH_HOME" not in str(raised.value)


def test_a_column_of_another_type_is_named(url: str) -> None:
    put(merged.lines())
    schema = {"type": "object", "properties": {"pages": {"type": "string"}}}
    spec = {**merged.job().spec, "tasks": [{**merged.TASKS[0], "schema": schema}]}
    told = "its column facts_pages is BIGINT, and must be TEXT"
    with pytest.raises(StorageError, match=told) as raised:
        put([merged.line(0, '{"pages": "three"}')], merged.job("letters-2", spec=spec))
    assert "another table name" in str(raised.value)


def test_names_that_are_the_same_in_sql_get_a_number(url: str) -> None:
    fields = {"a b": {"type": "string"}, "a_b": {"type": "string"}, "x" * 100: {"type": "string"}}
    layout = Layout("j", {"facts": {"type": "object", "properties": fields}}, flat=True)
    answer = {"a b": "1", "a_b": "2", "x" * 100: "3"}
    sqltable.replace(url, "nights", layout, "j", [merged.line(0, json.dumps(answer))])
    assert asked(url, f"SELECT facts_a_b, facts_a_b_2, facts_{'x' * 57} FROM nights") == [("1", "2", "3")]


def columns(url: str) -> list[str]:
    engine = create_engine(url)
    try:
        there = inspect(engine)
        return [one["name"] for name in there.get_table_names() for one in there.get_columns(name)]
    finally:
        engine.dispose()


def probe(job: Job | None = None) -> None:
    outputs.probe(OUTPUT, job or merged.job(), NIGHT)


def test_to_try_a_table_makes_and_changes_nothing(url: str) -> None:
    probe()
    assert columns(url) == []
    put([], merged.job(spec={"name": "letters", "documents": [{"path": "d"}], "tasks": merged.TASKS[1:]}))
    narrow = columns(url)
    probe()
    assert columns(url) == narrow
    put(merged.lines())
    assert set(columns(url)) > set(narrow)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("CREATE TABLE nights (job TEXT, other TEXT)", "it already exists, and does not hold rows"),
        ("CREATE TABLE nights (job TEXT, custom_id TEXT, attempt TEXT)", "its column attempt is TEXT"),
    ],
    ids=["something else", "other columns"],
)
def test_a_table_that_the_rows_do_not_fit_is_known_beforehand(url: str, table: str, told: str) -> None:
    execute(url, table)
    for way in (probe, lambda: put(merged.lines())):
        with pytest.raises(OutputError, match=told) as raised:
            way()
        assert raised.value.code is OutputFault.DIFFERS


@pytest.mark.parametrize(
    ("grants", "missing"),
    [("SELECT, DELETE", "INSERT"), ("SELECT, INSERT", "DELETE")],
    ids=["may not insert", "may not delete"],
)
def test_a_table_that_may_not_be_written_is_known_beforehand(
    postgres_url: str, grants: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_TEST_TABLE_URL", postgres_url)
    put(merged.lines())
    user = f"reader_{missing.lower()}"
    execute(
        postgres_url,
        f"DROP ROLE IF EXISTS {user}",
        f"CREATE ROLE {user} LOGIN",
        f"GRANT {grants} ON nights TO {user}",
    )
    monkeypatch.setenv("ORCH_TEST_TABLE_URL", postgres_url.replace("postgres@", f"{user}@"))
    with pytest.raises(OutputError, match="permission denied") as raised:
        probe()
    assert raised.value.code is OutputFault.NO_PERMISSION
    execute(postgres_url, f"REVOKE ALL ON nights FROM {user}", f"DROP ROLE {user}")


def test_a_database_file_that_is_not_ours_keeps_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE mine (x)")
    output = Output(table="nights", url=f"sqlite:///{path}")
    outputs.probe(output, merged.job(), NIGHT)
    outputs.deliver(output, merged.job(), merged.lines(), NIGHT)
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def vectors(seq: int, *numbers: float, state: str = "succeeded") -> bytes:
    row = json.loads(merged.line(seq, "x", task="vec", state=state))
    row["output"] = list(numbers) if state == "succeeded" else None
    return json.dumps(row).encode()


def vector_job(job_id: str = "letters-1", **task: Any) -> Job:
    fields = {"id": "vec", "kind": "embedding", "model": "m", **task}
    return merged.job(job_id, spec={"name": "letters", "documents": [{"path": "d"}], "tasks": [fields]})


def kept(value: Any) -> Any:
    """What a database says of a vector: SQLite and pgvector as JSON's text, an array as a list."""
    return json.loads(value) if isinstance(value, str) else value


@pytest.mark.parametrize("pgvector", [False, True])
def test_vectors_are_kept_as_what_the_database_has_for_them(url: str, pgvector: bool) -> None:
    is_postgres = url.startswith("postgres")
    if pgvector:
        if not is_postgres:
            return
        execute(url, "CREATE EXTENSION vector")
    probe(vector_job())
    put([vectors(0, state="failed"), vectors(1, 0.5, -2.0), vectors(2, 1.0, 0.0)], vector_job())
    put([vectors(0, 3.0, 4.0)], vector_job("letters-2"))
    probe(vector_job())
    probe(vector_job(dimensions=2))
    found = asked(url, "SELECT vec_vector FROM nights ORDER BY job, custom_id")
    assert [kept(row[0]) for row in found] == [None, [0.5, -2.0], [1.0, 0.0], [3.0, 4.0]]
    if pgvector:
        near = asked(url, "SELECT custom_id FROM nights ORDER BY vec_vector <-> '[3, 3]' LIMIT 1")
        assert near == [("vec-0",)]
        with pytest.raises(OutputError, match=r"its column vec_vector is VECTOR\(2\), and must be VECTOR\(3\)"):
            probe(vector_job(dimensions=3))
    elif is_postgres:
        execute(url, "CREATE EXTENSION vector")
        put([vectors(0, 5.0, 6.0)], vector_job("letters-3"))
        assert asked(url, "SELECT vec_vector FROM nights WHERE job = 'letters-3'") == [([5.0, 6.0],)]
