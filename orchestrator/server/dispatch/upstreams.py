"""One synchronous OpenAI-compatible endpoint: sends a request, reads its gauges, knows whether it is well."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec

from orchestrator.errors import BackendError
from orchestrator.server.dispatch.flow import Flow, Gauges
from orchestrator.server.dispatch.retry import End
from orchestrator.server.dispatch.stats import Stats

WATCH_SECONDS = 0.5
MAX_PROBE_SECONDS = 5.0
MAX_RETRY_AFTER = 120.0
_GAUGE = re.compile(rb"^(vllm:[a-z_]+)(?:\{[^}]*\})? ([0-9.eE+-]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reply:
    """How one attempt ended; `body` is the answer's, `detail` is for people and holds nothing of the prompt."""

    end: End
    status: int = 0
    body: bytes = b""
    detail: str = ""
    retry_after: float | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class Upstream:
    """One endpoint. `problem` is why it gets no rows now, or None; `since` is when it began to answer none.

    `inflight` counts rows of batches that are out, `interactive` synchronous requests that are passed through.

    `now` is the event loop's clock, and `since` is of it.
    """

    def __init__(
        self, url: str, *, api_key: str | None, timeout: float, ceiling: int, now: Callable[[], float]
    ) -> None:
        self.url = url
        self.flow = Flow(ceiling)
        self.workers = 0
        self.inflight = 0
        self.interactive = 0
        self.stats = Stats()
        self.problem: str | None = "not reached yet"
        self.since = now()
        self.models: list[str] = []
        self._now = now
        self.root = url.removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._failures = 0
        self._back_at = float("-inf")
        self._gauges_known = True
        self._clock_at = now()
        self._clock = 0.0

    async def open(self) -> None:
        """Open the connection pool; call once, on the loop that will use it."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=5),
            headers={"Content-Type": "application/json", **self._headers},
        )

    async def close(self) -> None:
        """Close the connection pool."""
        if self._session is not None:
            await self._session.close()

    @property
    def http(self) -> aiohttp.ClientSession:
        """The connection pool; it sends the upstream's key."""
        if self._session is None:
            raise BackendError(f"upstream {self.url} was not opened")
        return self._session

    async def send(self, endpoint: str, body: bytes) -> Reply:
        """One attempt. Never raises for what an upstream can do; cancellation passes through."""
        try:
            # A redirect is not followed: it could lead a local row to a host that nobody declared.
            async with self.http.post(self.root + endpoint, data=body, allow_redirects=False) as response:
                answer = await response.read()
                return _reply(response, answer)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            return Reply(End.UNREACHABLE, detail=_say(error))
        except TimeoutError:
            return Reply(End.TIMED_OUT, detail=f"no answer within {self._timeout:g} s")
        except (aiohttp.ClientResponseError, aiohttp.InvalidURL) as error:
            return Reply(End.GARBLED, detail=f"not HTTP: {_say(error)}")
        except (aiohttp.ClientError, OSError) as error:
            return Reply(End.CUT, detail=_say(error))
        except Exception as error:  # noqa: BLE001  (whatever the library trips over is this row's outcome)
            return Reply(End.GARBLED, detail=_say(error))

    def begin(self) -> float:
        """A row goes out: where this upstream's shared clock stands (see `end`)."""
        self._tick()
        self.inflight += 1
        return self._clock

    def so_far(self, began: float) -> float:
        """The share, up to now, of a row that is still out."""
        self._tick()
        return self._clock - began

    def end(self, began: float) -> float:
        """The row is back: its share of the upstream's time in seconds.

        Time is shared equally by the rows in flight, so the shares of all rows add up to the time the upstream was
        busy, however many ran side by side.
        """
        self._tick()
        self.inflight -= 1
        return self._clock - began

    def _tick(self) -> None:
        now = self._now()
        if self.inflight:
            self._clock += (now - self._clock_at) / self.inflight
        self._clock_at = now

    def down(self, reason: str) -> None:
        """Give it no rows until a probe says that it is well."""
        if self.problem is None:
            # One that only its probe called well, and that took no row since, was never back.
            if self._now() - self._back_at > 2 * MAX_PROBE_SECONDS:
                self.since = self._now()
            self.problem = reason
            self._failures += 1

    def well(self) -> None:
        """A row was answered."""
        self._failures, self._back_at = 0, float("-inf")

    async def watch(self, recovered: Callable[[], None]) -> None:
        """Until cancelled: read the gauges while it is well, probe it while it is not."""
        while True:
            if self.problem is None:
                self.flow.observe(self._now(), self.inflight, await self._gauges())
                recovered()
                await asyncio.sleep(WATCH_SECONDS)
            elif await self._probe():
                self.problem, self._back_at = None, self._now()
                recovered()
                # One that fails again at once (a key that only the models page takes) is not asked without pause.
                await asyncio.sleep(min(MAX_PROBE_SECONDS, 0.1 * 2 ** min(self._failures, 6)))
            else:
                self._failures += 1
                await asyncio.sleep(min(MAX_PROBE_SECONDS, 0.1 * 2 ** min(self._failures, 6)))

    async def _probe(self) -> bool:
        try:
            async with self.http.get(self.root + "/v1/models", timeout=aiohttp.ClientTimeout(total=5)) as response:
                body = await response.read()
                if response.status < 300:
                    self.models = [model.id for model in msgspec.json.decode(body, type=_Models).data]
                    return True
                if response.status in (401, 403):
                    self.problem = f"upstream refuses the API key ({response.status})"
                    return False
                # An upstream without a models page is well as long as it answers.
                return response.status in (404, 405)
        except msgspec.DecodeError:
            self.problem = "answers, but not as an OpenAI-compatible server does"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.problem = f"unreachable: {_say(error)}"
        return False

    async def _gauges(self) -> Gauges | None:
        if not self._gauges_known:
            return None
        try:
            async with self.http.get(self.root + "/metrics", timeout=aiohttp.ClientTimeout(total=5)) as response:
                text = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        found: dict[bytes, float] = {}
        for name, value in _GAUGE.findall(text):
            found[name] = found.get(name, 0.0) + float(value)
        if b"vllm:num_requests_running" not in found:
            self._gauges_known = False
            return None
        return Gauges(
            int(found[b"vllm:num_requests_running"]),
            int(found.get(b"vllm:num_requests_waiting", 0)),
            found.get(b"vllm:kv_cache_usage_perc", found.get(b"vllm:gpu_cache_usage_perc", 0.0)),
        )


def _reply(response: aiohttp.ClientResponse, body: bytes) -> Reply:
    status = response.status
    try:
        body.decode()  # the JSON decoder does not look into strings that it skips
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        kind = response.content_type
        if status < 300:
            return Reply(End.GARBLED, status, detail=f"the answer ({kind}, {len(body)} bytes) is no JSON object")
        body = b""
    return Reply(End.ANSWERED, status, body, retry_after=_seconds(response.headers.get("Retry-After")))


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return min(seconds, MAX_RETRY_AFTER) if seconds >= 0 else None


def _say(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__
