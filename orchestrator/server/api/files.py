"""`/v1/files`: uploads streamed to disk, lists with cursors, and downloads with ranges."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.core.batch_api import File
from orchestrator.core.clock import now
from orchestrator.server import multipart
from orchestrator.server.api.access import most_bytes, require_bytes
from orchestrator.server.api.content import content
from orchestrator.server.api.http import (
    ApiError,
    announced_size,
    as_json,
    is_whole,
    limit_of,
    missing,
    page,
    tenant_of,
)
from orchestrator.server.records import FileRecord
from orchestrator.server.service import Service

DAY = 86_400
SHORTEST_KEPT, LONGEST_KEPT = 3600, 30 * DAY
LONGEST_NAME = 255
OTHER_FORMATS = frozenset(
    [
        *(
            ".csv",
            ".doc",
            ".docx",
            ".gif",
            ".gz",
            ".htm",
            ".html",
            ".jpeg",
            ".jpg",
            ".md",
            ".mp3",
            ".parquet",
            ".pdf",
        ),
        *(".png", ".pptx", ".tar", ".tsv", ".txt", ".wav", ".webp", ".xls", ".xlsx", ".xml", ".yaml", ".yml", ".zip"),
    ]
)
PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")


class Files:
    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
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
        most = most_bytes(service, request)
        try:
            upload = await take_in(service, request, path, most)
        except multipart.TooLarge:
            require_bytes(service, request, most + 1)
            raise ApiError(
                413, f"The file is larger than the {service.settings.max_file_bytes} bytes maximum."
            ) from None
        try:
            require_bytes(service, request, upload.bytes)
            file = _file_object(file_id, upload)
            service.records.add_file(file, str(path.relative_to(service.root)), tenant_of(request))
            service.uploaded_bytes += upload.bytes
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return as_json(file)

    async def list(self, request: Request) -> Response:
        limit = limit_of(request, 10_000, 10_000)
        query = request.query_params
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise ApiError(400, "'order' must be 'asc' or 'desc'.", param="order", code="invalid_value")
        tenant, after = tenant_of(request), query.get("after") or None
        if after is not None and not self._service.records.knows_file(after, tenant):
            raise ApiError(400, f"'after' names no file: '{after[:100]}'.", param="after", code="invalid_value")
        found = self._service.records.files(
            tenant,
            after,
            limit + 1,
            ascending=order == "asc",
            purpose=query.get("purpose") or None,
            now=seconds_now(),
        )
        return page(found, limit)

    def _record(self, request: Request) -> tuple[FileRecord, Path]:
        file_id = request.path_params["file_id"]
        found = self._service.records.file(file_id, tenant_of(request))
        if found is None or (found.file.expires_at is not None and found.file.expires_at <= seconds_now()):
            raise ApiError(404, f"No such File object: {file_id}", param="id")
        return found, self._service.root / found.path

    async def retrieve(self, request: Request) -> Response:
        return as_json(self._record(request)[0].file)

    async def delete(self, request: Request) -> Response:
        record, path = self._record(request)
        if self._service.batches.reads(record.file.id):
            raise ApiError(409, f"File {record.file.id} is the input of a batch that is still running.", retry=False)
        # Delete the record first: a kill in between leaves a file without a record, never a record without a file.
        self._service.records.delete_file(record.file.id)
        path.unlink(missing_ok=True)
        self._service.upkeep.note_removed(record.path)
        return as_json({"id": record.file.id, "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        record, path = self._record(request)
        try:
            return content(request, path, record.file.id, record.file.filename)
        except FileNotFoundError:
            raise ApiError(404, f"The content of {record.file.id} is gone.", param="id") from None


async def take_in(
    service: Service, request: Request, path: Path, most: int, part: str = "file"
) -> multipart.FormUpload:
    """Store the file of the request's form durably at `path`, at most `most` bytes.

    Checks the announced length before reading the body. Raises ApiError, TooLarge, OSError or StorageError. After an
    error, no file is left at `path`.
    """
    announced = announced_size(request) or 0
    if announced > most + multipart.MAX_OTHER_BYTES:
        raise multipart.TooLarge
    service.require_room(announced)
    kind = request.headers.get("content-type", "")
    try:
        with service.rooms.blocks.passing():
            return await multipart.receive(
                request.stream(), kind, path, most, part=part, room=service.require_room, blocks=service.rooms.blocks
            )
    except multipart.NoFile:
        missing(part)
    except multipart.BadUpload as error:
        raise ApiError(400, f"Invalid upload: {error}.") from None
    except ClientDisconnect:
        raise ApiError(400, "The connection ended before the upload did.") from None


def seconds_now() -> int:
    """Return the time in whole seconds since 1970, as in OpenAI's objects."""
    return int(now().timestamp())


def checked_name(filename: str) -> str:
    """Return a file's name without folders and control characters. A name that is too long is cut at its start. An
    empty name becomes `upload`.
    """
    name = re.sub(r"[\x00-\x1f\x7f-\x9f]", "", re.split(r"[/\\]", filename)[-1])
    return name[-LONGEST_NAME:] or "upload"


def check_purpose(purpose: str, filename: str) -> None:
    """Raise ApiError 400 for an unknown purpose, or for batch input whose suffix names another format.

    A name without a suffix is accepted. Clients that send bytes have no suffix; OpenAI's client sends `upload`.
    """
    if purpose not in PURPOSES:
        supported = ", ".join(f"'{name}'" for name in PURPOSES)
        message = f"Invalid value: '{purpose[:100]}'. Supported values are: {supported}."
        raise ApiError(400, message, param="purpose", code="invalid_value")
    if purpose == "batch" and PurePath(filename).suffix.lower() in OTHER_FORMATS:
        raise ApiError(400, "Invalid file format for Batch API. Must be .jsonl")


def lifetime(purpose: str, anchor: Any, seconds: Any) -> int | None:
    """Return the seconds to keep a file, from `expires_after` or from its purpose; None to keep it forever."""
    if anchor is None and seconds is None:
        return 30 * DAY if purpose == "batch" else None
    if anchor not in (None, "created_at"):
        message = "expires_after.anchor must be 'created_at'."
        raise ApiError(400, message, param="expires_after.anchor", code="invalid_value")
    if seconds is None:
        missing("expires_after.seconds")
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not SHORTEST_KEPT <= seconds <= LONGEST_KEPT:
        message = f"expires_after.seconds must be {SHORTEST_KEPT} to {LONGEST_KEPT}."
        raise ApiError(400, message, param="expires_after.seconds", code="invalid_value")
    return seconds


def _file_object(file_id: str, upload: multipart.FormUpload) -> File:
    fields = upload.fields
    purpose = fields.get("purpose")
    if not purpose:
        missing("purpose")
    filename = checked_name(upload.filename or "upload")
    check_purpose(purpose, filename)
    anchor, text = (
        fields.get(f"expires_after[{name}]", fields.get(f"expires_after.{name}")) for name in ("anchor", "seconds")
    )
    seconds = int(text) if text is not None and is_whole(text, 0, LONGEST_KEPT) else text
    kept = lifetime(purpose, anchor, seconds)
    created = seconds_now()
    return File(file_id, upload.bytes, created, filename, purpose, None if kept is None else created + kept)
