"""What OpenAI's Batch API does not have, and no standard client notices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator.server.api.batches import batch_of
from orchestrator.server.api.http import ApiError
from orchestrator.server.service import Service


class Extensions:
    """The routes of extensions."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """What this part answers."""
        return [Route("/v1/batches/{batch_id}/{kind:str}", self.partial_results, methods=["GET"])]

    async def partial_results(self, request: Request) -> Response:
        """The durable lines of a running batch's `output` or `error` so far."""
        kind = request.path_params["kind"]
        batch = batch_of(self._service, request).batch
        if kind not in ("output", "error"):
            raise ApiError(404, f"Unknown request URL: GET {request.url.path}.")
        path = self._service.root / "batches" / batch.id / f"{kind}.jsonl"
        run = self._service.batches.runs.get(batch.id)
        if run is None:
            return FileResponse(path) if path.exists() else Response(b"")
        return StreamingResponse(_head(path, run.durable_bytes(kind)), media_type="application/octet-stream")


def _head(path: Path, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file; what is behind them may be half a line."""
    with path.open("rb") as file:
        while size and (part := file.read(min(size, 1 << 18))):
            size -= len(part)
            yield part
