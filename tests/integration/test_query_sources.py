"""The rows of a query as documents, on both databases; nothing in the database is changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from orchestrator.core import addresses
from orchestrator.core.errors import InputError, JobFilesError
from orchestrator.documents import downloads
from tests.integration.test_limited_runs import Desk, opened
from tests.support.databases import new_sqlite

TABLE = """
CREATE TABLE letters (id INTEGER PRIMARY KEY, body TEXT, sent TIMESTAMP, amount NUMERIC(10, 2), kind TEXT)
"""


class Letters:
    """A table of letters in somebody's database."""

    def __init__(self, url: str) -> None:
        self.engine = create_engine(url)
        self.run(TABLE)

    def run(self, *statements: str) -> None:
        with self.engine.begin() as tx:
            for statement in statements:
                tx.execute(text(statement))

    def add(self, *numbers: int) -> None:
        for number in numbers:
            values = f"{number}, 'letter {number}', '2026-11-20 12\\:30\\:00', {number}.50, 'a'"
            self.run(f"INSERT INTO letters VALUES ({values})")

    @property
    def bodies(self) -> list[str]:
        with self.engine.connect() as connection:
            return [str(row[0]) for row in connection.execute(text("SELECT body FROM letters ORDER BY id"))]


@pytest.fixture
def letters(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Letters]:
    made = Letters(addresses.database_url(database_url, Path("/")))
    monkeypatch.setenv("LETTERS_URL", database_url)
    yield made
    made.engine.dispose()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    (tmp_path / "desk").mkdir()
    monkeypatch.setattr(downloads, "PAUSES", (0.0, 0.0))
    with opened(tmp_path / "desk", new_sqlite(tmp_path / "orch.db"), monkeypatch) as desk:
        yield desk


def source(query: str) -> dict[str, Any]:
    where = {"name": "mail", "query": query, "url_env": "LETTERS_URL"}
    return {**where, "text_column": "body", "id_column": "id"}


@pytest.mark.long
def test_rows_are_documents_and_only_new_ones_are_asked(desk: Desk, letters: Letters) -> None:
    letters.add(1, 2, 3)
    desk.spec["documents"] = source(
        "SELECT id, body, sent, amount FROM letters WHERE kind LIKE '%a' AND kind <> '12:30' ORDER BY id"
    )
    desk.spec["tasks"][0]["prompt"] = "Who? It is worth {{ amount }} and was sent at {{ sent }}."
    first = desk.answered()
    assert desk.sent(first) == ["mail#1", "mail#2", "mail#3"]
    lines = desk.home.requests(first.id).read_text()
    assert "It is worth 1.5" in lines
    assert "2026-11-20" in lines

    letters.add(4)
    letters.run("UPDATE letters SET body = 'another' WHERE id = 2", "DELETE FROM letters WHERE id = 1")
    assert desk.sent(desk.answered()) == ["mail#2", "mail#4"]


@pytest.mark.long
@pytest.mark.thinned(2)
def test_many_rows_come_in_parts(desk: Desk, letters: Letters) -> None:
    letters.add(1)
    many = " UNION ALL ".join(f"SELECT {number} AS n" for number in range(50))
    desk.spec["documents"] = source(f"SELECT a.n * 50 + b.n AS id, 'x' AS body FROM ({many}) a, ({many}) b")
    report = desk.submit().report
    assert report is not None
    assert report.documents == 2500


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT nothing FROM letters", "the database refuses the query"),
        ("SELEC 1", "the database refuses the query"),
        ("DELETE FROM letters", "the database refuses the query"),
        ("SELECT id, body, body FROM letters", "two columns of the query are called 'body'"),
    ],
)
def test_a_bad_query_is_told_and_changes_nothing(desk: Desk, letters: Letters, query: str, told: str) -> None:
    letters.add(1, 2)
    desk.spec["documents"] = source(query)
    with pytest.raises(InputError, match=re.escape(told)):
        desk.submit()
    assert letters.bodies == ["letter 1", "letter 2"]
    assert not desk.store.jobs.newest()


@pytest.mark.parametrize(
    ("url", "error", "told"),
    [
        ("", InputError, "LETTERS_URL is not set"),
        ("nothing", InputError, "does not hold the address of a database"),
        ("xyz://host/name", InputError, "does not hold the address of a database"),
        ("sqlite:///none.db", InputError, "there is no database"),
        ("postgresql://u:secret@127.0.0.1:9/name", JobFilesError, "the download failed"),
    ],
)
def test_a_database_that_is_not_there(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, url: str, error: type[Exception], told: str
) -> None:
    monkeypatch.setenv("LETTERS_URL", url)
    desk.spec["documents"] = source("SELECT 1 AS id, 'x' AS body")
    with pytest.raises(error, match=told) as caught:
        desk.submit()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"text_column": "x"}, "name a `path`, or a `query`"),
        ({"path": "x", "url_env": "X"}, "`url_env` is for a `query`"),
        ({"query": "SELECT 1", "url_env": "X", "text_column": "x"}, "needs `name`, `url_env` and `text_column`"),
        ({"query": "SELECT 1", "path": "x"}, "has no `path`"),
    ],
)
def test_a_source_is_either(desk: Desk, entry: dict[str, Any], told: str) -> None:
    desk.spec["documents"] = entry
    with pytest.raises(InputError, match=re.escape(told)):
        desk.submit()
