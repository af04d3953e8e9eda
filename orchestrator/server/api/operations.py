"""What people and machines ask about the server itself."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.server.api.http import as_json
from orchestrator.server.service import Service


class Operations:
    """The routes of operation."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """What this part answers."""
        return [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
        ]

    async def models(self, request: Request) -> Response:
        names = sorted({model for upstream in self._service.upstreams for model in upstream.models})
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "upstream"} for name in names]
        return as_json({"object": "list", "data": models})

    async def health(self, request: Request) -> Response:
        return as_json(self._service.health())
