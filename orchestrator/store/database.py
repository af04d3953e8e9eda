"""Access to the database: SQLite or Postgres, with durable commits. It is migrated before its first use."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from sqlalchemy import (
    URL,
    Connection,
    Dialect,
    Engine,
    Row,
    Select,
    Table,
    create_engine,
    event,
    exc,
    inspect,
    make_url,
    text,
)

from orchestrator.core.errors import DataRefused, OrchError, StorageError
from orchestrator.core.extras import install_line
from orchestrator.core.model import RequestState
from orchestrator.store.job_figures import Ask
from orchestrator.store.revision import HEAD

if TYPE_CHECKING:
    from orchestrator.store.daemon_fence import DaemonFence

# Without an adapter for a value's type, sqlite3 looks for missing attributes, which takes 0.6 µs per value.
sqlite3.register_adapter(RequestState, str.__str__)

PAGE = 500
"""Rows that a stream fetches at a time. A larger page would not fit the processor's cache, and cost a sixth more."""


class Database:
    """Transactions on one database. Only this class turns SQLAlchemy's errors into StorageError.

    A database that is not `ours` belongs to another program and keeps its settings. With a `fence`, every write fails
    once another daemon has taken over.
    """

    def __init__(
        self, url: str, *, timeout: float = 10.0, ours: bool = True, fence: DaemonFence | None = None
    ) -> None:
        self._url = _parsed(url)
        self._fence = fence
        self.has_written = False
        self.before_naming_files: Callable[[], None] = lambda: None
        """Called before a transaction that refers to bytes in the home's files. Returns once these bytes are safe."""
        self.is_sqlite = url.startswith("sqlite")
        self._streams: WeakSet[Generator[Row[Any], None, None]] = WeakSet()
        with self._translated():
            self._engine = _sqlite(url, timeout, ours) if self.is_sqlite else _postgres(url, timeout, fence)

    def open(self) -> None:
        """Create or migrate the schema. Raises StorageError, for example if a newer orch has migrated it."""
        with self._translated():
            version = self._version()
            if version == HEAD:
                return
            if version is not None and version > HEAD:
                raise StorageError(
                    f"the database is at version {version}, newer than this orch supports", hint="upgrade orch"
                )
            self._create_or_migrate()

    @property
    def dialect(self) -> Dialect:
        return self._engine.dialect

    @property
    def path(self) -> Path | None:
        """The database's file, or None if it has no file."""
        return Path(self._url.database) if self.is_sqlite and self._url.database else None

    def close(self) -> None:
        """Close every connection, including those of unfinished streams."""
        for rows in list(self._streams):
            with suppress(ValueError):  # another thread is reading the stream, and will close it
                rows.close()
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read transaction, which has one consistent view."""
        with self._translated(), self._engine.connect() as connection:
            self._begin(connection)
            yield connection

    @contextmanager
    def asking(self) -> Iterator[Ask]:
        """Open a read transaction. Yields a function that runs a `job_figures` statement for a list of ids."""
        mark = "?" if self.is_sqlite else "%s"
        with self.read() as connection:

            def ask(statement: str, ids: Sequence[str]) -> Sequence[Row[Any]]:
                marks = ", ".join([mark] * len(ids))
                return connection.exec_driver_sql(statement.format(marks), tuple(ids)).all() if ids else []

            yield ask

    def stream(self, query: Select[Any]) -> Iterator[Row[Any]]:
        """Yield the rows of a query, fetched a page at a time, in one consistent view."""
        rows = self._pages(query)
        self._streams.add(rows)
        return rows

    def _pages(self, query: Select[Any]) -> Generator[Row[Any], None, None]:
        with self.read() as connection, connection.execution_options(yield_per=PAGE).execute(query) as rows:
            yield from rows

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a write transaction. It makes all changes durable when it ends, or changes nothing."""
        with self._translated(), self._engine.connect() as connection:
            self._begin(connection, write=True)
            with connection.begin():
                self.has_written = True
                if self._fence is not None:
                    self._fence.require(connection)
                yield connection

    def _begin(self, connection: Connection, *, write: bool = False) -> None:
        """Start a transaction on SQLite, whose driver would start a write transaction too late."""
        if self.is_sqlite:
            # Not a listener of SQLAlchemy's event, with which each statement takes a tenth longer.
            driver: Any = connection.connection.dbapi_connection
            # A writer takes the lock at once: upgrading a read lock later would fail instead of waiting.
            driver.execute("BEGIN IMMEDIATE" if write else "BEGIN")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OrchError:
            raise
        except (exc.SQLAlchemyError, ModuleNotFoundError, ArithmeticError, UnicodeError, sqlite3.Error) as error:
            cause = (str(getattr(error, "orig", None) or error).strip() or type(error).__name__).splitlines()[0]
            hint = next((advice for sign, advice in _ADVICE if sign in cause), None)
            name, secrets = _public(self._url)
            for secret in secrets:
                cause = cause.replace(secret, "***")
            if _is_of_a_value(error):
                raise DataRefused(f"the database cannot hold a value: {cause}") from error
            raise StorageError(f"the database {name} cannot be used: {cause}", hint=hint) from error

    def upsert(self, table: Table) -> Any:
        """Return an INSERT that supports ON CONFLICT, in this database's dialect."""
        # Imported on use: the Postgres dialect costs a read-only command 20 ms.
        if self.is_sqlite:
            from sqlalchemy.dialects.sqlite import insert as sqlite_insert

            return sqlite_insert(table)
        from sqlalchemy.dialects.postgresql import insert as postgres_insert

        return postgres_insert(table)

    def _version(self) -> str | None:
        try:
            return self._recorded_version()
        except (exc.OperationalError, exc.ProgrammingError):
            # Read again, because another process may have created the table meanwhile.
            return self._recorded_version() if inspect(self._engine).has_table("alembic_version") else None

    def _recorded_version(self) -> str | None:
        with self._engine.connect() as connection:
            found = connection.scalar(text("SELECT version_num FROM alembic_version"))
            return None if found is None else str(found)

    def _create_or_migrate(self) -> None:
        with self._alone(), self._engine.connect() as connection:
            self._begin(connection, write=True)
            with connection.begin():
                from orchestrator.store.creation import create

                if create(connection):
                    return
            self._begin(connection, write=True)
            _migrate(connection)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let only one process at a time create or migrate the schema. On SQLite, the write transaction ensures
        this.
        """
        if self.is_sqlite:
            yield
            return
        # A transaction holds the lock: a pooler keeps a transaction in one session, and a kill ends it.
        with self._engine.connect() as holder, holder.begin():
            holder.execute(text("SELECT pg_advisory_xact_lock(715517)"))
            yield


_MIGRATING = Lock()
"""Held by a thread that migrates: Alembic keeps the connection in a global variable."""


def _migrate(connection: Connection) -> None:
    # Imported for old databases only: new and current databases do not need Alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    config.attributes["connection"] = connection
    with _MIGRATING:
        command.upgrade(config, "head")


def _is_of_a_value(error: Exception) -> bool:
    if isinstance(error, exc.DataError):
        return True
    found = getattr(error, "orig", None) if isinstance(error, exc.StatementError) else error
    return isinstance(found, ArithmeticError | UnicodeError | TypeError | ValueError)


def migrations_folder() -> Path:
    return Path(__file__).parent / "migrations"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(
            f"the folder {folder} cannot be created: {error.strerror}",
            hint="set ORCH_HOME to a folder you may write",
        ) from error


def _postgres(url: str, timeout: float, fence: DaemonFence | None) -> Engine:
    # Imported on use, because homes are on SQLite by default.
    from orchestrator.store.postgres import postgres_engine

    return postgres_engine(url, timeout, fence)


def _sqlite(url: str, timeout: float, ours: bool) -> Engine:
    if ours:
        _make_folder(Path(url.removeprefix("sqlite:///")).parent)
    engine = create_engine(url, connect_args={"timeout": timeout})

    @event.listens_for(engine, "connect")
    def _settings(connection: sqlite3.Connection, _: Any) -> None:
        # The driver's own BEGIN is too late for BEGIN IMMEDIATE, so `Database` starts transactions.
        connection.isolation_level = None
        if not ours:
            return
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        # FULL: commits before money is spent must survive a power cut.
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    return engine


def _parsed(text: str) -> URL:
    try:
        return make_url(text)
    except (exc.ArgumentError, ValueError):
        # The address is not shown: it may contain a password, often the very part that is wrong.
        raise StorageError(
            "the database's address is not a URL", hint="such as postgresql://user:password@host:5432/name"
        ) from None


def _public(url: URL) -> tuple[str, list[str]]:
    if url.drivername.startswith("sqlite"):
        return url.database or "", []
    # A password with an unescaped @ ends up in the host.
    rest, _, host = (url.host or str(url.query.get("host", ""))).rpartition("@")
    name = f"{host}{f':{url.port}' if url.port else ''}/{url.database or ''}"
    secrets = (url.password, url.query.get("password"), url.query.get("sslpassword"), rest)
    return name, [str(secret) for secret in secrets if secret]


_SETTING = "database_url in orch.toml, or ORCH_DATABASE_URL"
_ADVICE = (
    ("database is locked", "another program holds it; end that one, or set ORCH_DATABASE_TIMEOUT higher"),
    ("lock timeout", "another program holds it; end that one, or set ORCH_DATABASE_TIMEOUT higher"),
    ("connection failed", f"start Postgres, or correct {_SETTING}"),
    ("failed to resolve host", f"correct {_SETTING}"),
    ("readonly", "make the file and its folder writable, or set ORCH_HOME to a folder you may write"),
    ("unable to open", "make the folder readable and writable, or set ORCH_HOME elsewhere"),
    ("disk is full", "free some disk space and run the command again; nothing is lost"),
    ("No space left", "free some space where the database is and run the command again; nothing is lost"),
    ("disk I/O", "check whether the disk is full or failing, then run the command again; nothing is lost"),
    ("malformed", "the file is damaged; restore it from a backup"),
    ("not a database", "the file is not a database; move it away or set ORCH_HOME elsewhere"),
    ("No module named 'psycopg'", install_line("postgres")),
)
