"""The schema: what the migrations make is what the tables say, whoever makes it and however often it is cut off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

from orchestrator.core.counts import Counts
from orchestrator.core.errors import StorageError
from orchestrator.core.fail_on import Failing
from orchestrator.core.model import JobId
from orchestrator.store import (
    Store,
    learned_tables,  # noqa: F401  (the same)
    night_tables,  # noqa: F401  (its tables are of the metadata)
)
from orchestrator.store.database import HEAD, migrations_folder
from orchestrator.store.tables import metadata
from tests.support.process import PATIENCE
from tests.support.stored import NOW, added, avoided

OPEN = "import sys; from orchestrator.store import Store; Store.open(sys.argv[1]).close()"

# Ends itself, as a kill would, before the n-th statement that changes something.
CUT = """
import os, sys
from sqlalchemy import event
from orchestrator.store import Store
store, left = Store(sys.argv[1]), [int(sys.argv[2])]
@event.listens_for(store._database._engine, "before_cursor_execute")
def count(connection, cursor, statement, *rest):
    if statement.lstrip().split()[0].upper() in ("CREATE", "INSERT", "UPDATE"):
        left[0] -= 1
        if left[0] == 0:
            os._exit(9)
store._database.open()
"""


def scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    return ScriptDirectory.from_config(config)


def differences(url: str) -> list[Any]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            return list(compare_metadata(context, metadata))
    finally:
        engine.dispose()


def execute(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def test_the_migrations_make_what_the_tables_say(database_url: str) -> None:
    Store.open(database_url).close()
    assert differences(database_url) == []


@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE jobs ADD COLUMN more INTEGER", "DROP INDEX ix_requests_job_id_state", "DROP TABLE tags"],
    ids=["a column more", "an index less", "a table less"],
)
def test_the_comparison_sees_a_difference(database_url: str, statement: str) -> None:
    Store.open(database_url).close()
    execute(database_url, statement)
    assert differences(database_url) != []


def test_foreign_keys_and_unique_constraints_are_those_of_the_tables(database_url: str) -> None:
    Store.open(database_url).close()
    engine = create_engine(database_url)
    there = inspect(engine)
    for table in metadata.tables.values():
        keys = {
            (tuple(key["constrained_columns"]), key["referred_table"], key["options"].get("ondelete"))
            for key in there.get_foreign_keys(table.name)
        }
        assert keys == {
            (tuple(key.column_keys), key.referred_table.name, key.ondelete) for key in table.foreign_key_constraints
        }
    engine.dispose()


def test_the_head_that_the_store_knows_is_the_newest_script() -> None:
    assert scripts().get_heads() == [HEAD]


@pytest.mark.long
def test_a_database_is_made_and_opened_without_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'orch.db'}"
    code = f"{OPEN}; sys.exit('alembic' in sys.modules)"
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code, url], check=False).returncode == 0
    assert differences(url) == []


def test_opening_again_keeps_what_is_there(database_url: str) -> None:
    with Store.open(database_url) as store:
        added(store)
    with Store.open(database_url) as store:
        assert store.jobs.get("contracts-1").name == "contracts"


def test_a_database_of_a_newer_version_is_refused_and_left_alone(database_url: str) -> None:
    with Store.open(database_url) as store:
        added(store)
    execute(database_url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StorageError) as raised:
        Store.open(database_url)
    assert raised.value.message == "the database is at version 9999, newer than this orch supports"
    assert raised.value.hint == "upgrade orch"
    execute(database_url, f"UPDATE alembic_version SET version_num = '{HEAD}'")
    with Store.open(database_url) as store:
        assert store.jobs.get("contracts-1").name == "contracts"


@pytest.mark.long
def test_processes_that_find_an_empty_database_at_once_all_get_it(database_url: str) -> None:
    started = [subprocess.Popen([sys.executable, "-c", OPEN, database_url]) for _ in range(3)]
    assert [process.wait(PATIENCE) for process in started] == [0, 0, 0]
    assert differences(database_url) == []


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("statement", [1, 2, 5, 12])
def test_a_migration_that_is_killed_is_done_at_the_next_start(database_url: str, statement: int) -> None:
    killed = subprocess.run([sys.executable, "-c", CUT, database_url, str(statement)], check=False)
    assert killed.returncode == 9
    with Store.open(database_url) as store:
        added(store)
    assert differences(database_url) == []


OLD_ROW = (
    "INSERT INTO requests (job_id, seq, custom_id, document, task, endpoint, model, fingerprint, prompt_version,"
    ' "offset", length, state, attempt, shard_id, settled_at, error_code, canary, input_tokens, cached_tokens,'
    " output_tokens, cost) VALUES ('old-1', {seq}, 'r{seq}', 'd{seq}', 't', '/v1/x', 'm', 'f{seq}', 'v', 0, 9,"
    " '{state}', 0, {shard}, {settled}, {code}, {canary}, 0, 0, 0, 0)"
)

OLD_JOB = (
    "INSERT INTO jobs (id, home, series, identity, name, kind, source, spec, options, created_at, built_at)"
    " VALUES ('old-1', 'home', 's', 'i', 'old', 'documents', '/job.yaml', '{{}}', '{{}}', {at}, {at})"
)


@pytest.mark.long
def test_a_home_of_the_version_before_keeps_what_it_has(database_url: str) -> None:
    at = int(NOW.timestamp() * 1_000_000)
    upgraded(database_url, "0003")
    true = "1" if database_url.startswith("sqlite") else "true"
    for statement in (
        OLD_JOB.format(at=at),
        "INSERT INTO shards (id, job_id, number, backend, endpoint, model, state, reason, rows, bytes, created_at,"
        " window_seconds, provider_completed, provider_failed, provider_input_tokens, provider_output_tokens,"
        " provider_seconds, pulled_at, pulled_for) VALUES ('old-1.001', 'old-1', 1, 'gpu', '/v1/x', 'm', 'submitted',"
        f" 'x', 1, 9, {at}, 9, 0, 0, 0, 0, 0, {at}, 'too late')",
        f"INSERT INTO events (job_id, at, kind, reason) VALUES ('old-1', {at}, 'rescued', 'too late')",
        *(
            "INSERT INTO ledger (job_id, seq, shard_id, at, kind, backend, model, input_tokens, cached_tokens,"
            " output_tokens, cost, price_source, estimated) VALUES ('old-1', 1, 'old-1.001',"
            f" {at}, '{kind}', 'gpu', 'm', 0, 0, 0, 5, 'list', {true})"
            for kind in ("taken_back", "asked_again", "climbed")
        ),
        *(
            OLD_ROW.format(seq=seq, state=state, shard=shard, settled=settled, code=code, canary=canary)
            for seq, (state, shard, settled, code, canary) in enumerate(
                [
                    ("pending", "NULL", "NULL", "NULL", true),
                    ("pending", "'old-1.001'", "NULL", "NULL", "NULL"),
                    ("failed", "NULL", at, "'refusal'", "NULL"),
                    # Of a time in which nothing said when.
                    ("failed", "NULL", "NULL", "'empty'", "NULL"),
                ]
            )
        ),
    ):
        execute(database_url, statement)
    with Store.open(database_url) as store:
        old = store.jobs.get("old-1")
        assert store.jobs.counts([old.id])[old.id] == Counts(pending=2, failed=2)
        assert [row.seq for row in store.rows.waiting(old.id)] == [0]
        assert [row.seq for row in store.rows.waiting(old.id, canary=True)] == [0]
        assert [row.seq for row in store.rows.of_shard(store.shards.of_job(old.id)[0].id)] == [1]
        [shard] = store.shards.of_job(old.id)
        assert (shard.rerouted_at, shard.rerouted_for) == (NOW, "too late")
        assert [event.kind for event in store.jobs.events(old.id)] == ["rerouted"]
        store.failures.trace(old)
        assert store.failures.of_jobs([old.id])[old.id] == Failing(new=2)
    assert differences(database_url) == []
    assert values(database_url, "SELECT kind FROM ledger ORDER BY kind") == ["escalated", "reasked", "rerouted"]


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [("'gpu'", ("gpu",)), ("'flex,gpu'", ("flex", "gpu")), ("NULL", ())])
def test_rows_keep_away_from_what_they_kept_away_from(database_url: str, old: str, new: tuple[str, ...]) -> None:
    upgraded(database_url, "0004")
    execute(database_url, OLD_JOB.format(at=int(NOW.timestamp() * 1_000_000)))
    row = OLD_ROW.format(seq=0, state="pending", shard="NULL", settled="NULL", code="NULL", canary="NULL")
    execute(database_url, row)
    execute(database_url, f"UPDATE requests SET avoid = {old}")
    with Store.open(database_url) as store:
        assert avoided(store, JobId("old-1")) == {new}
        assert [row.seq for row in store.rows.waiting(JobId("old-1"), new)] == [0]
        assert new == () or [*store.rows.waiting(JobId("old-1"))] == []


def upgraded(url: str, version: str) -> None:
    """An empty database of a version."""
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    engine = create_engine(url)
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, version)
    engine.dispose()


def values(url: str, query: str) -> list[Any]:
    """The first column of what a query finds."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = list(connection.scalars(text(query)))
    engine.dispose()
    return found


