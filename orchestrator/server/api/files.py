"""`/v1/files`: uploads streamed to disk, lists with cursors, contents with ranges."""

from __future__ import annotations

import os
import re
from pathlib import Path

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from orchestrator.clock import now
from orchestrator.server import multipart
from orchestrator.server.api.http import ApiError, as_json, is_whole, limit_of, missing, page, tenant_of
from orchestrator.server.records import FileRecord
from orchestrator.server.service import Service
from orchestrator.wire import File

DAY = 86_400


class Files:
    """The routes of files."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """What this part answers."""
        return [
            Route("/v1/files", self.create, methods=["POST"]),
            Route("/v1/files", self.list, methods=["GET"]),
            Route("/v1/files/{file_id}", self.retrieve, methods=["GET"]),
            Route("/v1/files/{file_id}", self.delete, methods=["DELETE"]),
            Route("/v1/files/{file_id}/content", self.content, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response:
        service = self._service
        file_id = f"file-{os.urandom(12).hex()}"
        path = service.new_file_path(file_id)
        try:
            upload = await multipart.receive(
                request.stream(), request.headers.get("content-type", ""), path, service.settings.max_file_bytes
            )
        except multipart.BadUpload as error:
            raise ApiError(400, f"Invalid upload: {error}.") from None
        except multipart.TooLarge:
            raise ApiError(
                413, f"The file is larger than the {service.settings.max_file_bytes} bytes maximum."
            ) from None
        except ClientDisconnect:
            return Response(status_code=400)
        try:
            file = _file_object(file_id, upload)
            service.records.add_file(file, str(path.relative_to(service.root)), tenant_of(request))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return as_json(file)

    async def list(self, request: Request) -> Response:
        limit = limit_of(request, 10_000, 10_000)
        query = request.query_params
        ascending = query.get("order", "desc") == "asc"
        found = self._service.records.files(
            tenant_of(request), query.get("after"), limit + 1, ascending=ascending, purpose=query.get("purpose")
        )
        return page(found, limit)

    def _record(self, request: Request) -> tuple[FileRecord, Path]:
        file_id = request.path_params["file_id"]
        found = self._service.records.file(file_id, tenant_of(request))
        if found is None:
            raise ApiError(404, f"No such File object: {file_id}", param="id")
        return found, self._service.root / found.path

    async def retrieve(self, request: Request) -> Response:
        return as_json(self._record(request)[0].file)

    async def delete(self, request: Request) -> Response:
        record, path = self._record(request)
        if self._service.is_in_use(record.file.id):
            raise ApiError(409, f"File {record.file.id} is the input of a batch that is still running.", retry=False)
        # Record first: a kill between the two leaves a file that nobody names, never a name without a file.
        self._service.records.delete_file(record.file.id)
        path.unlink(missing_ok=True)
        return as_json({"id": record.file.id, "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        record, path = self._record(request)
        if not path.is_file():
            raise ApiError(404, f"The content of {record.file.id} is gone.", param="id")
        return FileResponse(path, media_type="application/octet-stream", filename=record.file.filename)


def _file_object(file_id: str, upload: multipart.Upload) -> File:
    purpose = upload.fields.get("purpose")
    if not purpose:
        missing("purpose")
    filename = re.split(r"[/\\]", upload.filename or "upload")[-1] or "upload"
    if purpose == "batch" and not filename.endswith(".jsonl"):
        raise ApiError(400, "Invalid file format for Batch API. Must be .jsonl")
    created = int(now().timestamp())
    seconds = upload.fields.get("expires_after[seconds]") or upload.fields.get("expires_after.seconds")
    if seconds is not None and not is_whole(seconds, 3600, 30 * DAY):
        raise ApiError(400, "expires_after.seconds must be 3600 to 2592000.", param="expires_after.seconds")
    lifetime = int(seconds) if seconds else 30 * DAY if purpose == "batch" else None
    expires = None if lifetime is None else created + lifetime
    return File(file_id, upload.bytes, created, filename, purpose, expires)
