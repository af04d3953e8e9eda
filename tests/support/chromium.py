"""A real Chromium, driven over its debugging protocol: one process, pages of their own."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
NO_BROWSER = f"no browser is installed ({', '.join(BROWSERS)}; apt-get install chromium): nobody looks at the pages"
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--mute-audio",
           "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
           "--disable-renderer-priority-management", "--remote-debugging-port=0")  # fmt: skip
START_SECONDS = 30.0
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Space": (32, " ")}
"""Their codes, and the text that they are."""

Json = dict[str, Any]


def installed() -> str | None:
    """The browser of this machine, None where it has none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Chromium:
    """A browser until `close`."""

    def __init__(self, command: str, profile: Path) -> None:
        self._process = subprocess.Popen(
            [command, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._runner = asyncio.Runner()
        self._calls: dict[int, asyncio.Future[Json]] = {}
        self._number = 0
        self.pages: dict[str, Tab] = {}
        try:
            self.run(self._connect(profile / "DevToolsActivePort"))
        except BaseException:
            self._process.kill()
            raise

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something of a page's, and see to what the browser tells meanwhile."""
        return self._runner.run(work)

    def close(self) -> None:
        """End it."""
        self.run(self._session.close())
        self._runner.close()
        self._process.kill()
        self._process.wait()

    def new_page(self, width: int = 1280, height: int = 900) -> Tab:
        """A page with cookies of its own."""
        context = self.run(self.call("Target.createBrowserContext"))["browserContextId"]
        return self.run(self._page(context, width, height))

    def beside(self, page: Tab) -> Tab:
        """Another page with the cookies of a page."""
        return self.run(self._page(page.context, 1280, 900))

    async def _connect(self, told: Path) -> None:
        end = time.monotonic() + START_SECONDS
        while not (told.exists() and len(told.read_text().split()) == 2):
            assert time.monotonic() < end, "the browser does not start"
            await asyncio.sleep(0.05)
        port, path = told.read_text().split()
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=0)
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if (waiting := self._calls.pop(told.get("id", 0), None)) is not None:
                if not waiting.done():
                    waiting.set_result(told)
            elif (page := self.pages.get(told.get("sessionId", ""))) is not None:
                page.heard(told["method"], told["params"])

    async def call(self, method: str, session: str | None = None, **params: Any) -> Json:
        """A call of the protocol."""
        self._number += 1
        waiting = self._calls[self._number] = asyncio.get_running_loop().create_future()
        told = {"id": self._number, "method": method, "params": params}
        await self._socket.send_json(told if session is None else {**told, "sessionId": session})
        answer = await asyncio.wait_for(waiting, 30)
        if "error" in answer:
            raise CallRefused(method, answer)
        found: Json = answer["result"]
        return found

    async def _page(self, context: str, width: int, height: int) -> Tab:
        target = (await self.call("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = self.pages[session] = Tab(self, context, session)
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable", session)
        await page.sized(width, height)
        return page


class CallRefused(AssertionError):
    """What the browser says of a call that it cannot answer."""


class Tab:
    """A page of the browser: what it asked for is in `asked`, what it complained of in `complaints`."""

    def __init__(self, browser: Chromium, context: str, session: str) -> None:
        self._browser = browser
        self._session = session
        self.context = context
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.status = 0
        self._loader = ""
        self._loaded = False

    def heard(self, method: str, params: Json) -> None:
        """What the browser tells of the page."""
        match method:
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
            case "Network.responseReceived" if params["type"] == "Document":
                self.status = params["response"]["status"]
            case "Page.frameNavigated" if "parentId" not in params["frame"]:
                self._loader, self._loaded = params["frame"]["loaderId"], False
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    async def call(self, method: str, **params: Any) -> Json:
        return await self._browser.call(method, self._session, **params)

    async def sized(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def size(self, width: int, height: int = 900) -> None:
        """Make the window another one."""
        self._browser.run(self.sized(width, height))

    def dark(self, scheme: str = "dark") -> None:
        """What the system prefers."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._browser.run(self.call("Emulation.setEmulatedMedia", features=features))

    def zone(self, name: str) -> None:
        """Where the reader is."""
        self._browser.run(self.call("Emulation.setTimezoneOverride", timezoneId=name))

    def open(self, url: str) -> int:
        """Go somewhere and wait until it is loaded; the status."""

        async def go() -> int:
            loader = (await self.call("Page.navigate", url=url)).get("loaderId")
            async with asyncio.timeout(30):
                # The page before, an empty one at first, may be done loading just now.
                while not self._loaded or self._loader != loader:
                    await asyncio.sleep(0.01)
            return self.status

        status: int = self._browser.run(go())
        return status

    def js(self, expression: str) -> Any:
        """The value of an expression; promises are awaited."""

        async def evaluated() -> Any:
            found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
            assert "exceptionDetails" not in found, found
            return found["result"].get("value")

        return self._browser.run(evaluated())

    def until(self, expression: str, seconds: float = 120.0, meanwhile: Callable[[], None] = lambda: None) -> float:
        """Wait until an expression holds; the seconds that it took. One that throws does not hold yet."""
        began = time.monotonic()
        # The page may be loading: what an expression looks for is not there then.
        guarded = f"(() => {{ try {{ return ({expression}) }} catch {{ return false }} }})()"

        def holds() -> bool:
            with suppress(CallRefused):  # the page has just given way to another
                return bool(self.js(guarded))
            return False

        while not holds():
            waited = time.monotonic() - began
            assert waited < seconds, f"not within {seconds} s: {expression}"
            meanwhile()
            # The longer it takes, the longer the pauses: to ask the page takes what it could work with.
            self._browser.run(asyncio.sleep(min(max(waited / 20, 0.02), 0.2)))
        return time.monotonic() - began

    def press(self, key: str, *, shift: bool = False) -> None:
        """A key of the keyboard: Tab, Enter, Space, or a character."""
        code, text = KEYS[key] if key in KEYS else (ord(key.upper()), key)
        told = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        kinds = ("keyDown", "keyUp") if text else ("rawKeyDown", "keyUp")
        for kind in kinds:
            spoken = {"text": text} if kind == "keyDown" else {}
            self._browser.run(self.call("Input.dispatchKeyEvent", type=kind, **told, **spoken))

    def text(self, selector: str = "main") -> str:
        """The text that a reader sees there."""
        return str(self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def shot(self, path: Path) -> None:
        """The whole page as a picture."""

        async def taken() -> bytes:
            told = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
            return base64.b64decode(told["data"])

        path.write_bytes(self._browser.run(taken()))