# What Postgres and SQLite say of a schema, without the order of columns: that is of when each was added.
FACTS = {
    "sqlite": (
        'SELECT m.name, c.name, c.type, c."notnull", c.dflt_value, c.pk, c.hidden'
        " FROM sqlite_master m, pragma_table_xinfo(m.name) c WHERE m.type = 'table'",
        'SELECT m.name, i.name, i."unique", i.origin, i.partial, c.seqno, c.name, c.desc, c.coll,'
        " replace(x.sql, '\"', '') FROM sqlite_master m, pragma_index_list(m.name) i, pragma_index_xinfo(i.name) c"
        " LEFT JOIN sqlite_master x ON x.name = i.name WHERE m.type = 'table' AND c.key",
        "SELECT m.name, f.* FROM sqlite_master m, pragma_foreign_key_list(m.name) f WHERE m.type = 'table'",
        "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_autoindex%'",
        "SELECT * FROM alembic_version",
    ),
    "postgresql": (
        "SELECT c.relname, c.relkind, c.reloptions, c.relpersistence, a.attname,"
        " format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstattarget, a.attstorage, a.attidentity,"
        " a.attgenerated, pg_get_expr(d.adbin, d.adrelid)"
        " FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum"
        " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v') AND a.attnum > 0"
        " AND NOT a.attisdropped",
        "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = 'public'::regnamespace AND contype <> 'n'",
        "SELECT sequence_name, data_type, start_value, increment FROM information_schema.sequences",
        "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
        "SELECT * FROM alembic_version",
    ),
}


