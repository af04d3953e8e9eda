"""Routes of the Batch API: HTTP in, wire objects out. Every error body is OpenAI's."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator import wire
from orchestrator.clock import now
from orchestrator.errors import OrchError, StorageError
from orchestrator.server import uploads
from orchestrator.server.service import Service
from orchestrator.wire import Batch, BatchStatus, ErrorObject, File

METADATA_PAIRS, METADATA_KEY, METADATA_VALUE = 16, 64, 512
DAY = 86_400


class ApiError(Exception):
    """An answer with an error body. `retry=False` tells OpenAI's clients not to try again."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry: bool = True
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = ErrorObject(message, "invalid_request_error" if status < 500 else "server_error", param, code)
        self.headers = {} if retry else {"x-should-retry": "false"}


def build(service: Service) -> Starlette:
    """The application around a service; the service opens and closes with it."""

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

    api = _Api(service)
    app = Starlette(
        lifespan=lifespan,
        routes=[
            Route("/v1/files", api.create_file, methods=["POST"]),
            Route("/v1/files", api.list_files, methods=["GET"]),
            Route("/v1/files/{file_id}", api.get_file, methods=["GET"]),
            Route("/v1/files/{file_id}", api.delete_file, methods=["DELETE"]),
            Route("/v1/files/{file_id}/content", api.file_content, methods=["GET"]),
            Route("/v1/batches", api.create_batch, methods=["POST"]),
            Route("/v1/batches", api.list_batches, methods=["GET"]),
            Route("/v1/batches/{batch_id}", api.get_batch, methods=["GET"]),
            Route("/v1/batches/{batch_id}/cancel", api.cancel_batch, methods=["POST"]),
            Route("/v1/batches/{batch_id}/{kind:str}", api.partial_results, methods=["GET"]),
            Route("/v1/models", api.list_models, methods=["GET"]),
            Route("/health", api.health, methods=["GET"]),
        ],
        exception_handlers={
            ApiError: _on_api_error,
            HTTPException: _on_http_error,
            StorageError: _on_storage_error,
            OSError: _on_storage_error,
            Exception: _on_surprise,
        },
    )
    app.add_middleware(_RequestIds)
    return app


