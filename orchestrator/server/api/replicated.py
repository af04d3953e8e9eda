"""Request handling of a server with a replica.

Answers to changes wait for the replica. If another server may be active, requests fail.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from orchestrator.core.errors import StorageError
from orchestrator.core.replica.who_is_active import Superseded
from orchestrator.server.api import http
from orchestrator.server.api.access import OPEN_PATHS
from orchestrator.server.api.http import ApiError
from orchestrator.server.service import Service

RECORDED = ("/v1/files", "/v1/uploads", "/v1/batches")
"""Prefixes of the paths that read or change the server's records."""
READS = ("GET", "HEAD")
RETRY_SECONDS = 5


class Replicated:
    """Refuses requests while another server may be active. Answers a change only once it is on the replica."""

    def __init__(self, app: Any, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or self._service.replicator is None or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
        elif not self._service.is_active:
            await http.on_api_error(Request(scope), _not_active())(scope, receive, send)
        elif not scope["path"].startswith(RECORDED):
            await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, _Held(self._service, scope, receive, send))


class _Held:
    """Holds back an answer until the replica has all records. Sends an error instead if the replica fails."""

    def __init__(self, service: Service, scope: Any, receive: Any, send: Any) -> None:
        self._service = service
        self._asked = scope, receive
        self._send = send
        self._is_dropped = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            try:
                await self._service.settled()
            except StorageError as error:
                self._is_dropped = True
                scope, receive = self._asked
                refusal = _refusal(error, scope["method"] in READS)
                await http.on_api_error(Request(scope), refusal)(scope, receive, self._send)
        if not self._is_dropped:
            await self._send(message)


def _refusal(error: StorageError, is_read: bool) -> ApiError:
    if is_read or isinstance(error, Superseded):
        return _not_active()
    message = "What was asked for may have been done, but is not on the replica yet. Look before you repeat it."
    return ApiError(503, message, code="not_replicated", retry=False)


def _not_active() -> ApiError:
    message = "This server is not the active one now, or does not reach its replica. Nothing was done."
    return ApiError(503, message, code="not_active", after=RETRY_SECONDS)