def facts(url: str) -> list[list[str]]:
    """Everything that the database says of its schema."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [
            sorted(str(tuple(row)) for row in connection.execute(text(query))) for query in FACTS[engine.dialect.name]
        ]
    engine.dispose()
    return found


@pytest.fixture
def other_url(database_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A second empty database of the same kind."""
    if database_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'other.db'}"
        return
    with request.getfixturevalue("postgres").database() as url:
        yield url


@pytest.mark.slow
def test_an_empty_database_gets_at_once_what_the_migrations_make(database_url: str, other_url: str) -> None:
    Store.open(database_url).close()
    upgraded(other_url, "head")
    made, migrated = facts(database_url), facts(other_url)
    for at, (one, other) in enumerate(zip(made, migrated, strict=True)):
        assert one == other, FACTS["sqlite" if database_url.startswith("sqlite") else "postgresql"][at]
    assert all(made[:2]), "there is something to compare"


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE jobs ADD COLUMN more INTEGER DEFAULT 1",
        "DROP INDEX ix_requests_waiting; CREATE INDEX ix_requests_waiting ON requests (job_id, endpoint, model, seq)",
        "CREATE VIEW more AS SELECT 1 AS one",
    ],
    ids=["a column more", "an index that is not partial", "a view"],
)
def test_what_is_compared_tells_a_difference(database_url: str, statement: str) -> None:
    Store.open(database_url).close()
    before = facts(database_url)
    for one in statement.split("; "):
        execute(database_url, one)
    assert facts(database_url) != before


@pytest.mark.long
def test_a_database_of_somebody_elses_tables_is_not_taken_for_an_empty_one(database_url: str) -> None:
    execute(database_url, "CREATE TABLE theirs (id INTEGER)")
    Store.open(database_url).close()
    assert [one for one in differences(database_url) if one[0] != "remove_table"] == []
    assert values(database_url, "SELECT count(*) FROM theirs") == [0]
