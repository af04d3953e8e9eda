"""The rows of a query as a table. They are written to a JSONL file, which is read like any other file."""

from __future__ import annotations

import os
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.core.addresses import database_url
from orchestrator.core.errors import InputError
from orchestrator.core.extras import install_line
from orchestrator.documents.remote import RemoteRoot

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Engine

    from orchestrator.settings.job_spec import DocumentSource

AHEAD = 1000
"""Rows per fetch."""
_BIND = re.compile(r"(?<![:\\]):(?=[A-Za-z_0-9])")
_READ_ONLY = {"postgresql": "SET TRANSACTION READ ONLY", "sqlite": "PRAGMA query_only = ON"}


def located(source: DocumentSource, base: Path) -> RemoteRoot:
    """Return the source's location. Raises InputError if the database's URL is missing or unsupported."""
    variable = str(source.url_env)
    url = os.environ.get(variable, "").strip()
    if not url:
        raise InputError(
            f"the variable {variable} is not set", field="url_env", hint="it holds the database's address"
        )
    url = database_url(url, base)
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        raise InputError(f"{variable}: there is no database {url}", field="url_env")
    storage = QueryStorage(_engine(url, variable), str(source.query))
    return RemoteRoot(source.called, storage, f"{source.called}.jsonl", is_file=True, is_list=False)


def _engine(url: str, variable: str) -> Engine:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    from sqlalchemy.pool import NullPool

    try:
        return create_engine(url, poolclass=NullPool)
    except (ArgumentError, NoSuchModuleError):
        hint = "such as sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
        raise InputError(f"{variable} does not hold the address of a database", field="url_env", hint=hint) from None
    except ImportError as error:
        extra = install_line("postgres") if "psycopg" in str(error) else None
        raise InputError(
            f"the driver for {variable} is not installed: {error}", field="url_env", hint=extra
        ) from None


class QueryStorage:
    """An fsspec-like storage with one file: the rows of a query, written anew for each request. Never changes the
    database.
    """

    def __init__(self, engine: Engine, query: str) -> None:
        self._engine = engine
        self._query = query

    def info(self, path: str) -> dict[str, Any]:
        """Return an empty dict: only the query itself could reveal changed rows."""
        return {}

    def get_file(self, path: str, to: str, callback: Any) -> None:
        """Write the rows to the file `to`.

        Raises InputError if the database refuses the query. Raises SQLAlchemy's error if the connection fails.
        """
        from sqlalchemy.exc import DBAPIError

        connection = self._engine.connect()
        try:
            with Path(to).open("wb") as file:
                self._write(connection, file, callback)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            told = str(error.orig).partition("\n")[0]
            raise InputError(f"the database refuses the query: {told}", field="query") from None
        finally:
            connection.rollback()
            connection.close()

    def _write(self, connection: Connection, file: Any, callback: Any) -> None:
        from sqlalchemy import text

        if (read_only := _READ_ONLY.get(connection.dialect.name)) is not None:
            connection.execute(text(read_only))
        streamed = connection.execution_options(stream_results=True, max_row_buffer=AHEAD)
        # SQLAlchemy would take a colon in the user's query for a parameter.
        with closing(streamed.execute(text(_BIND.sub(r"\\:", self._query)))) as result:
            self._copy(result, file, callback)

    @staticmethod
    def _copy(result: CursorResult[Any], file: Any, callback: Any) -> None:
        if not result.returns_rows:
            raise InputError("the query returns no rows; write a SELECT", field="query")
        names = list(result.keys())
        if len(set(names)) < len(names):
            name = next(name for name in names if names.count(name) > 1)
            raise InputError(f"two columns of the query are called {name!r}; name them with AS", field="query")
        encode = msgspec.json.Encoder(enc_hook=str).encode
        for rows in result.partitions(AHEAD):
            lines = b"".join(encode(dict(zip(names, row, strict=True))) + b"\n" for row in rows)
            file.write(lines)
            callback.relative_update(len(lines))
