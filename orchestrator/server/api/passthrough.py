"""Synchronous requests, passed unchanged to an upstream ahead of batch rows. Answers come back unchanged."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.routing import Route

from orchestrator.core import unreachable
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.json_decoders import json_decoder
from orchestrator.server.api.http import ApiError, BodyInMemory, read_body
from orchestrator.server.dispatch.aliases import renamed
from orchestrator.server.dispatch.body_changes import likely_tokens
from orchestrator.server.dispatch.upstreams import Upstream
from orchestrator.server.logs import log_fields
from orchestrator.server.memory_limits import SMALL
from orchestrator.server.service import Service

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 1024 * 1024
BLOCK_BYTES = 256 * 1024
CONNECT_SECONDS = 5.0
RETRY_SECONDS = 5
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    b" upgrade".split()
)
NOT_SENT = HOP_BY_HOP | frozenset(
    b"host content-length expect authorization api-key x-api-key cookie"
    b" x-http-method x-http-method-override x-method-override x-original-url x-rewrite-url".split()
)
"""Client headers that are not passed on.

The client's key is for this server; each upstream has its own key. Override headers could change the method or path
that an upstream sees.
"""
NOT_ANSWERED = HOP_BY_HOP | frozenset(b"server date location set-cookie x-request-id".split())
"""Upstream headers that are not passed on to the client. A redirect would reveal the upstream's address."""


# An upstream may send names and characters that HTTP forbids in headers.
_is_name = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+").fullmatch
_has_control = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search


class _Asks(msgspec.Struct):
    model: Any = None


_decode_asks = json_decoder(_Asks).decode


class PassthroughRequest(Struct, frozen=True):
    """One request to pass on. `model` is the requested model, or None if the choice of upstream does not depend on
    it.
    """

    target: str
    headers: list[tuple[str, str]]
    body: BodyInMemory
    model: str | None


class _NotReached(Exception):
    """Raised if no connection was made, so the upstream has not seen the request."""


class Passthrough:
    """Routes to the upstreams: one POST route for each path of the allow-list."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        return [Route(path, self._forward(path), methods=["POST"]) for path in sorted(self._service.endpoints.all)]

    def _forward(self, path: str) -> Callable[[Request], Awaitable[Any]]:
        async def forward(request: Request) -> Any:
            return await self.forward(request, path)

        return forward

    async def forward(self, request: Request, path: str) -> Any:
        """Return an ASGI application that passes the request on to the allow-listed `path`."""
        body, query = await read_body(request, MAX_BODY_BYTES), request.url.query
        if self._service.settings.log_prompts:
            log.info("request body", extra=log_fields(path=path, body=body.content.decode(errors="replace")))
        differ = len({frozenset(upstream.models) for upstream in self._service.upstreams}) > 1
        model = _model(body.content) if differ or self._service.aliases else None
        target = f"{path}?{query}" if query else path
        return _Relay(self._service, PassthroughRequest(target, _sent_headers(request), body, model))


def _model(body: bytes) -> str | None:
    try:
        model = _decode_asks(body).model
    except JSON_ERRORS:
        return None  # a form, or a body that no upstream accepts
    return model if isinstance(model, str) else None


def _sent_headers(request: Request) -> list[tuple[str, str]]:
    sent = _without(request.headers.raw, NOT_SENT)
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in sent]
    # The answer is passed on unchanged, so the upstream must not use an encoding that the client did not offer.
    return headers if "accept-encoding" in request.headers else [*headers, ("accept-encoding", "identity")]


def _without(headers: Sequence[tuple[bytes, bytes]], dropped: Collection[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the headers without `dropped`, and without the hop-by-hop headers that `Connection` names."""
    named = {
        word.strip().lower() for name, value in headers if name.lower() == b"connection" for word in value.split(b",")
    }
    return [(name, value) for name, value in headers if name.lower() not in dropped and name.lower() not in named]


def choose(upstreams: Sequence[Upstream], model: str | None, tried: Collection[Upstream] = ()) -> Upstream | None:
    """Return the working upstream with the most room that serves the model, or None.

    If no upstream lists the model, choose an upstream without a model list. If there is none, choose any upstream; it
    will answer that the model is unknown.
    """
    serving = list(upstreams)
    if model is not None:
        naming = [upstream for upstream in upstreams if upstream.served.has(model)]
        serving = naming or [upstream for upstream in upstreams if not upstream.models] or serving
    able = [upstream for upstream in serving if _takes_calls(upstream) and upstream not in tried]
    return min(able, key=_load, default=None)


