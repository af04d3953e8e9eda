"""Wakes the dispatcher once the rates of an upstream allow its next row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from orchestrator.server.dispatch.upstreams import Upstream

TICK = 0.001
"""Seconds added to each timer. uvloop's timers are exact only to a millisecond. A timer that fires early would be set
again and again.
"""


class _Alarm(NamedTuple):
    """A timer and its due time, which uvloop's handles do not always know."""

    when: float
    handle: asyncio.Handle


class RateAlarms:
    """One timer for each upstream whose rates allow no row now. `wake` is called when a timer fires."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._alarms: dict[Upstream, _Alarm] = {}

    def may_ask(self, upstream: Upstream) -> bool:
        """True if an upstream's rates allow one more row. Otherwise, set a timer that fires as soon as they do."""
        wait = upstream.wait()
        if wait <= 0:
            return True
        loop, alarm = asyncio.get_running_loop(), self._alarms.get(upstream)
        when = loop.time() + wait + TICK
        # A row that took fewer tokens than expected lets the next row go earlier.
        if alarm is None or alarm.when > when + TICK:
            self.drop(upstream)
            self._alarms[upstream] = _Alarm(when, loop.call_later(wait + TICK, self._ring, upstream))
        return False

    def drop(self, upstream: Upstream) -> None:
        """Cancel an upstream's timer, if it has one."""
        if (alarm := self._alarms.pop(upstream, None)) is not None:
            alarm.handle.cancel()

    def _ring(self, upstream: Upstream) -> None:
        del self._alarms[upstream]
        self._wake()
