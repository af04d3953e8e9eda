"""Routes about the server itself, for people and machines: models, health, readiness, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.server.api.access import is_known
from orchestrator.server.api.http import ApiError, as_json
from orchestrator.server.health import health, not_ready
from orchestrator.server.service import Service

NOT_READY_SECONDS = "5"


class Operations:
    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/ready", self.ready, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
        ]

    async def models(self, request: Request) -> Response:
        models = self._models()
        return as_json({"object": "list", "data": [models[name] for name in sorted(models)]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        models = self._models()
        found = models.get(name) or self._under_any_name(name, models)
        if found is None:
            raise ApiError(404, f"The model '{name}' does not exist.", param="model", code="model_not_found")
        return as_json(found)

    def _models(self) -> dict[str, dict[str, Any]]:
        """Return models by id. Each model is described by the first upstream that has it. An alias has a `root`."""
        models: dict[str, dict[str, Any]] = {}
        for upstream in self._service.upstreams:
            for given in upstream.model_objects:
                model = {"created": 0, "owned_by": "upstream", **given, "object": "model"}
                models.setdefault(model["id"], model)
        for upstream in self._service.upstreams:
            for name, served in self._service.aliases.names(upstream.models).items():
                models.setdefault(name, {**models[served], "id": name, "root": served})
        return models

    def _under_any_name(self, name: str, models: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
        meant = (self._service.aliases.model_of(name, upstream.models) for upstream in self._service.upstreams)
        served = next((model for model in meant if model in models), None)
        return None if served is None else {**models[served], "id": name, "root": served}

    async def health(self, request: Request) -> Response:
        return as_json(health(self._service, is_known=is_known(request)))

    async def ready(self, request: Request) -> Response:
        """Answer 200 if the server can accept and process batches, otherwise 503 with the reasons."""
        reasons = not_ready(self._service, is_known=is_known(request))
        if not reasons:
            return as_json({"status": "ready", "reasons": []})
        response = as_json({"status": "not ready", "reasons": reasons}, 503)
        response.headers["retry-after"] = NOT_READY_SECONDS
        return response

    async def metrics(self, request: Request) -> Response:
        # The client library takes 50 ms and a few megabytes; a server without a scraper does not load it.
        from orchestrator.server.metrics import page

        text, kind = page(self._service, request.headers.get("accept", ""), is_known=is_known(request))
        return Response(text, headers={"content-type": kind})
