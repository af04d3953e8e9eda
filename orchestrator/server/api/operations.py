"""What people and machines ask about the server itself."""

from __future__ import annotations

import shutil
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.server.api.http import ApiError, as_json
from orchestrator.server.service import Service

NOT_READY_SECONDS = "5"


class Operations:
    """The routes of operation."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """What this part answers."""
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
        found = self._models().get(name)
        if found is None:
            raise ApiError(404, f"The model '{name}' does not exist.", param="model", code="model_not_found")
        return as_json(found)

    def _models(self) -> dict[str, dict[str, Any]]:
        """The upstreams' models by id, each as the first that has it describes it (`max_model_len` and the like)."""
        models: dict[str, dict[str, Any]] = {}
        for upstream in self._service.upstreams:
            for given in upstream.model_objects:
                model = {"created": 0, "owned_by": "upstream", **given, "object": "model"}
                models.setdefault(model["id"], model)
        return models

    async def health(self, request: Request) -> Response:
        return as_json(self._service.health())

    async def ready(self, request: Request) -> Response:
        """200 while batches can be taken in and worked on, else 503 with what is in the way."""
        reasons = self._not_ready()
        if not reasons:
            return as_json({"status": "ready", "reasons": []})
        response = as_json({"status": "not ready", "reasons": reasons}, 503)
        response.headers["retry-after"] = NOT_READY_SECONDS
        return response

    def _not_ready(self) -> list[str]:
        service, reasons = self._service, []
        if all(upstream.problem is not None for upstream in service.upstreams):
            problems = "; ".join(str(upstream.problem) for upstream in service.upstreams)
            reasons.append(f"no upstream is well: {problems}")
        match service.health()["status"]:
            case "storage":
                reasons.append("the server cannot write: its log and /health tell why")
            case "broken":
                reasons.append("a part of the server has ended: its log tells why")
        free = shutil.disk_usage(service.root).free
        if free < service.settings.min_free_bytes:
            reasons.append(
                f"the disk has {free:,} bytes free, and {service.settings.min_free_bytes:,} must stay free"
            )
        waiting = service.batches.unfinished_rows()
        if waiting >= service.settings.max_queued_rows:
            reasons.append(f"{waiting:,} rows wait, and {service.settings.max_queued_rows:,} are allowed")
        return reasons

    async def metrics(self, request: Request) -> Response:
        # The client library takes 50 ms and some megabytes, which a server that nobody scrapes does without.
        from orchestrator.server.metrics import page

        text, kind = page(self._service, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})
