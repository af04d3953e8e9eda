"""Sessions at Postgres: a commit is on disk, and every text can be held, whatever the server's defaults are."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import make_url, text

from orchestrator.core.errors import StorageError
from orchestrator.store.database import Database
from tests.support.postgres import PostgresServer


def setting(url: str, name: str) -> str:
    database = Database(url)
    try:
        with database.write() as tx:
            return str(tx.scalar(text(f"SHOW {name}")))
    finally:
        database.close()


def default(url: str, name: str, value: str) -> None:
    """Set what sessions of a database begin with."""
    parts = make_url(url)
    host = str(parts.query["host"])
    with psycopg.connect(host=host, user="postgres", dbname=parts.database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {parts.database} SET {name} = {value}".encode())


@pytest.mark.parametrize(
    ("set_to", "held"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")],
)
def test_a_commit_is_durable_whatever_the_database_says(postgres_url: str, set_to: str, held: str) -> None:
    default(postgres_url, "synchronous_commit", set_to)
    assert setting(postgres_url, "synchronous_commit") == held


def test_a_lock_is_waited_for_as_long_as_is_said(postgres_url: str) -> None:
    assert setting(postgres_url, "lock_timeout") == "10s"
    assert setting(postgres_url, "jit") == "off"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_text_is_refused_with_a_cure(
    postgres: PostgresServer, encoding: str
) -> None:
    with postgres.database(encoding=encoding) as url:
        database = Database(url)
        try:
            with pytest.raises(StorageError, match=encoding) as raised:
                database.open()
        finally:
            database.close()
    assert "createdb --encoding UTF8" in str(raised.value)


def test_the_encoding_of_a_client_is_not_the_environments(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    assert setting(postgres_url, "client_encoding") == "UTF8"