class _RequestIds:
    """Gives every answer an `x-request-id`."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def with_id(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", b"req_" + os.urandom(12).hex().encode())]
            await send(message)

        await self._app(scope, receive, with_id if scope["type"] == "http" else send)


class _Api:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def create_file(self, request: Request) -> Response:
        service = self._service
        file_id = f"file-{os.urandom(12).hex()}"
        path = service.new_file_path(file_id)
        try:
            upload = await uploads.receive(
                request.stream(), request.headers.get("content-type", ""), path, service.max_file_bytes
            )
        except uploads.BadUpload as error:
            raise ApiError(400, f"Invalid upload: {error}.") from None
        except uploads.TooLarge:
            raise ApiError(413, f"The file is larger than the {service.max_file_bytes} bytes maximum.") from None
        except ClientDisconnect:
            return Response(status_code=400)
        try:
            file = _file_object(file_id, upload)
            service.records.add_file(file, str(path.relative_to(service.root)))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return _json(file)

    async def list_files(self, request: Request) -> Response:
        limit = _limit(request, 10_000, 10_000)
        ascending = request.query_params.get("order", "desc") == "asc"
        query = request.query_params
        found = self._service.records.files(
            query.get("after"), limit + 1, ascending=ascending, purpose=query.get("purpose")
        )
        return _page(found, limit)

    def _file(self, request: Request) -> tuple[File, Path]:
        file_id = request.path_params["file_id"]
        found = self._service.records.file(file_id)
        if found is None:
            raise ApiError(404, f"No such File object: {file_id}", param="id")
        return found[0], self._service.root / found[1]

    async def get_file(self, request: Request) -> Response:
        return _json(self._file(request)[0])

    async def delete_file(self, request: Request) -> Response:
        file, path = self._file(request)
        if self._service.is_in_use(file.id):
            raise ApiError(409, f"File {file.id} is the input of a batch that is still running.", retry=False)
        # Record first: a kill between the two leaves a file that nobody names, never a name without a file.
        self._service.records.delete_file(file.id)
        path.unlink(missing_ok=True)
        return _json({"id": file.id, "object": "file", "deleted": True})

    async def file_content(self, request: Request) -> Response:
        file, path = self._file(request)
        if not path.is_file():
            raise ApiError(404, f"The content of {file.id} is gone.", param="id")
        return FileResponse(path, media_type="application/octet-stream", filename=file.filename)

    async def create_batch(self, request: Request) -> Response:
        body = await _json_body(request)
        batch = _batch_object(body)
        provenance = body.get("include_provenance") is True
        return _json(self._service.batches.create(batch, provenance=provenance))

    async def list_batches(self, request: Request) -> Response:
        limit = _limit(request, 20, 100)
        found = self._service.records.batches(request.query_params.get("after"), limit + 1)
        return _page([self._service.batches.get(batch.id) or batch for batch in found], limit)

    def _batch(self, request: Request) -> Batch:
        batch_id = request.path_params["batch_id"]
        batch = self._service.batches.get(batch_id)
        if batch is None:
            raise ApiError(404, f"No batch found with id '{batch_id}'.")
        return batch

    async def get_batch(self, request: Request) -> Response:
        batch = self._batch(request)
        run = self._service.batches.runs.get(batch.id)
        if run is None:
            return _json(batch)
        return _json({**msgspec.to_builtins(batch), "upstream_seconds": run.upstream_seconds()})

    async def cancel_batch(self, request: Request) -> Response:
        batch = self._batch(request)
        if batch.status in (BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.FINALIZING):
            raise ApiError(409, f"Cannot cancel a batch with status '{batch.status}'.", retry=False)
        if not batch.status.is_final:
            self._service.batches.cancel(batch.id)
        return _json(self._batch(request))

    async def partial_results(self, request: Request) -> Response:
        """Extension: the durable lines of a running batch's `output` or `error` so far."""
        kind = request.path_params["kind"]
        batch = self._batch(request)
        if kind not in ("output", "error"):
            raise ApiError(404, f"Unknown request URL: GET {request.url.path}.")
        path = self._service.root / "batches" / batch.id / f"{kind}.jsonl"
        run = self._service.batches.runs.get(batch.id)
        if run is None:
            return FileResponse(path) if path.exists() else Response(b"")
        return StreamingResponse(_head(path, run.durable_bytes(kind)), media_type="application/octet-stream")

    async def list_models(self, request: Request) -> Response:
        names = sorted({model for upstream in self._service.upstreams for model in upstream.models})
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "upstream"} for name in names]
        return _json({"object": "list", "data": models})

    async def health(self, request: Request) -> Response:
        return _json(self._service.health())


def _file_object(file_id: str, upload: uploads.Upload) -> File:
    purpose = upload.fields.get("purpose")
    if not purpose:
        _missing("purpose")
    filename = re.split(r"[/\\]", upload.filename or "upload")[-1] or "upload"
    if purpose == "batch" and not filename.endswith(".jsonl"):
        raise ApiError(400, "Invalid file format for Batch API. Must be .jsonl")
    created = int(now().timestamp())
    seconds = upload.fields.get("expires_after[seconds]") or upload.fields.get("expires_after.seconds")
    if seconds is not None and not _is_whole(seconds, 3600, 30 * DAY):
        raise ApiError(400, "expires_after.seconds must be 3600 to 2592000.", param="expires_after.seconds")
    lifetime = int(seconds) if seconds else 30 * DAY if purpose == "batch" else None
    expires = None if lifetime is None else created + lifetime
    return File(file_id, upload.bytes, created, filename, purpose, expires)


