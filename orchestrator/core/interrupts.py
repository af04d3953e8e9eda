"""Whether this process was asked to end: for work that takes long, far below the loop that a signal stops.

Who catches signals and goes on for a while (`cli.running.interruptible`) says so here; what may be cut off anywhere,
such as the reading of documents, looks here and ends at once.
"""

from __future__ import annotations

_asked = False


class Interrupted(KeyboardInterrupt):
    """The process was asked to end; what was under way is cut off, and is begun anew another time."""


def ask(*, to_end: bool) -> None:
    """Say that the process is asked to end, or that it no longer is."""
    global _asked  # a signal is the whole process's
    _asked = to_end


def check() -> None:
    """Raises Interrupted where the process was asked to end."""
    if _asked:
        raise Interrupted
