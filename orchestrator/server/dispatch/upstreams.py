"""One synchronous OpenAI-compatible endpoint: sends rows, reads its gauges, and tracks its health."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.core.answers import answer_tokens
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.counts import number_of
from orchestrator.core.unreachable import Unreached, unreached
from orchestrator.server.dispatch import http1
from orchestrator.server.dispatch.aliases import Aliases, ServedModels
from orchestrator.server.dispatch.body_changes import is_priority_refused
from orchestrator.server.dispatch.client import Client, Reply
from orchestrator.server.dispatch.concurrency_limiter import FIRST_CLOSED, START, ConcurrencyLimiter, Gauges
from orchestrator.server.dispatch.gauges import read_gauges
from orchestrator.server.dispatch.outage import NEVER, AccountRefusal, Outage
from orchestrator.server.dispatch.pages import UpstreamPages, context_window, models_in, models_problem, said
from orchestrator.server.dispatch.payload import Payload
from orchestrator.server.dispatch.rate_limiter import RateLimiter, Ticket
from orchestrator.server.dispatch.retry import End, UpstreamRefusal, key_refusal
from orchestrator.server.dispatch.stats import Stats, TimeShare
from orchestrator.server.logs import log_fields, plain_url
from orchestrator.server.settings import MOST_IN_FLIGHT

if TYPE_CHECKING:
    import aiohttp

    from orchestrator.server.dispatch.in_flight import Work

log = logging.getLogger(__name__)

GROWING_SECONDS = 0.1
SETTLED_SECONDS = 1.0
MAX_PROBE_SECONDS = 5.0
TOO_MANY = 429
BREAK_AFTER = 10
"""Number of consecutive failed rows that opens the circuit breaker."""


class Upstream:
    """One endpoint. `problem` is the reason why it gets no rows now, or None. `since` is the time when it stopped
    answering.

    `interactive` counts the passed-through synchronous requests in flight; `inflight` counts the batch rows in
    flight. `since` is a time of `clock`, which is `time.monotonic`. The event loop's own clock may tick in
    milliseconds, and an answer can take less. `models` are served until the upstream lists its models. `rate_limiter`
    enforces the published rates; None means no rates. A `paid` upstream bills each request. If it refuses the
    account, it gets no rows for `account_seconds`.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        timeout: float,
        ceiling: int,
        clock: Callable[[], float],
        learned: int | None = None,
        rate_limiter: RateLimiter | None = None,
        paid: bool = False,
        account_seconds: float = 60.0,
        models: Sequence[str] = (),
        aliases: Aliases | None = None,
        most_in_flight: int = MOST_IN_FLIGHT,
    ) -> None:
        self.url = url
        self.shown = plain_url(url)
        """The URL without parts that may be secret."""
        address, _, query = url.partition("#")[0].partition("?")
        self._root = address.rstrip("/").removesuffix("/v1")
        self._query = f"?{query}" if query else ""
        self.rate_limiter = rate_limiter
        self.paid = paid
        rate = None if rate_limiter is None else rate_limiter.requests_per_minute
        # No answer takes much longer than a minute, so at most a minute's requests are in flight at once.
        self.limiter = ConcurrencyLimiter(ceiling, learned, START if rate is None else max(START, int(rate)))
        self.workers = 0
        self.unread: Counter[str] = Counter()
        """Number of answers per tenant that have arrived, but wait for memory room."""
        self._most_in_flight = most_in_flight
        self.time_share = TimeShare(clock())
        self.interactive = 0
        self.stats = Stats()
        self.problem: str | None = "not reached yet"
        self._refusal: UpstreamRefusal | None = None
        self.is_reached = False
        """True if the upstream's last probe got an answer of any kind."""
        self.unreached: Unreached | None = None
        self.since = clock()
        self.served = ServedModels(models, aliases)
        self.is_leaving = False
        self.model_objects: list[dict[str, Any]] = []
        self.gauges: Gauges | None = None
        self.cache_tokens = 0
        """Size of the upstream's KV cache in tokens; 0 if unknown."""
        self.takes_packs = True
        self._takes_priority = True
        self.clock = clock
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._client: Client | None = None
        self._pages = UpstreamPages(self._root, self._query, self._headers)
        self._failures = 0
        self._faults = 0
        self.on_trial = False
        """True if the upstream gets one row at a time, until one succeeds."""
        self.outage: Outage[Work] = Outage()
        self._may_try = False
        """True if one row may be sent despite the outage."""
        self._failure = ""
        self.account = AccountRefusal(account_seconds)
        self._busy = asyncio.Event()
        self._back_at = NEVER
        self._has_gauges = True

    async def open(self) -> None:
        """Open the connection pools. Call this once, on the event loop that will use them."""
        self._client = Client(self._root, self._headers, self._timeout, reads_rates=self.rate_limiter is not None)
        self._pages.open()

    def leave(self) -> None:
        """Stop taking rows, permanently. Its watch must have ended."""
        self.is_leaving = True
        self.problem = "leaving: no more rows go there"

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._client is not None:
            await self._client.close()
        await self._pages.close()

    @property
    def takes_rows(self) -> bool:
        return self.problem is None or (self._may_try and not self.is_leaving)

    @property
    def inflight(self) -> int:
        return self.time_share.rows

    @property
    def at_work(self) -> int:
        """Number of rows that the upstream is working on.

        Rows whose answers wait for memory room are left out, because they say nothing about its limit.
        """
        return self.time_share.rows - (self.unread.total() if self.unread else 0)

    @property
    def http(self) -> aiohttp.ClientSession:
        """The connection pool for passed-through requests. Each request carries the upstream's key."""
        if self._session is None:
            import aiohttp  # no batch needs it, and it takes a tenth of a small run's time

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=5),
                headers={"Content-Type": "application/json", **self._headers},
            )
        return self._session

    def address(self, target: str) -> str:
        """Return the URL of a path, which may have a query. The query of the upstream's URL is appended."""
        query = self._query.replace("?", "&", 1) if "?" in target else self._query
        return self._root + target + query

    @property
    def models(self) -> Sequence[str]:
        """The models that the upstream lists. Before it lists any, the models that it is known to serve."""
        return self.served.models

    @property
    def is_vllm(self) -> bool:
        """True if the upstream's metrics page has vLLM's gauges."""
        return self.gauges is not None

    @property
    def takes_priority(self) -> bool:
        """True if rows may carry vLLM's `priority`."""
        return self.gauges is not None and self._takes_priority

    def room(self) -> int:
        room = self.limiter.room(self.clock(), self.interactive)
        return min(room, 1) if self.on_trial else room

    def has_slot(self, beside: int, tenant: str | None = None) -> bool:
        """True if one more row of a tenant may be in flight in addition to `beside` rows. A tenant of None means any
        tenant.

        An answer that waits for memory room counts only against its own tenant, because the upstream has done its
        work.
        """
        done = 0
        if self.unread:
            done = self.unread.total() - (0 if tenant is None else self.unread[tenant])
        return beside < self._most_in_flight and beside - done < self.room()

    def reads(self, tenant: str) -> None:
        """Record that an answer of a tenant got its memory room."""
        self.unread -= Counter((tenant,))

    def wait(self) -> float:
        """Return the seconds until the upstream's rates allow one more row; 0 if they allow it now."""
        return 0.0 if self.rate_limiter is None else self.rate_limiter.wait(self.clock())

    def heard(self, ticket: Ticket | None, reply: Reply, sent_at: float) -> None:
        """Adjust the rates to a reply: the tokens it used, and the limits it states."""
        if self.rate_limiter is None or ticket is None:
            return
        if reply.standings is not None:
            self.rate_limiter.told(self.clock(), ticket, reply.standings)
        if reply.end is not End.ANSWERED:
            return
        if reply.status >= 300:
            self.rate_limiter.settle(ticket, 0)  # nothing was generated
            return
        self.rate_limiter.answered(sent_at)
        tokens = answer_tokens(reply.body) if reply.tokens is None else reply.tokens
        if used := tokens.input + tokens.output:
            self.rate_limiter.settle(ticket, used)

    def overloaded(self, now: float, sent_at: float, reply: Reply, pause: float) -> None:
        """Record that the upstream refused a row sent at `sent_at` because of too many rows. `pause` is the first of
        growing pauses.
        """
        if self.rate_limiter is not None and reply.status == TOO_MANY:
            # A rate, or a quota: fewer rows at once would not help.
            self.rate_limiter.refused(now, sent_at, reply.retry_after, pause)
        else:
            self.limiter.overloaded(now, sent_at, reply.retry_after, pause=min(FIRST_CLOSED, pause))

    def send(self, endpoint: str, body: bytes | Payload) -> Awaitable[Reply]:
        """Make one attempt. Never raises an error, whatever the upstream does. Cancellation still passes through."""
        assert self._client is not None
        return self._client.post(endpoint + self._query, body)

    def begin(self, now: float) -> float:
        """Count a sent row, and return this upstream's shared clock (see `TimeShare`)."""
        if not self.time_share.rows:
            self._busy.set()
        return self.time_share.step(now, 1)

    def so_far(self, began: float) -> float:
        """Return the time share so far of a row that is still in flight."""
        return self.time_share.step(self.clock()) - began

    def refuses_priority(self, reply: Reply) -> bool:
        """True if a reply refuses `priority`. After that, no row carries it."""
        if self.takes_priority and is_priority_refused(reply.status, reply.body):
            self._takes_priority = False
            return True
        return False

    @property
    def refusal(self) -> UpstreamRefusal | None:
        """The kind of refusal, if the upstream has a problem because of a refused key or account; else None."""
        return None if self.problem is None else self._refusal

    def down(self, reason: str, refusal: UpstreamRefusal | None = None) -> None:
        """Give the upstream no rows until a probe succeeds."""
        self._may_try, self._refusal = False, refusal
        if self.problem is None:
            # If a probe succeeded but no row has since, the upstream was never back.
            if self.clock() - self._back_at > 2 * MAX_PROBE_SECONDS:
                self.since = self.clock()
            self.problem = reason
            self._failures += 1
            log.warning("upstream down", extra=log_fields(upstream=self.shown, reason=reason))

    def faulty(self, reason: str) -> None:
        """Record a failed row that may be the upstream's fault. BREAK_AFTER consecutive failures open the circuit
        breaker.
        """
        self._faults += 1
        if self._faults >= BREAK_AFTER or self.on_trial:
            self.on_trial = True
            self.down(f"{self._faults} rows in a row failed: {reason}")

    def fail_all(self, reason: str) -> None:
        """Pause the upstream because every row fails. After each successful probe, it gets one row, until a row
        succeeds.
        """
        self._may_try, self._refusal = False, None
        if self.is_leaving:
            return
        self._failures += 1
        if self.problem is None:
            self.since = self.clock() if self.outage.began is None else self.outage.began
            log.warning("upstream fails for all rows", extra=log_fields(upstream=self.shown, reason=reason))
        if not self._failure:
            rows = len(self.outage.failed_rows())
            self._failure = f"{number_of(rows, 'row')}{' in a row' if rows > 1 else ''} failed: {reason}"
        self.problem = self._failure
        self.on_trial = True

    def recover(self) -> None:
        self.outage.end()
        self._failure = ""
        if self.is_leaving:
            return
        self.problem, self.on_trial, self._may_try, self._failures = None, False, False, 0
        log.info("upstream up", extra=log_fields(upstream=self.shown, models=len(self.models)))

    def leave_alone(self, reason: str, sent_at: float, refusal: UpstreamRefusal = UpstreamRefusal.ACCOUNT) -> None:
        """Pause because the upstream refused the account for a row sent at `sent_at`. After the pause, one row is
        sent as a test.
        """
        self.account.refused(self.clock(), sent_at)
        self.on_trial = True
        if self.outage.is_open:
            self.outage.end()
            self._failure, self.problem = "", reason
        self.down(reason, refusal)

    def answered(self, now: float, seconds: float) -> bool:
        """Record a row's end, `seconds` after it was sent. Return True if more rows may now be in flight than
        before.
        """
        before = self.limiter.limit
        at_work = self.at_work if self.unread else self.time_share.rows
        self.limiter.completed(now, at_work + 1, seconds)
        return self.limiter.limit > before

    def well(self, sent_at: float, *, is_success: bool = True) -> bool:
        """Record an answer to a row sent at `sent_at`. Return True if the answer ends the upstream's trial.

        `is_success` is False for an error, which proves nothing about the engine behind a gateway.
        """
        if is_success and self.outage.succeeded(sent_at):
            self.recover()
            return True
        if self.outage.is_open:
            return False
        was_on_trial = self.on_trial
        self._failures, self._faults, self._back_at = 0, 0, NEVER
        was_left_alone = self.account.refused_at is not None and self.account.pause(self.clock()) > 0
        if not self.account.took(sent_at):
            return False
        if was_left_alone:
            self.problem = None
        self.on_trial = False
        return was_on_trial

    async def offered_paths(self) -> frozenset[str] | None:
        """Return the paths that accept POSTs: empty if the upstream does not list them, None if it does not answer
        now.

        FastAPI servers such as vLLM list their paths.
        """
        return await self._pages.paths()

    async def watch(self, back: Callable[[], None], looked: Callable[[], None]) -> None:
        """Watch the upstream until cancelled. While it is healthy, read its gauges; otherwise probe it.

        Calls `back` when the upstream is healthy again, and `looked` after each reading.
        """
        while True:
            try:
                await self._watch(back, looked)
            except Exception:
                # An odd answer must not end the watch: then the upstream would never come back.
                log.exception("an upstream could not be probed")
                await asyncio.sleep(MAX_PROBE_SECONDS)

    async def _watch(self, back: Callable[[], None], looked: Callable[[], None]) -> None:
        while True:
            if self.problem is None:
                await self._look()
                looked()
                await self._until_next_look()
                continue
            if (alone := self.account.pause(self.clock())) > 0:
                # In steps: a row still in flight may show earlier that the account is accepted.
                await asyncio.sleep(min(alone, SETTLED_SECONDS))
                continue
            is_well = await self._probe()
            if is_well and self.outage.is_open:
                self.problem, self._may_try = self._failure, True
                back()
            elif is_well:
                self.problem, self._back_at = None, self.clock()
                log.info("upstream up", extra=log_fields(upstream=self.shown, models=len(self.models)))
                await self._look()
                back()
            else:
                self._failures += 1
            # If rows fail again at once (only the models page accepts the key), wait before the next probe.
            await asyncio.sleep(min(MAX_PROBE_SECONDS, 0.1 * 2 ** min(self._failures, 6)))

    async def _until_next_look(self) -> None:
        if not self.inflight:
            self._busy.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._busy.wait(), SETTLED_SECONDS)
        await asyncio.sleep(GROWING_SECONDS if self.limiter.growing or not self.inflight else SETTLED_SECONDS)

    async def _look(self) -> None:
        self.limiter.observe(self.clock(), self.at_work, await self.refresh())

    async def _probe(self) -> bool:
        try:
            status, body = await self._pages.ask("/v1/models")
            self.is_reached, self.unreached = True, None
            if (problem := models_problem(status, body)) is not None:
                self.problem, self._refusal = problem, key_refusal(status)
                return False
            if status < 300:
                self.model_objects = models_in(body)
                names = [model["id"] for model in self.model_objects]
                self.served.learn(names, context_window(self.model_objects))
                self._has_gauges = True
            return True
        except JSON_ERRORS:
            self.problem = f"answers, but not like an OpenAI-compatible server{said(body)}"
        except http1.ExchangeError as error:
            self.is_reached, self.unreached = False, unreached(error)
            self.problem = f"unreachable: {error}"
        self._refusal = None
        return False

    async def refresh(self) -> Gauges | None:
        """Read the gauges now; None if the upstream has none, or does not answer."""
        if not self._has_gauges:
            return None
        try:
            status, page = await self._pages.ask("/metrics")
        except http1.ExchangeError as error:
            if isinstance(error, http1.NotConnectedError) and not isinstance(error, http1.ConnectTimeoutError):
                # Another server with other models may replace it meanwhile: the probe reads the models again.
                self.down(f"unreachable: {error}")
            return None
        if status >= 500:
            return None  # a gateway's page does not say whether there are gauges
        found = read_gauges(page)
        if found is None:
            self._has_gauges = False
            return None
        self.gauges, self.cache_tokens = found
        return self.gauges
