"""Requests to stop this process, for long work far below the loop that a signal stops.

A signal handler that lets work continue for a while (`cli.running.interruptible`) sets the request here. Work that
may be cut off anywhere, such as reading documents, checks it and ends immediately.
"""

from __future__ import annotations

_asked = False


class Interrupted(KeyboardInterrupt):
    """The process was asked to stop; current work is cut off and starts over another time."""


def ask(*, to_end: bool) -> None:
    """Record that the process is asked to stop, or that the request is withdrawn."""
    global _asked  # a signal concerns the whole process
    _asked = to_end


def check() -> None:
    """Raise Interrupted if the process was asked to stop."""
    if _asked:
        raise Interrupted
