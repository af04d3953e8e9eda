"""What open pages cost, and how soon they tell: of a job of 100,000 rows, in a real browser.

`paint` is the browser's own first contentful paint, of each page opened anew. `tells` is how long a page takes to
show that a row ended, that the daemon was killed, and that it is back, by the clock of who waits for it. `slow` is
the CPU of a daemon process for one batch with ten open pages and with none, in interleaved rounds: the machine's
clock says nothing while others work on it; beside it, the CPU of the process that serves them. `memory` is the
resident memory of a daemon with ten open pages, and of the process that serves them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp

from benchmarks.databases import SETTINGS
from benchmarks.serving import Constant, Unavailable, note, say, write_rows
from orchestrator.store import Store
from tests.support.chromium import Chromium, Tab, installed
from tests.support.webhome import BIG, WebHome, pages_of, web_home

STREAMS, ROUNDS, ROWS, TIMES = 10, 4, 40_000, 10
SETTLED_SECONDS = 120.0
"""Behind these, a process that serves pages has loaded what it needs."""
SAMPLE_SECONDS = 5.0
PATIENCE = 60.0
ORCH = (sys.executable, "-m", "orchestrator.cli")
DAEMON = "document.querySelector('#daemon')?.innerText.trim()"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"


def main(argv: Sequence[str] = ()) -> None:
    """Measure the parts that are chosen, all of them otherwise."""
    parts = {"paint": _paint, "tells": _tells, "slow": _slow, "memory": _memory}
    parser = argparse.ArgumentParser(prog="benchmarks pages", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=parts, default=[*parts])
    parser.add_argument("--minutes", type=float, default=8.0, help="how long `memory` looks")
    chosen = parser.parse_args(argv)
    for name in chosen.parts:
        with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
            parts[name](Path(folder), chosen.minutes)


def _paint(place: Path, minutes: float) -> None:
    home = _home(place)
    pages = ["/", f"/jobs/{home.big.id}", f"/jobs/{home.big.id}/rows", f"/jobs/{home.big.id}/rows?q=scan-99999"]
    with serving("view", "127.0.0.1:0") as (_, link), _browser(place) as browser:
        tab = _entered(browser, link)
        for page in pages:
            found = []
            for _ in range(5):
                tab.open(site_of(link) + page)
                tab.until(f"({PAINT}) > 0")
                found.append(float(tab.js(PAINT)))
            say(f"pages first paint of {page.partition('?')[0]}: {statistics.median(found):.0f} ms")


def _tells(place: Path, minutes: float) -> None:
    home = _home(place)
    with serving("view", "127.0.0.1:0") as (_, link), _browser(place) as browser:
        _say_times("a row that ends shows after", _rows_that_end(home, _entered(browser, link), site_of(link)))
    _home(place / "small", 1000)
    with serving("up", "-q", "--web", "127.0.0.1:0") as (daemon, link), _browser(place / "small") as browser:
        tab, address = _entered(browser, link), site_of(link).partition("//")[2]
        tab.until(f"{DAEMON} === 'daemon up'", PATIENCE)
        downs, backs = [_shows(tab, "daemon down", daemon.kill)], []
        daemon.wait()
        for _ in range(TIMES // 2):
            with serving("up", "-q", "--web", address) as (daemon, _):
                backs.append(_shows(tab, "daemon up", lambda: None))
                downs.append(_shows(tab, "daemon down", daemon.kill))
    _say_times("`kill -9` of the daemon shows in its own page after", downs)
    _say_times("that it serves again shows, without a reload, after", backs)


def _shows(tab: Tab, what: str, act: Callable[[], None]) -> float:
    """Seconds from an act to the page that tells of the daemon that it is so."""
    act()
    return tab.until(f"{DAEMON} === '{what}'", PATIENCE)


def _rows_that_end(home: WebHome, tab: Tab, site: str) -> list[float]:
    """Seconds from the commit of a row's end to the page that shows it, of a page that stays open."""
    took = []
    tab.open(f"{site}/jobs/{home.running.id}")
    tab.until("document.querySelector('[data-at=\"requests.done\"]') !== null")
    with Store.open(home.url) as store:
        for _ in range(TIMES):
            [shard] = store.shards.of_job(home.running.id)
            done = shard.provider_completed + 1
            store.shards.note(shard, provider_completed=done)
            began = time.monotonic()
            wanted = done + shard.provider_failed
            tab.until(f"document.querySelector('[data-at=\"requests.done\"]').value === '{wanted}'", 30)
            took.append(time.monotonic() - began)
    return took


def _say_times(what: str, seconds: list[float]) -> None:
    say(f"pages {what} {statistics.median(seconds):.2f} s, {max(seconds):.2f} s at most, {len(seconds)} times")


def _slow(place: Path, minutes: float) -> None:
    """CPU of a daemon for a batch; the pages' own code is loaded before, as it is once in a night."""
    used: dict[int, list[Cost]] = {0: [], STREAMS: []}
    for number in range(ROUNDS):
        for streams, found in used.items():
            found.append(cost := _batch(place / f"{number}-{streams}", streams))
            took = f"{cost.daemon:.2f} s of CPU, {cost.pages:.2f} s of the pages' process, in {cost.seconds:.1f} s"
            note(f"{ROWS:,} rows with {streams} open pages: {took}")
    alone, watched = (statistics.median(cost.daemon for cost in used[streams]) for streams in (0, STREAMS))
    pages = statistics.median(cost.pages / cost.seconds for cost in used[STREAMS])
    say(
        f"pages {ROWS:,} rows in a daemon with no page open: {alone:.2f} s of CPU, "
        f"with {STREAMS}: {watched:.2f} s, {watched / alone - 1:+.1%}"
    )
    say(f"pages the process of {STREAMS} open pages takes {pages:.1%} of a core while it works")