def _batch_object(body: dict[str, Any]) -> Batch:
    for name in ("input_file_id", "endpoint", "completion_window"):
        if not body.get(name):
            _missing(name)
        if not isinstance(body[name], str):
            raise ApiError(400, f"Invalid type for '{name}': expected a string.", param=name, code="invalid_type")
    if body["endpoint"] not in wire.ENDPOINTS:
        supported = ", ".join(f"'{name}'" for name in wire.ENDPOINTS)
        message = f"Invalid value: '{body['endpoint']}'. Supported values are: {supported}."
        raise ApiError(400, message, param="endpoint", code="invalid_value")
    seconds = wire.window_seconds(body["completion_window"])
    if seconds is None:
        message = f"Invalid value: '{body['completion_window']}'. Use '24h', or a number with s, m, h or d."
        raise ApiError(400, message, param="completion_window", code="invalid_value")
    created = int(now().timestamp())
    return Batch(
        id=f"batch_{os.urandom(12).hex()}",
        endpoint=body["endpoint"],
        input_file_id=body["input_file_id"],
        completion_window=body["completion_window"],
        status=BatchStatus.VALIDATING,
        created_at=created,
        expires_at=created + seconds,
        metadata=_metadata(body.get("metadata")),
    )


def _metadata(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ApiError(400, "Invalid type for 'metadata': expected an object.", param="metadata", code="invalid_type")
    if len(value) > METADATA_PAIRS:
        raise ApiError(400, f"'metadata' may have at most {METADATA_PAIRS} pairs.", param="metadata")
    for key, text in value.items():
        param = f"metadata.{key}"
        if not isinstance(text, str):
            kind = "an array" if isinstance(text, list) else "an object" if isinstance(text, dict) else "another type"
            message = f"Invalid type for '{param}': expected a string, but got {kind} instead."
            raise ApiError(400, message, param=param, code="invalid_type")
        if len(key) > METADATA_KEY or len(text) > METADATA_VALUE:
            raise ApiError(400, f"'{param}' is too long (key {METADATA_KEY}, value {METADATA_VALUE}).", param=param)
    return value


def _missing(name: str) -> NoReturn:
    raise ApiError(400, f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")


async def _json_body(request: Request) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ApiError(400, "The body of the request is not valid JSON.") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body of the request must be a JSON object.")
    return body


def _limit(request: Request, default: int, most: int) -> int:
    text = request.query_params.get("limit", str(default))
    if not _is_whole(text, 1, most):
        raise ApiError(400, f"'limit' must be 1 to {most}.", param="limit", code="invalid_value")
    return int(text)


def _is_whole(text: str, least: int, most: int) -> bool:
    return text.isdecimal() and len(text) <= 10 and least <= int(text) <= most


def _page(found: list[Any], limit: int) -> Response:
    data = found[:limit]
    return _json(
        {
            "object": "list",
            "data": data,
            "first_id": data[0].id if data else None,
            "last_id": data[-1].id if data else None,
            "has_more": len(found) > limit,
        }
    )


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    response = _json({"error": error.error}, error.status)
    response.headers.update(error.headers)
    return response


def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = (
        f"Unknown request URL: {request.method} {request.url.path}." if error.status_code == 404 else error.detail
    )
    return _json({"error": ErrorObject(message)}, error.status_code)


def _on_storage_error(request: Request, error: Exception) -> Response:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    body = {"error": ErrorObject(f"The server cannot write: {reason}", "server_error", None, "storage")}
    response = _json(body, 507)
    response.headers["x-should-retry"] = "false"
    return response


def _on_surprise(request: Request, error: Exception) -> Response:
    return _json({"error": ErrorObject("The server made a mistake; its log tells which.", "server_error")}, 500)


def _head(path: Path, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file; what is behind them may be half a line."""
    with path.open("rb") as file:
        while size and (part := file.read(min(size, 1 << 18))):
            size -= len(part)
            yield part