def _takes_calls(upstream: Upstream) -> bool:
    """True if the upstream answers. An upstream that fails for all batch rows may still accept this request."""
    return upstream.problem is None or (upstream.outage.is_open and not upstream.is_leaving)


def _load(upstream: Upstream) -> tuple[bool, float, int]:
    out = upstream.interactive + upstream.inflight
    return upstream.outage.is_open, out / max(1, upstream.limiter.limit), upstream.interactive


class _Relay:
    """ASGI application that relays one call."""

    def __init__(self, service: Service, call: PassthroughRequest) -> None:
        import aiohttp  # imported here, as batches do not need it

        self._service = service
        self._call = call
        self._started = False
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=service.settings.request_timeout
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # If the client disconnects, the request is cancelled, so that the upstream does no useless work.
        work, left = asyncio.create_task(self._answer(send)), asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            work.cancel()
            await asyncio.gather(work, left, return_exceptions=True)
            self._call.body.drop()
        if not work.cancelled():
            work.result()

    async def _answer(self, send: Callable[[Any], Any]) -> None:
        tried: list[Upstream] = []
        while (upstream := choose(self._service.upstreams, self._call.model, tried)) is not None:
            tried.append(upstream)
            try:
                await self._ask(upstream, send)
            except _NotReached as error:
                upstream.down(str(error))
            else:
                return
        raise ApiError(
            503,
            "No upstream that could answer this is available now. Try again later.",
            code="no_upstream",
            after=RETRY_SECONDS,
        )

    async def _ask(self, upstream: Upstream, send: Callable[[Any], Any]) -> None:
        import aiohttp

        began = upstream.clock()
        upstream.interactive += 1
        if upstream.rate_limiter is not None:
            # An interactive request does not wait for the upstream's rates; batch rows after it wait longer.
            upstream.rate_limiter.take(began, likely_tokens(self._call.body.content))
        try:
            status = await self._pass_on(upstream, send)
            if status < 300 and upstream.outage.is_open and upstream.well(began):
                self._service.resume()
            _count(upstream, upstream.clock() - began, failed=status >= 500 or status == 429)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise _NotReached(f"unreachable: {unreachable.reason(error)}") from None
        except (aiohttp.ClientError, OSError) as error:
            _count(upstream, upstream.clock() - began, failed=True)
            log.warning(
                "an upstream broke off",
                extra=log_fields(upstream=upstream.shown, error=type(error).__name__, answered=self._started),
            )
            # Once an answer has begun, only a missing end can tell the client that the answer is incomplete.
            if not self._started:
                raise _broken(error) from None
        finally:
            upstream.interactive -= 1

    async def _pass_on(self, upstream: Upstream, send: Callable[[Any], Any]) -> int:
        call = self._call
        model = self._service.aliases.model_of(call.model, upstream.models)
        changed = None if model is None else renamed(call.body.content, model)
        size = len(call.body.content if changed is None else changed)
        async with upstream.http.post(
            upstream.address(call.target),
            data=_sent(call.body) if changed is None else changed,
            headers=[*call.headers, ("content-length", str(size))],
            allow_redirects=False,
            auto_decompress=False,
            timeout=self._timeout,
        ) as response:
            if not 200 <= response.status <= 599:
                raise _broken(ValueError())  # a status that HTTP does not have
            passed = _without(response.raw_headers, NOT_ANSWERED)
            headers = [(name, value) for name, value in passed if _is_name(name) and not _has_control(value)]
            self._started = True
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            async for part in response.content.iter_any():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        # Await nothing after this: once an answer is complete, `receive` reports a disconnect.
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return response.status


def _sent(body: BodyInMemory) -> bytes | AsyncIterator[bytes]:
    """Return the body as one piece, or in blocks if it is large. Blocks free their memory once they are sent."""
    return body.content if len(body.content) <= SMALL else _blocks(body)


async def _blocks(body: BodyInMemory) -> AsyncIterator[bytes]:
    content = memoryview(body.content)
    for start in range(0, len(content), BLOCK_BYTES):
        yield bytes(content[start : start + BLOCK_BYTES])
    del content
    body.drop()


def _broken(error: Exception) -> ApiError:
    if isinstance(error, TimeoutError):
        return ApiError(504, "The upstream did not answer in time.", code="upstream_timeout")
    return ApiError(502, "The upstream closed the connection before it answered.", code="upstream_error")


def _count(upstream: Upstream, seconds: float, *, failed: bool) -> None:
    stats = upstream.stats
    stats.interactive += 1
    stats.interactive_failed += failed
    stats.interactive_latencies.observe(seconds)


async def _left(receive: Callable[[], Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
