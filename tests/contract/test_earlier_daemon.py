"""A process of an earlier version, which called itself the engine, and a daemon: only one of them owns a home."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from orchestrator.daemon.lock import Holder, daemon_lock, running_daemon
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.daemon_fence import DaemonFence, FencedOff
from tests.support.cli import Orch, write_config
from tests.support.process import wait_until

HOME = "0123456789ab"
EARLIER = """
import fcntl, json, os, sys
lock = open(sys.argv[1] + "/engine.lock", "a+b", buffering=0)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print(lock.seek(0) or lock.read().decode(), flush=True)
    sys.exit(2)
lock.truncate(0)
lock.write(json.dumps({"pid": os.getpid(), "command": "orch up"}).encode())
print("owns it", flush=True)
sys.stdin.read()
"""
"""What an earlier version did to own a home, by its names."""


@contextmanager
def earlier(home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An earlier version's process, and what it said of the home."""
    with subprocess.Popen(
        [sys.executable, "-c", EARLIER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.stdin.close()


@pytest.mark.slow
def test_a_daemon_does_not_begin_beside_an_earlier_version(run_orch: Orch, orch_home: Path) -> None:
    write_config(orch_home, ["http://127.0.0.1:9/v1"])
    with earlier(orch_home) as (process, said):
        assert said == "owns it"
        assert running_daemon(Home(orch_home)) == Holder(process.pid, "orch up")
        with daemon_lock(Home(orch_home)) as holder:
            assert holder == Holder(process.pid, "orch up")
        refused = run_orch("up")
        assert refused.returncode == 2
        assert f"`orch up` (process {process.pid}) is already this home's daemon" in refused.stderr
    with daemon_lock(Home(orch_home)) as holder:
        assert holder is None, "it has ended"


@pytest.mark.slow
def test_an_earlier_version_does_not_begin_beside_a_daemon(run_orch: Orch, orch_home: Path) -> None:
    write_config(orch_home, ["http://127.0.0.1:9/v1"])
    daemon = run_orch.start("up")
    wait_until(lambda: "is up" in run_orch.output(daemon))
    with earlier(orch_home) as (process, said):
        assert json.loads(said) == {"pid": daemon.pid, "command": "orch up"}
        assert process.wait(60) == 2


def test_both_write_their_generation_to_one_row(store_url: str) -> None:
    engine, row = create_engine(store_url), {"home": HOME}
    with engine.begin() as tx:
        tx.execute(text("INSERT INTO engine_fences (home, replica, generation) VALUES (:home, 'r1', 3)"), row)
    with pytest.raises(FencedOff, match="generation 3"):
        Store.open(store_url, fence=DaemonFence(HOME, "r1", 2))
    Store.open(store_url, fence=DaemonFence(HOME, "r1", 4)).close()
    with engine.connect() as tx:
        assert tx.execute(text("SELECT home, replica, generation FROM engine_fences")).all() == [(HOME, "r1", 4)]
    engine.dispose()


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_each_ends_the_connections_of_the_other(store_url: str) -> None:
    """They find each other by the name of their connections."""
    engine = create_engine(store_url)
    named = text("SELECT application_name FROM pg_stat_activity WHERE application_name LIKE :name")
    store = Store.open(store_url, fence=DaemonFence(HOME, "r1", 1))
    with store, store._database.write(), engine.connect() as tx:
        assert set(tx.execute(named, {"name": "orch %"}).scalars()) == {f"orch engine {HOME} 1"}
    earlier = create_engine(store_url, connect_args={"application_name": f"orch engine {HOME} 1"})
    paused = earlier.connect()
    paused.execute(text("SELECT 1 FROM engine_fences FOR SHARE"))
    Store.open(store_url, fence=DaemonFence(HOME, "r1", 2)).close()
    with engine.connect() as tx:
        assert not tx.execute(named, {"name": f"orch engine {HOME} 1"}).all()
    paused.invalidate()
    earlier.dispose()
    engine.dispose()


def test_whoever_asks_for_the_daemon_keeps_none_out(orch_home: Path) -> None:
    """Open pages ask several times a second, and a daemon may start at such a moment."""
    home = Home(orch_home)
    with daemon_lock(home):
        assert running_daemon(home) is not None

    def begin() -> Holder | None:
        with daemon_lock(home) as holder:
            return holder

    with ThreadPoolExecutor(1) as pool:
        with home.lock.open("rb") as asking:
            fcntl.flock(asking, fcntl.LOCK_SH)
            begun = pool.submit(begin)
            assert wait([begun], timeout=0.5).not_done, "it waits for the reader"
        assert begun.result() is None
