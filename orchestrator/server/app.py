"""The application: all parts of the API, with request ids and one format of errors."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from orchestrator.core.errors import OrchError, StorageError
from orchestrator.core.guarded_server import guarded
from orchestrator.server.api import http
from orchestrator.server.api.access import Access
from orchestrator.server.api.batches import BatchRoutes
from orchestrator.server.api.extensions import Extensions
from orchestrator.server.api.files import Files
from orchestrator.server.api.openapi import Description
from orchestrator.server.api.operations import Operations
from orchestrator.server.api.passthrough import Passthrough
from orchestrator.server.api.replicated import Replicated
from orchestrator.server.api.uploads import UploadRoutes
from orchestrator.server.logs import AccessLog
from orchestrator.server.service import Service

PARTS = (Files, UploadRoutes, BatchRoutes, Extensions, Operations, Description, Passthrough)


def build(service: Service) -> Starlette:
    """Return the application around a service. The application opens and closes the service."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            await service.open()
        except (OrchError, OSError) as error:
            service.failure = error
            raise
        try:
            yield
        finally:
            await service.close()

    app = Starlette(
        lifespan=lifespan,
        routes=[route for part in PARTS for route in part(service).routes()],
        exception_handlers={
            http.ApiError: http.on_api_error,
            HTTPException: http.on_http_error,
            StorageError: http.on_storage_error,
            OSError: http.on_storage_error,
            Exception: http.on_surprise,
        },
    )
    app.state.service = service
    # A redirect would name the host of the client's request, which is wrong behind a proxy.
    app.router.redirect_slashes = False
    app.add_middleware(Replicated, service=service)
    app.add_middleware(Access, service=service)
    app.add_middleware(_RequestIds)
    app.add_middleware(AccessLog)
    return app


def configuration(service: Service, **options: Any) -> uvicorn.Config:
    """Return the uvicorn configuration for the application around a service. `options` are passed to uvicorn."""
    quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
    return guarded(build(service), service.connections, **quiet, **options)


class _RequestIds:
    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def with_id(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", b"req_" + os.urandom(12).hex().encode())]
            await send(message)

        await self._app(scope, receive, with_id if scope["type"] == "http" else send)
