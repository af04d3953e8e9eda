"""Databases that refuse: each is a StorageError that says what to do, and none tells a password."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from orchestrator.core.errors import DataRefused, StorageError
from orchestrator.core.events import EventKind
from orchestrator.store import Store
from orchestrator.store.alerts import AlertRecord
from tests.support.stored import NOW, added, job, sharded

NOBODY = 65_534

# argv: database, user. Everything is imported before the rights are gone, since the project may not be readable.
AS_USER = """
import os, sys
import orchestrator.store.database, alembic.command, alembic.config, sqlalchemy.dialects.sqlite
from orchestrator.core.errors import StorageError
from orchestrator.store import Store
from tests.support.stored import job
if os.getuid() == 0:
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
try:
    with Store.open(sys.argv[1]) as store:
        store.jobs.get("contracts-1")
        store.jobs.add(job("contracts-2"), {})
except StorageError as error:
    print(error)
    sys.exit(4)
"""


def as_nobody(url: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", AS_USER, url, str(NOBODY)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="orch-open-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_locked_sqlite_database_says_so_after_its_timeout(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'orch.db'}"
    Store.open(url).close()
    holder = sqlite3.connect(tmp_path / "orch.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with Store.open(url, timeout=0.05) as store:
        with pytest.raises(StorageError) as raised:
            store.jobs.add(job(), {})
        assert raised.value.message == f"the database {tmp_path / 'orch.db'} cannot be used: database is locked"
        assert raised.value.hint
        assert "ORCH_DATABASE_TIMEOUT" in raised.value.hint
        assert store.jobs.newest() == []  # reading goes on
        holder.execute("ROLLBACK")
        store.jobs.add(job(), {})
    holder.close()


def test_a_locked_row_in_postgres_says_so_after_its_timeout(postgres_url: str) -> None:
    holder = create_engine(postgres_url)
    with Store.open(postgres_url, timeout=0.05) as store, holder.connect() as holding:
        added(store)
        holding.execute(text("SELECT * FROM jobs FOR UPDATE"))
        with pytest.raises(StorageError, match="lock timeout") as raised:
            store.jobs.fail(job().id, "x")
        assert raised.value.hint
        holding.rollback()
        store.jobs.fail(job().id, "x")
    holder.dispose()


@pytest.mark.long
def test_a_database_that_may_only_be_read_says_so(open_folder: Path) -> None:
    path = open_folder / "state" / "orch.db"
    with Store.open(f"sqlite:///{path}") as store:
        added(store)
    path.chmod(0o444)
    path.parent.chmod(0o555)
    ended = as_nobody(f"sqlite:///{path}")
    path.parent.chmod(0o755)
    assert ended.returncode == 4, ended.stderr
    assert ended.stdout.startswith(f"the database {path} cannot be used: attempt to write a readonly database")
    assert "make the file and its folder writable" in ended.stdout


@pytest.mark.long
def test_a_folder_that_may_not_be_entered_says_so(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    ended = as_nobody(f"sqlite:///{closed / 'orch.db'}")
    if os.getuid() != 0:
        pytest.skip("the folder is the user's own")
    assert ended.returncode == 4, ended.stderr
    assert "unable to open database file" in ended.stdout
    assert "hint: make the folder readable and writable" in ended.stdout


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"the folder .*/file/state cannot be created: Not a directory"):
        Store.open(f"sqlite:///{tmp_path / 'file' / 'state' / 'orch.db'}")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04" * 500, "file is not a database"),
        (b"SQLite format 3\0" + b"\xff" * 5000, "file is not a database"),
    ],
    ids=["another file", "a damaged database"],
)
def test_a_file_that_is_no_database_is_told_and_left_as_it_is(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "orch.db"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=says) as raised:
        Store.open(f"sqlite:///{path}")
    assert raised.value.hint
    assert path.read_bytes() == content


def test_a_folder_in_the_databases_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "orch.db").mkdir()
    with pytest.raises(StorageError, match="unable to open database file"):
        Store.open(f"sqlite:///{tmp_path / 'orch.db'}")


def test_a_number_that_no_database_holds_is_told_and_is_no_fault_of_the_databases(store: Store) -> None:
    with pytest.raises(DataRefused, match=r"cannot hold a value: .*(too large|out of range)"):
        store.jobs.add(job(budget=Decimal("1e10")), {})
    assert store.jobs.newest() == []


@pytest.mark.parametrize("text", ["of \0 and more", "half a \ud800 character"], ids=["NUL", "a lone surrogate"])
def test_words_from_elsewhere_are_kept_whatever_is_in_them(store: Store, text: str) -> None:
    """A provider's message ends no daemon."""
    kept = text.replace("\0", "\ufffd").replace("\ud800", "?")
    new = added(store)
    store.jobs.note(new.id, EventKind.WAITING, text, NOW)
    shard = sharded(store, new)
    store.shards.note(shard, held=text, rerouted_for=text)
    assert [event.reason for event in store.jobs.events(new.id)] == [kept]
    assert (store.shards.get(shard.id).held, store.shards.get(shard.id).rerouted_for) == (kept, kept)
    store.jobs.fail(new.id, text)
    assert store.jobs.get(new.id).error == kept
    told = AlertRecord("key", NOW, "output", None, text, text, home="home")
    assert store.alerts.add(told)
    assert [one.message for one in store.alerts.unsent("home", NOW)] == [kept]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


