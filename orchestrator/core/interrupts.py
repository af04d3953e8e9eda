"""Stop requests for this process, for long work far below the loop that handles signals.

A signal handler that lets work continue for a while (`cli.running.interruptible`) records the request here. Work that
can safely be cut off, such as reading documents, checks for the request and ends immediately.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask for a stop. A terminal that closes sends SIGHUP, perhaps more than once."""
_asked = False


class Interrupted(KeyboardInterrupt):
    """The process was asked to stop. The current work is cut off and starts over later."""


def ask(*, to_end: bool) -> None:
    """Record a request to stop the process, or withdraw it if `to_end` is false."""
    global _asked  # a signal concerns the whole process
    _asked = to_end


def check() -> None:
    """Raise Interrupted if the process was asked to stop."""
    if _asked:
        raise Interrupted


@contextmanager
def handled(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Install `handler` for the signals in STOPS inside the block. An ignored SIGHUP (`nohup`) stays ignored.

    Main thread only.
    """
    wanted = [one for one in STOPS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
    before: dict[int, Any] = {one: signal.signal(one, handler) for one in wanted}
    try:
        yield
    finally:
        for one, former in before.items():
            signal.signal(one, former)
