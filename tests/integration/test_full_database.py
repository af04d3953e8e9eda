"""A Postgres whose disk is full in the middle of a job: exit 4 and one line; with room again, the job goes on."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support import postgres
from tests.support.cli import CONFIG, Orch
from tests.support.disks import disk_of, filled
from tests.support.hostedjob import KEY, cost_of, plain, settings_of, write_toml
from tests.support.postgres import OPTIONS, PostgresServer, start_server
from tests.support.process import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.postgres]
MB = 1_000_000
ROWS, BATCHES = 1500, 3
TABLES = "small"


@dataclass
class SmallServer:
    """A Postgres that has one of its files on a disk that may be filled."""

    folder: Path
    disk: Path
    binaries: Path
    user: str | None
    running: ExitStack
    url: str = ""

    def start(self) -> PostgresServer:
        return self.running.enter_context(start_server(self.folder, self.binaries, self.user, OPTIONS))

    def is_up(self) -> bool:
        asked = subprocess.run([self.binaries / "pg_isready", "-h", self.folder], capture_output=True, check=False)
        return asked.returncode == 0

    def has_room_again(self) -> None:
        """Where its log could not be written, it has ended, and its operator starts it."""
        if not self.is_up():
            self.start()


@contextmanager
def small_server(of: str) -> Iterator[SmallServer]:
    """With the database's tables on a small disk, or all that the server has, its log among them."""
    folder = Path(tempfile.mkdtemp(prefix="orch-pg-"))
    with ExitStack() as ended:
        ended.callback(shutil.rmtree, folder, ignore_errors=True)
        disk = folder / TABLES if of == "tables" else folder / "data"
        ended.enter_context(disk_of(60 * MB if of == "tables" else 140 * MB, disk))
        binaries, user = postgres.new_cluster(folder / "data")
        server = SmallServer(folder, disk, binaries, user, ended.enter_context(ExitStack()))
        if user is not None:
            account = pwd.getpwnam(user)
            os.chown(disk, account.pw_uid, account.pw_gid)
        if of == "log":
            as_user = [] if user is None else ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
            shorter: list[str | Path] = [binaries / "pg_resetwal", "--wal-segsize=1", "-D", folder / "data"]
            subprocess.run([*as_user, *shorter], check=True, capture_output=True)
        running = server.start()
        if of == "tables":
            (disk / "held").mkdir()
            if user is not None:
                os.chown(disk / "held", account.pw_uid, account.pw_gid)
            running.tell(f"CREATE TABLESPACE {TABLES} LOCATION '{disk / 'held'}'")
        running.tell(
            f"CREATE DATABASE orch TABLESPACE {TABLES if of == 'tables' else 'pg_default'} TEMPLATE template0"
        )
        server.url = f"postgresql+psycopg://postgres@/orch?host={folder}"
        Store.open(server.url).close()
        yield server


@pytest.mark.parametrize(("command", "when"), [("run", "build"), ("run", "collect"), ("up", "collect")])
@pytest.mark.thinned(6)
@pytest.mark.parametrize("of", ["tables", "log"])
def test_a_database_without_room_ends_a_command_and_loses_nothing(
    run_orch: Orch, tmp_path: Path, of: str, command: str, when: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(plain(ROWS)))
    with small_server(of) as server, Emulator(tmp_path / "provider", speed=600.0) as provider:
        provider.settings(turnaround_s=[3600, 3600], latency_ms=5)
        limits = {"max_rows": ROWS // BATCHES}
        write_toml(
            run_orch.home / CONFIG, {"openai": settings_of(provider, "openai", poll_seconds=0.2, limits=limits)}
        )
        env = {**provider.environment, "OPENAI_KEY": KEY, "ORCH_DATABASE_URL": server.url}
        if when == "build":
            with filled(server.disk, but=MB // 4):
                refused = run_orch("run", str(path), "-q", env=env)
            code, said = refused.returncode, refused.stderr
        else:
            assert run_orch("submit", str(path), "-q", env=env).returncode == 0
            process = run_orch.start(*(["run", str(path), "-q"] if command == "run" else ["up", "-q"]), env=env)
            wait_until(lambda: provider.calls("create").get(200, 0) == BATCHES or process.poll() is not None, 120.0)
            with filled(server.disk):
                code = process.wait(180.0)
            said = run_orch.output(process)
        told = [line for line in said.splitlines() if line.startswith(("orch: the database", "  hint: "))]
        assert (code, len(told), "Traceback" in said) == (4, 2, False), said
        if "No space left on device" in said:
            assert (
                told[1] == "  hint: free some space where the database is and run the command again; nothing is lost"
            )
        server.has_room_again()
        ended = run_orch("run", str(path), "-q", "--json", env=env)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["requests"]["succeeded"] == ROWS
        assert Counter(provider.bill(rows=True)["rows"].values()) == {1: ROWS}
        with Store.open(server.url) as store:
            assert sum(store.ledger.spent(job.id) for job in store.jobs.newest()) == cost_of(provider.bill())