URLS = {
    "plain": "postgresql+psycopg://orch:{secret}@127.0.0.1:{port}/night",
    "in the query": "postgresql+psycopg://127.0.0.1:{port}/night?user=orch&password={secret}",
    "with an @": "postgresql+psycopg://orch:p@{secret}@127.0.0.1:{port}/night",
    "escaped": "postgresql+psycopg://orch:%40{secret}%2F@127.0.0.1:{port}/night",
    "a port that is none": "postgresql+psycopg://orch:{secret}@127.0.0.1:port/night",
    "a port in the password's way": "postgresql+psycopg://orch:{secret}:x@127.0.0.1:{secret}/night",
    "no address": "postgresql+psycopg:/orch:{secret}",
    "another database": "mysql://orch:{secret}@127.0.0.1:{port}/night",
    "an unknown one": "nosql://orch:{secret}@127.0.0.1:{port}/night",
}


@pytest.mark.parametrize("url", URLS.values(), ids=URLS.keys())
def test_a_server_that_is_not_there_is_told_without_its_password(url: str) -> None:
    url = url.format(secret="g3h3im", port=closed_port())
    with pytest.raises(StorageError) as raised:
        Store.open(url, timeout=1)
    told = f"{raised.value}{raised.value.message}{raised.value.hint}"
    assert "g3h3im" not in told
    assert told.startswith("the database")


def test_postgres_that_is_down_says_what_to_do() -> None:
    port = closed_port()
    with pytest.raises(StorageError) as raised:
        Store.open(f"postgresql+psycopg://orch:g3h3im@127.0.0.1:{port}/night")
    assert raised.value.message.startswith(f"the database 127.0.0.1:{port}/night cannot be used: connection failed")
    assert raised.value.hint == "start Postgres, or correct database_url in orch.toml, or ORCH_DATABASE_URL"


def test_a_database_that_is_not_there_is_told(postgres_url: str) -> None:
    with pytest.raises(StorageError, match='database "nowhere" does not exist'):
        Store.open(postgres_url.replace("/test_", "/nowhere?x=").split("?")[0] + "?" + postgres_url.split("?")[1])


def test_a_database_that_goes_away_is_told_and_found_again(postgres_url: str) -> None:
    with Store.open(postgres_url) as store:
        added(store)
        admin = create_engine(postgres_url)
        with admin.connect() as connection:
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            connection.execute(text(ended + " AND datname = current_database()"))
        admin.dispose()
        # The connection of the pool is dead; the next verb gets a fresh one by itself.
        assert store.jobs.get("contracts-1").id == "contracts-1"
