"""A process of our own that ends with the one that started it, however that ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Die with the parent, also where it is killed while a library in C is at work here. Ctrl-C is the parent's.

    On Linux the thread that started this process must live as long as the parent does: the kernel looks at that.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def command(module: str) -> list[str]:
    """How Python runs `main` of a module of ours, which finds this process's number as the last argument."""
    # No folder of the user's is searched for modules before our own.
    program = f"import sys; sys.path.append(sys.argv[1]); from {module} import main; main()"
    return [sys.executable, "-P", "-c", program, str(Path(__file__).parents[2]), str(os.getpid())]


def how_it_ended(code: int) -> str:
    """The exit status of a process (as `subprocess` gives it) in words."""
    return f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"
