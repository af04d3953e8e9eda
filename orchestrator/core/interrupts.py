"""Requests to stop this process, for long work far below the loop that a signal stops.

A signal handler that lets work continue for a while (`cli.running.interruptible`) sets the request here. Work that
may be cut off anywhere, such as reading documents, checks it and ends immediately.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask for a stop. A terminal sends the last one when it is closed, perhaps more than once."""
_asked = False


class Interrupted(KeyboardInterrupt):
    """The process was asked to stop; current work is cut off and starts over later."""


def ask(*, to_end: bool) -> None:
    """Record that the process is asked to stop, or that the request is withdrawn."""
    global _asked  # a signal concerns the whole process
    _asked = to_end


def check() -> None:
    """Raise Interrupted if the process was asked to stop."""
    if _asked:
        raise Interrupted


@contextmanager
def handled(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Handle signals that ask for a stop while the block lasts, except SIGHUP under `nohup`; main thread only."""
    wanted = [one for one in STOPS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
    before: dict[int, Any] = {one: signal.signal(one, handler) for one in wanted}
    try:
        yield
    finally:
        for one, former in before.items():
            signal.signal(one, former)
