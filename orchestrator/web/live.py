"""Open pages that stay current: a server-sent event carries a page's content whenever it changes.

A page is rendered once for all its viewers. It is kept for a multiple of its rendering time, so that pages of large
jobs take a small share of a processor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from msgspec import Struct, field

TICK_SECONDS = 0.25
HEARTBEAT_SECONDS = 2.0
"""Maximum seconds between events. A browser that waits more than twice as long shows this on its page."""
SHORTEST_SECONDS, USUAL_SECONDS = 1.25, 1.5
SPARING, BUSY = 12.0, 4.0
"""Multiples of its rendering time to keep a page: SPARING up to USUAL_SECONDS, or BUSY if that is longer."""

Make = Callable[[], Awaitable[str]]


class _Shared(Struct):
    text: str = ""
    pulse: object = None
    holds_until: float = 0.0
    viewers: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class LivePages:
    """The open pages. `pulse` is called at every tick; if its value changes, all pages are rendered anew."""

    def __init__(self, pulse: Callable[[], object]) -> None:
        self._pulse = pulse
        self._felt: object = None
        self._felt_at = 0.0
        self._pages: dict[str, _Shared] = {}

    @property
    def viewers(self) -> int:
        return sum(page.viewers for page in self._pages.values())

    def _felt_now(self) -> object:
        """Return the pulse, read once a tick for all open pages."""
        if time.monotonic() - self._felt_at >= TICK_SECONDS / 2:
            self._felt, self._felt_at = self._pulse(), time.monotonic()
        return self._felt

    async def events(self, key: str, make: Make, may_see: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yield a page's events: `page` with the content at first and at each change, `alive` in between.

        While a slow page is rendered, `alive` events keep the browser from requesting it again. The events end once
        `may_see` returns False, because the viewer's key was revoked.
        """
        page = self._pages.setdefault(key, _Shared())
        page.viewers += 1
        sent, heard, looked = "", 0.0, time.monotonic()
        try:
            yield b"retry: 1000\n\n"
            while True:
                making = asyncio.ensure_future(_current(page, make, self._felt_now()))
                try:
                    while not (await asyncio.wait({making}, timeout=HEARTBEAT_SECONDS))[0]:
                        heard = time.monotonic()
                        yield _event("alive", "")
                    text = making.result()
                finally:
                    making.cancel()
                now = time.monotonic()
                if now - looked >= HEARTBEAT_SECONDS:
                    looked = now
                    if not may_see():
                        return
                if text != sent:
                    sent, heard = text, now
                    yield _event("page", text)
                elif now - heard >= HEARTBEAT_SECONDS:
                    heard = now
                    yield _event("alive", "")
                await asyncio.sleep(TICK_SECONDS)  # polls: other processes write the database too and cannot wake us
        finally:
            page.viewers -= 1
            if not page.viewers:
                self._pages.pop(key, None)


async def _current(page: _Shared, make: Make, pulse: object) -> str:
    if time.monotonic() < page.holds_until and page.pulse == pulse:
        return page.text
    async with page.lock:
        began = time.monotonic()
        if began >= page.holds_until or page.pulse != pulse:
            page.pulse, page.text = pulse, await make()
            took = time.monotonic() - began
            page.holds_until = began + max(SHORTEST_SECONDS, min(SPARING * took, USUAL_SECONDS), BUSY * took)
    return page.text


def _event(name: str, text: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in text.split("\n"))
    return f"event: {name}\n{lines}\n".encode("utf-8", "replace")
