"""A process that ends with the one that started it, however that ends."""

from __future__ import annotations

import os
import signal
import sys

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
