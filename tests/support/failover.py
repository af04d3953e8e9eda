"""Two Postgres servers, of which one follows the other until the first is lost."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.support import postgres
from tests.support.postgres import OPTIONS, PostgresServer, start_server
from tests.support.process import wait_until

NAME = "orch"
_FOLLOWERS = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"


@dataclass
class Pair:
    """A primary and its standby. `url` reaches whichever takes writes."""

    primary: PostgresServer
    standby: PostgresServer

    @property
    def url(self) -> str:
        hosts = f"{self.primary.folder},{self.standby.folder}"
        return f"postgresql+psycopg://postgres@/{NAME}?host={hosts}&target_session_attrs=read-write"

    def part(self) -> None:
        """Let the standby receive nothing more: what is committed from here on is lost with the primary."""
        self.standby.tell("ALTER SYSTEM SET primary_conninfo = ''")
        self.standby.tell("SELECT pg_reload_conf()")
        wait_until(lambda: self.primary.ask(_FOLLOWERS) == 0, 60.0)

    def fail_over(self) -> None:
        """Kill the primary, as a machine that is gone, and promote the standby."""
        self.primary.close()
        pid, *_ = (self.primary.folder / "data" / "postmaster.pid").read_text().splitlines()
        os.kill(int(pid), signal.SIGKILL)
        with psycopg.connect(
            host=str(self.standby.folder), user="postgres", dbname="postgres", autocommit=True
        ) as one:
            one.execute("SELECT pg_promote()")


@contextmanager
def replicated(*, is_synchronous: bool) -> Iterator[Pair]:
    """A pair with an empty database; a commit waits for the standby if `is_synchronous`."""
    with ExitStack() as ended:
        folders = [Path(tempfile.mkdtemp(prefix="orch-pg-")) for _ in range(2)]
        for folder in folders:
            ended.callback(shutil.rmtree, folder, ignore_errors=True)
        first, second = folders
        binaries, user = postgres.new_cluster(first / "data")
        subprocess.run(["cp", "-a", first / "data", second / "data"], check=True)
        follows = second / "data" / "standby.signal"
        follows.touch()
        if user is not None:
            account = pwd.getpwnam(user)
            os.chown(follows, account.pw_uid, account.pw_gid)
        with (second / "data" / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = 'host={first} user=postgres'\n")
        primary = ended.enter_context(start_server(first, binaries, user, OPTIONS))
        standby = ended.enter_context(start_server(second, binaries, user, OPTIONS))
        wait_until(lambda: primary.ask(_FOLLOWERS) == 1, 60.0)
        if is_synchronous:
            primary.tell("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.tell("SELECT pg_reload_conf()")
        primary.tell(f"CREATE DATABASE {NAME}")
        wait_until(lambda: standby.ask(f"SELECT count(*) FROM pg_database WHERE datname = '{NAME}'") == 1, 60.0)
        yield Pair(primary, standby)
