"""This machine as a node of a Ray cluster. The user starts and ends the node; it runs without any orch process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.ray.process import require_ray
from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.launch import for_engines
from orchestrator.server.engines.process import log_tail

RECORD = "ray-node.json"
LOG = "ray-node.log"
START_SECONDS = 180.0
END_SECONDS = 60.0
LOOK_SECONDS = 0.2
STARTED = "Ray runtime started"
"""Text that `ray start --block` prints once Ray's processes run. The command then stays in the foreground."""


class RayNode(Struct, frozen=True):
    """A node started here: its process, that process's start time (in kernel ticks), and the joined cluster."""

    pid: int
    began: int
    joined: str | None

    @property
    def runs(self) -> bool:
        """True if the node's process still runs. A later process that reuses its id does not count."""
        return _began(self.pid) == self.began


def node_of(folder: Path) -> RayNode | None:
    """Return the node that was started from a folder; None if it no longer runs."""
    try:
        node = json_decoder(RayNode).decode((folder / RECORD).read_bytes())
    except (OSError, *JSON_ERRORS):
        return None
    return node if node.runs else None


def start_node(
    folder: Path, python: Path, join: str | None, options: Sequence[str], environ: Mapping[str, str]
) -> RayNode:
    """Start a head, or a node that joins the cluster at `join`. `options` are those of `ray start`.

    Returns once the node runs. Raises UsageError if a node already runs, EngineUnavailable if the node does not
    start.
    """
    if (node := node_of(folder)) is not None:
        raise UsageError(f"this machine is already a node (process {node.pid})", hint="orch cluster down")
    require_ray(python, environ)
    where = ("--head",) if join is None else ("--address", join)
    log = folder / LOG
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with log.open("ab") as out:
            begin = out.tell()
            process = subprocess.Popen(
                [python, "-m", "ray.scripts.scripts", "start", *where, "--block", *options],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=for_engines(environ), cwd="/",
                start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise EngineUnavailable(f"the Ray node cannot be started: {error}", hint=None) from error
    _wait_for_start(process, log, begin)
    node = RayNode(process.pid, _began(process.pid) or 0, join)
    try:
        (folder / RECORD).write_bytes(msgspec.json.encode(node))
    except OSError as error:
        process.terminate()
        raise StorageError(f"{folder} cannot be written: {error.strerror}") from error
    return node


def _wait_for_start(process: subprocess.Popen[bytes], log: Path, begin: int) -> None:
    until = time.monotonic() + START_SECONDS
    while STARTED not in log.read_bytes()[begin:].decode(errors="replace"):
        if process.poll() is not None:
            raise EngineUnavailable(
                f"the Ray node ended with code {process.returncode}; the end of its log:\n{log_tail(log, begin)}",
                hint=f"all of it is in {log}",
            )
        if time.monotonic() > until:
            process.terminate()
            raise EngineUnavailable(f"the Ray node was not up after {START_SECONDS:.0f} s", hint=f"see {log}")
        time.sleep(LOOK_SECONDS)


def end_node(folder: Path) -> bool:
    """End the node that was started from a folder, with all its processes. Return False if no such node runs."""
    node = node_of(folder)
    if node is not None:
        os.kill(node.pid, signal.SIGTERM)
        until = time.monotonic() + END_SECONDS
        while node.runs and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        if node.runs:
            os.killpg(node.pid, signal.SIGKILL)
    (folder / RECORD).unlink(missing_ok=True)
    return node is not None


def _began(pid: int) -> int | None:
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state == "Z" else int(rest[18])
