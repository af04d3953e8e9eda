"""Access control: API keys, and limits on what a key may upload or queue."""

from __future__ import annotations

from typing import Any, NoReturn

from starlette.requests import Request
from starlette.responses import Response

from orchestrator.core.counts import number_of, number_that
from orchestrator.core.errors import StorageError
from orchestrator.core.guarded_server import connection_of
from orchestrator.server.api import http
from orchestrator.server.api.http import ApiError, tenant_of
from orchestrator.server.keys import HINT_LENGTH, NO_LIMITS, Key, KeyLimits, KeyRight
from orchestrator.server.service import Service

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths for load balancers and Prometheus. Without a key, their answers contain only numbers, no names."""

RETRY_SECONDS = 30
"""Value of `Retry-After`, in seconds. OpenAI's clients do not retry if it is above 120."""

CALL_SECONDS = 1
SHORTEST_SHOWN = 16


class Access:
    """Checks the API key of each request and records its tenant. Without `Settings.require_keys`, every request is
    admitted.

    OPEN_PATHS need no key, but a valid key gets a more detailed answer.
    """

    def __init__(self, app: Any, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not self._service.settings.require_keys:
            await self._app(scope, receive, send)
            return
        scope["asks_for_keys"] = True
        is_open = scope["path"] in OPEN_PATHS
        try:
            key = self._key(scope["headers"])
            if (connection := connection_of(scope)) is not None:
                connection.trust()
            if not is_open:
                self._require_call(key)
        except (ApiError, StorageError) as error:
            await (self._app if is_open else _refusal(Request(scope), error))(scope, receive, send)
            return
        scope["tenant"], scope["limits"] = key.tenant, key.limits
        with self._service.calls.one_more(key.id):
            await self._app(scope, receive, send)

    def _require_call(self, key: Key) -> None:
        most = self._service.settings.max_calls if key.limits.max_calls is None else key.limits.max_calls
        if self._service.calls.out(key.id) >= most:
            running = number_that(most, "request", "are")
            _come_again(f"{running} running with this key, which is the most allowed at once.", CALL_SECONDS)

    def _key(self, headers: list[tuple[bytes, bytes]]) -> Key:
        secret = _secret(headers)
        if not secret:
            raise _unauthorized(
                "This server asks for an API key. Send one in the header 'Authorization: Bearer KEY'."
            )
        key = self._service.keys.find(secret)
        if key is None or key.right is not KeyRight.BATCH:
            # A short key may be a password for another service: do not show any of its characters.
            shown = secret[-HINT_LENGTH:].decode("latin-1") if len(secret) >= SHORTEST_SHOWN else ""
            raise _unauthorized(f"Incorrect API key provided: ********{shown}. It is unknown or revoked.")
        return key


def _secret(headers: list[tuple[bytes, bytes]]) -> bytes:
    given = dict(reversed(headers))
    scheme, _, token = given.get(b"authorization", b"").strip().partition(b" ")
    if scheme.lower() == b"bearer" and token.strip():
        return token.strip()
    return given.get(b"api-key", b"").strip()


def _unauthorized(message: str) -> ApiError:
    error = ApiError(401, message, code="invalid_api_key")
    error.headers["www-authenticate"] = "Bearer"
    return error


def _refusal(request: Request, error: Exception) -> Response:
    answer = http.on_api_error if isinstance(error, ApiError) else http.on_storage_error
    return answer(request, error)


def is_known(request: Request) -> bool:
    """True if the request has shown a valid key, or if no key is required."""
    return "tenant" in request.scope or not request.scope.get("asks_for_keys", False)


def limits_of(request: Request) -> KeyLimits:
    limits: KeyLimits = request.scope.get("limits", NO_LIMITS)
    return limits


def most_bytes(service: Service, request: Request) -> int:
    """Return the largest allowed upload: the server's limit, or the tenant's remaining bytes."""
    left = _bytes_left(service, request)
    most = service.settings.max_file_bytes
    return most if left is None else min(most, left)


def require_bytes(service: Service, request: Request, size: int) -> None:
    """Raise ApiError 413 if the request's tenant may not store `size` more bytes."""
    left = _bytes_left(service, request)
    if left is not None and size > left:
        raise ApiError(
            413,
            f"Your files may have {limits_of(request).max_bytes:,} bytes in all, and {left:,} of them are free. "
            "Delete files, or wait until some expire.",
            code="storage_limit_exceeded",
            retry=False,
        )


def _bytes_left(service: Service, request: Request) -> int | None:
    most = limits_of(request).max_bytes
    return None if most is None else max(0, most - service.records.stored_bytes(tenant_of(request)))


def require_room(service: Service, request: Request) -> None:
    """Raise ApiError 429, with a time to retry, if too many batches or rows are waiting."""
    limits, tenant = limits_of(request), tenant_of(request)
    unfinished = sum(run.tenant == tenant for run in service.batches.runs.values())
    if limits.max_batches is not None and unfinished >= limits.max_batches:
        _come_again(f"You have {number_of(unfinished, 'unfinished batch')}, and {limits.max_batches:,} are allowed.")
    waiting = service.batches.unfinished_rows(tenant)
    if limits.max_queued_rows is not None and waiting >= limits.max_queued_rows:
        rows, wait = number_of(waiting, "row"), "waits" if waiting == 1 else "wait"
        _come_again(f"{rows} of your batches {wait}, and {limits.max_queued_rows:,} are allowed.")
    waiting = service.batches.unfinished_rows()
    if waiting >= service.settings.max_queued_rows:
        wait, most = number_that(waiting, "row", "wait"), service.settings.max_queued_rows
        _come_again(f"{wait} at this server, and {most:,} are allowed.")


def _come_again(reason: str, after: int = RETRY_SECONDS) -> NoReturn:
    raise ApiError(429, f"{reason} Try again later.", code="rate_limit_exceeded", after=after)
