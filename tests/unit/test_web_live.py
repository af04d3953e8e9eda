"""Pages that stay current while they are open."""

from __future__ import annotations

import asyncio

from orchestrator.web.live import LivePages

ALIVE = b"event: alive\ndata: \n\n"


def test_a_page_that_is_slow_to_make_is_alive_and_made_once() -> None:
    """A browser takes silence for a server that is gone, and asks again: it would never see the page."""

    async def watched() -> list[bytes]:
        made, times = asyncio.Event(), 0

        async def make() -> str:
            nonlocal times
            times += 1
            await made.wait()
            return f"made {times}"

        heard = []
        async for event in LivePages(lambda: None).events("/", make, lambda: True):
            heard.append(event)
            if event == ALIVE:
                made.set()
            if event.startswith(b"event: page"):
                break
        return heard

    heard = asyncio.run(asyncio.wait_for(watched(), 60))
    assert heard == [b"retry: 1000\n\n", ALIVE, b"event: page\ndata: made 1\n\n"]
