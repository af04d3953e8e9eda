"""Runs one command so that none of its processes outlives the starter. Run by path, standard library only, Linux.

    python leash.py STARTER_PID GRACE_SECONDS -- COMMAND...

An engine is several processes. If the first is killed, the others stay and keep their memory (seen with vLLM 0.32).
PR_SET_PDEATHSIG reaches only the first. So this process runs between starter and engine. It adopts every orphan
(PR_SET_CHILD_SUBREAPER) and watches its own parent. At the end, it sends SIGTERM to the command. GRACE_SECONDS later,
it sends SIGKILL to all remaining processes. It exits with the command's exit code (128 + n for signal n).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
LOOK_EVERY_S = 0.5


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def start(command: list[str]) -> subprocess.Popen[bytes]:
    def before_exec() -> None:
        # If the leash itself is killed, at least the command's first process gets SIGTERM.
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)

    return subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=before_exec)


def reap(child: subprocess.Popen[bytes]) -> None:
    """Reap every ended process, including adopted processes. Store the command's own exit code in
    `child.returncode`.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)


def watch(child: subprocess.Popen[bytes], starter: int) -> None:
    """Wait until the command has ended, the starter is gone, or a signal asks this process to stop."""
    while child.returncode is None and os.getppid() == starter:
        got = signal.sigtimedwait(WATCHED, LOOK_EVERY_S)
        if got is not None and got.si_signo != signal.SIGCHLD:
            return
        reap(child)


def stop(child: subprocess.Popen[bytes], grace: float) -> None:
    deadline = time.monotonic() + grace
    if child.returncode is None:
        os.kill(child.pid, signal.SIGTERM)
    while child.returncode is None and (left := deadline - time.monotonic()) > 0:
        signal.sigtimedwait({signal.SIGCHLD}, min(left, LOOK_EVERY_S))
        reap(child)


def parents() -> Iterator[tuple[int, int]]:
    """Yield the id of each process and of its parent, read from /proc."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may contain spaces and brackets itself. State and parent follow the last bracket.
            yield int(stat.parent.name), int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # the process ended during the scan


def children() -> list[int]:
    """Return the ids of this process's children, including orphans of a killed child."""
    return [pid for pid, parent in parents() if parent == os.getpid()]


def kill_what_is_left(child: subprocess.Popen[bytes]) -> None:
    # In rounds: killing a parent makes its children ours.
    while below := children():
        for pid in below:
            os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, LOOK_EVERY_S)
        reap(child)


def main(arguments: list[str]) -> int:
    starter, grace, command = int(arguments[0]), float(arguments[1]), arguments[3:]
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = start(command)
    watch(child, starter)
    stop(child, grace)
    kill_what_is_left(child)
    code = child.returncode or 0
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
