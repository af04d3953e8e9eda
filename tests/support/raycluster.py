"""A Ray cluster of several nodes on this machine, from an environment of its own (`make ray`).

`cluster(nodes)` runs a head without CPUs and that many nodes with one CPU each; `kill` is SIGKILL of a node's raylet.
Where Ray is not installed, tests that need it skip and say so.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.process import wait_until

RAY = Path(__file__).resolve().parents[2] / ".ray" / "bin"
PYTHON = RAY / "python"
needs_ray = pytest.mark.skipif(not PYTHON.exists(), reason="Ray is not installed: make ray")
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
MEMORY = ("--object-store-memory", "80000000", "--memory", "500000000")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Cluster:
    """A head and nodes; `address` is what drivers connect to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start(
            "--head", "--port", str(port), "--include-dashboard=false", "--num-cpus", "0", "--temp-dir", str(folder)
        )

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        with (self._folder / "nodes.log").open("ab") as log:
            process = subprocess.Popen(
                [RAY / "ray", "start", "--block", "--node-ip-address", "127.0.0.1", *MEMORY, *options],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **QUIET}, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        # One after the other: each takes seconds of a core.
        wait_until(lambda: self._started() == len(self._processes), 120)
        return process

    def _started(self) -> int:
        return (self._folder / "nodes.log").read_text(errors="replace").count("Ray runtime started")

    def add_node(self, cpus: int = 1) -> subprocess.Popen[bytes]:
        """One more node with so many CPUs."""
        return self._start("--address", self.address, "--num-cpus", str(cpus))

    def kill_node(self, node: subprocess.Popen[bytes]) -> None:
        """SIGKILL of a node's raylet, and nothing else."""
        raylet = next(pid for pid in below(node.pid) if "/raylet/raylet" in command_of(pid))
        os.kill(raylet, signal.SIGKILL)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def cluster(nodes: int, cpus: int = 1) -> Iterator[tuple[Cluster, list[subprocess.Popen[bytes]]]]:
    """A cluster with so many nodes; all of it ends with the block."""
    # Sockets of Ray have names that must not be long.
    with tempfile.TemporaryDirectory(prefix="orch-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        found = Cluster(Path(folder))
        try:
            yield found, [found.add_node(cpus) for _ in range(nodes)]
        finally:
            found.close()


def command_of(pid: int) -> str:
    """The command line of a process, empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def below(pid: int) -> list[int]:
    """The processes below one, the nearest first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            children.setdefault(int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]), []).append(
                int(stat.parent.name)
            )
        except (OSError, IndexError, ValueError):
            continue
    found, at = [pid], 0
    while at < len(found):
        found += children.get(found[at], [])
        at += 1
    return found[1:]
