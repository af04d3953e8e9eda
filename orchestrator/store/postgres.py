"""Connections to Postgres with durable settings, with or without a connection pooler.

A pooler such as PgBouncer accepts no options at the start of a connection. With transaction pooling, the next
transaction may run in another session. So behind a pooler, each transaction sets what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Dialect, Engine, create_engine, event

from orchestrator.core.errors import StorageError

if TYPE_CHECKING:
    from orchestrator.store.daemon_fence import DaemonFence

ENCODING = "UTF8"
# A commit that returns before it is on disk could lose the intent of a paid batch. Settings stronger than `on` are
# the operator's choice and stay.
_COMMIT = (
    "set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local',"
    " 'remote_write') THEN 'on' ELSE current_setting('synchronous_commit') END, {})"
)
_OF_A_SESSION = f"SELECT current_setting('server_encoding'), {_COMMIT.format('false')}"


def postgres_engine(url: str, timeout: float, fence: DaemonFence | None) -> Engine:
    """Return an engine whose connections commit durably and wait up to `timeout` seconds for a lock.

    Connecting raises StorageError if the database's encoding cannot hold all text.
    """
    named = {} if fence is None else {"application_name": fence.name}
    connect = {"connect_timeout": 10, "client_encoding": "utf8", **named}
    engine = create_engine(url, pool_pre_ping=True, connect_args=connect)
    _Sessions(engine, timeout)
    return engine


class _Sessions:
    """Settings of an engine's sessions: set once per session or, if a pooler refuses that, in each transaction."""

    def __init__(self, engine: Engine, timeout: float) -> None:
        # JIT compilation takes longer than most of our queries, and the planner's wrong estimates trigger it.
        self._settings = {"lock_timeout": f"{int(timeout * 1000)}ms", "jit": "off"}
        self._is_pooled = False
        self._engine = engine
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "connect", self._begin_session)

    def _connect(self, dialect: Dialect, record: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        import psycopg

        own = " ".join(f"-c {name}={value}" for name, value in self._settings.items())
        if not self._is_pooled:
            try:
                options = f"{named.get('options', '')} {own}".strip()
                return dialect.connect(*arguments, **{**named, "options": options})
            except psycopg.errors.ConnectionTimeout:
                raise
            except psycopg.OperationalError:
                # A pooler refuses options. After any other failure, connecting without options fails too.
                connection = self._connect_pooled(dialect, arguments, named)
                self._is_pooled = True
                # Added only here, because the listener makes each statement a tenth slower.
                event.listen(self._engine, "begin", self._begin)
                return connection
        return self._connect_pooled(dialect, arguments, named)

    def _connect_pooled(self, dialect: Dialect, arguments: list[Any], named: dict[str, Any]) -> Any:
        # No prepared statements: the pooler's next server session does not know them.
        return dialect.connect(*arguments, **{**named, "prepare_threshold": None})

    def _begin_session(self, connection: Any, record: Any) -> None:
        connection.autocommit = True
        query = "SELECT current_setting('server_encoding')" if self._is_pooled else _OF_A_SESSION
        encoding = connection.execute(query).fetchone()[0]
        connection.autocommit = False
        if encoding != ENCODING:
            raise StorageError(
                f"the database's encoding is {encoding}, which cannot hold every text of a document",
                hint="create one with UTF8:  createdb --encoding UTF8 --template template0 NAME",
            )

    def _begin(self, connection: Connection) -> None:
        each = [f"set_config('{name}', '{value}', true)" for name, value in self._settings.items()]
        connection.exec_driver_sql(f"SELECT {', '.join([*each, _COMMIT.format('true')])}")
