"""Child processes that end when their parent orch process ends, even if the parent is killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Make this process die with its parent. On Linux, this works even while a C library runs here.

    If the parent has already ended, the process ends now. It ignores Ctrl-C (SIGINT) and a closed terminal (SIGHUP),
    which the parent handles.

    On Linux, the thread that started this process must live as long as the parent: the kernel watches that thread.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def command(module: str) -> list[str]:
    """Return the command that runs `main` of orch's `module`, with this process's id as the last argument."""
    # With `-P`, none of the user's folders comes before our own modules.
    program = f"import sys; sys.path.append(sys.argv[1]); from {module} import main; main()"
    return [sys.executable, "-P", "-c", program, str(Path(__file__).parents[2]), str(os.getpid())]


def how_it_ended(code: int) -> str:
    """Describe the exit status of a process (as in `subprocess`)."""
    return f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"