class Cost(NamedTuple):
    """CPU seconds of a daemon and of its pages for a batch, and the seconds that it took."""

    daemon: float
    pages: float
    seconds: float


def _batch(place: Path, streams: int) -> Cost:
    """What a batch costs."""
    place.mkdir()
    with Constant() as upstream:
        os.environ.update(ORCH_HOME=str(place / "home"), ORCH_CONFIG=str(place / "orch.toml"))
        (place / "orch.toml").write_text(SETTINGS.format(url=upstream.url), encoding="utf-8")
        write_rows(place / "rows.jsonl", ROWS)
        with serving("up", "-q", "--web", "127.0.0.1:0") as (process, link):
            return asyncio.run(_watched_batch(process, link, place / "rows.jsonl", streams))


async def _watched_batch(process: subprocess.Popen[str], link: str, rows: Path, streams: int) -> Cost:
    async with visitor(link) as watcher:
        async with _open(watcher, site_of(link), "/", 1):
            await asyncio.sleep(2)
        async with _open(watcher, site_of(link), "/", streams):
            [pages] = pages_of(process.pid)
            daemon_before, pages_before, began = _cpu(process.pid), _cpu(pages), time.monotonic()
            command = [*ORCH, "submit", str(rows), "--wait", "-q"]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            submit = await asyncio.create_subprocess_exec(*command, **quiet)
            assert await submit.wait() == 0
            return Cost(_cpu(process.pid) - daemon_before, _cpu(pages) - pages_before, time.monotonic() - began)


def _memory(place: Path, minutes: float) -> None:
    """Ten pages of a home with a large job, held open by its daemon; another daemon of such a home has none open."""
    homes = [_home(place / name) for name in ("watched", "alone")]
    with ExitStack() as stack:
        daemons = []
        for home in homes:
            os.environ.update(ORCH_HOME=str(home.root), ORCH_CONFIG=str(home.root / "orch.toml"))
            daemons.append(stack.enter_context(serving("up", "-q", "--web", "127.0.0.1:0")))
        [(watched, link), (alone, _)] = daemons
        processes = [watched.pid, *pages_of(watched.pid), alone.pid]
        seen = asyncio.run(_watched(processes, link, homes[0], minutes * 60))
    names = (f"a daemon with {STREAMS} open pages", "the process of these", "a daemon with none")
    for name, samples in zip(names, seen, strict=True):
        later = samples[len(samples) // 2 :]
        slopes = [statistics.linear_regression(*zip(*part, strict=True)).slope * 3600 for part in (samples, later)]
        say(
            f"pages memory of {name}, {minutes:.0f} minutes: {samples[-1][1]:.0f} MB, "
            f"{slopes[0]:+.1f} MB an hour, {slopes[1]:+.1f} in the second half"
        )


async def _watched(
    processes: Sequence[int], link: str, home: WebHome, seconds: float
) -> list[list[tuple[float, float]]]:
    """Seconds and resident MB of processes while ten pages of the first are open."""
    site, half = site_of(link), STREAMS // 2
    async with (
        visitor(link) as watcher,
        _open(watcher, site, f"/jobs/{home.big.id}", half),
        _open(watcher, site, "/", STREAMS - half - 1),
        _open(watcher, site, "/money", 1),
    ):
        await asyncio.sleep(SETTLED_SECONDS)
        began = time.monotonic()
        found: list[list[tuple[float, float]]] = [[] for _ in processes]
        while (gone := time.monotonic() - began) < seconds:
            for process, samples in zip(processes, found, strict=True):
                samples.append((gone, _resident(process)))
            await asyncio.sleep(SAMPLE_SECONDS)
        return found


# --- what the parts share


def _home(place: Path, rows: int = BIG) -> WebHome:
    place.mkdir(exist_ok=True)
    os.environ.update(ORCH_HOME=str(place), ORCH_CONFIG=str(place / "orch.toml"))
    return web_home(place, rows)


def site_of(link: str) -> str:
    return link.partition("/enter")[0]


@contextmanager
def serving(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen([*ORCH, *command], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = (re.search(r"http://\S+", line) for line in process.stderr)
            yield process, next(found[0] for found in told if found is not None)
        finally:
            process.terminate()


@contextmanager
def _browser(place: Path) -> Iterator[Chromium]:
    if (command := installed()) is None:
        raise Unavailable("no browser is installed")
    browser = Chromium(command, place / "profile")
    try:
        yield browser
    finally:
        browser.close()


def _entered(browser: Chromium, link: str) -> Tab:
    tab = browser.new_page()
    tab.open(link)
    tab.until("location.pathname === '/'")
    return tab


@asynccontextmanager
async def visitor(link: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Somebody who came by the link, which works once."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        async with session.get(link) as answer:
            assert answer.status == 200
        yield session


@asynccontextmanager
async def _open(visitor: aiohttp.ClientSession, site: str, page: str, streams: int) -> AsyncIterator[None]:
    """A page open so many times; what comes is read."""

    async def read() -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with visitor.get(f"{site}/live", params={"page": page}, timeout=timeout) as answer:
            async for _ in answer.content.iter_any():
                pass

    readers = [asyncio.create_task(read()) for _ in range(streams)]
    try:
        yield
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    """In MB (2**20 bytes)."""
    [line] = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
