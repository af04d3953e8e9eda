"""How soon a browser paints the pages of a job of 100,000 rows, and what ten open pages cost an engine at work.

The first is the browser's own first contentful paint, of each page opened anew. The second is the CPU of the process
that serves ten streams of pages for ten seconds, and the wall time of a batch in an engine that serves ten streams
itself against one that serves none, in interleaved rounds.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from benchmarks.databases import SETTINGS
from benchmarks.serving import Constant, Unavailable, say, write_rows
from tests.support.chromium import Chromium, installed
from tests.support.webhome import web_home

STREAMS, SECONDS, ROUNDS, ROWS = 10, 10.0, 3, 20_000
ORCH = (sys.executable, "-m", "orchestrator.cli")


def main() -> None:
    """Print the paints, the CPU of ten pages, and what they take from an engine."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
        place = Path(folder)
        os.environ.update(ORCH_HOME=str(place), ORCH_CONFIG=str(place / "orch.toml"))
        home = web_home(place)
        pages = ["/", f"/jobs/{home.big.id}", f"/jobs/{home.big.id}/rows", f"/jobs/{home.big.id}/rows?q=scan-99999"]
        with _serving("view", "127.0.0.1:0") as (_, link):
            _paints(place, link, pages)
        with _serving("view", "127.0.0.1:0") as (process, link):
            used, seconds = asyncio.run(_streamed(link, process, f"/jobs/{home.big.id}"))
            say(f"pages {STREAMS} open on a running job of 100,000 rows: {used / seconds:.1%} of a core")
    took: dict[int, list[float]] = {0: [], STREAMS: []}
    for _ in range(ROUNDS):
        for streams in took:
            took[streams].append(_batch(streams))
    alone, watched = (statistics.median(took[streams]) for streams in (0, STREAMS))
    say(f"pages {ROWS:,} rows in an engine with no page open: {alone:.2f} s, with {STREAMS}: {watched:.2f} s")
    say(f"pages {STREAMS} open pages slow the engine by {watched / alone - 1:+.1%}")


def _paints(place: Path, link: str, pages: list[str]) -> None:
    command = installed()
    if command is None:
        raise Unavailable("no browser is installed")
    browser = Chromium(command, place / "profile")
    try:
        tab = browser.new_page()
        tab.open(link)
        tab.until("location.pathname === '/'")
        paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
        for page in pages:
            found = []
            for _ in range(5):
                tab.open(link.partition("/enter")[0] + page)
                tab.until(f"({paint}) > 0")
                found.append(float(tab.js(paint)))
            say(f"pages first paint of {page.partition('?')[0]}: {statistics.median(found):.0f} ms")
    finally:
        browser.close()


@contextmanager
def _serving(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen([*ORCH, *command], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = (re.search(r"http://\S+", line) for line in process.stderr)
            yield process, next(found[0] for found in told if found is not None)
        finally:
            process.terminate()


async def _streamed(link: str, process: subprocess.Popen[str], page: str) -> tuple[float, float]:
    """CPU and wall seconds of a process while ten pages are open."""
    async with _open_pages(link, page, STREAMS):
        before, began = _cpu(process.pid), time.monotonic()
        await asyncio.sleep(SECONDS)
        return _cpu(process.pid) - before, time.monotonic() - began


class _open_pages:  # noqa: N801  (used like a function)
    """So many streams of a page, read as they come."""

    def __init__(self, link: str, page: str, streams: int) -> None:
        self._link, self._page, self._streams = link, page, streams

    async def __aenter__(self) -> None:
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
        async with self._session.get(self._link) as answer:
            assert answer.status == 200
        url = f"{self._link.partition('/enter')[0]}/live"
        self._readers = [asyncio.create_task(self._read(url)) for _ in range(self._streams)]
        await asyncio.sleep(1)

    async def __aexit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await self._session.close()

    async def _read(self, url: str) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(url, params={"page": self._page}, timeout=timeout) as answer:
            async for _ in answer.content.iter_any():
                pass


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _batch(streams: int) -> float:
    """Seconds from submitting a batch to its end, in an engine whose pages are open so many times."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder, Constant() as upstream:
        place = Path(folder)
        os.environ.update(ORCH_HOME=str(place / "home"), ORCH_CONFIG=str(place / "orch.toml"))
        (place / "orch.toml").write_text(SETTINGS.format(url=upstream.url), encoding="utf-8")
        write_rows(place / "rows.jsonl", ROWS)
        with _serving("up", "-q", "--web", "127.0.0.1:0") as (_, link):
            return asyncio.run(_run(link, place / "rows.jsonl", streams))


async def _run(link: str, rows: Path, streams: int) -> float:
    async with _open_pages(link, "/", streams):
        began = time.monotonic()
        command = [*ORCH, "submit", str(rows), "--wait", "-q"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert await process.wait() == 0
        return time.monotonic() - began
