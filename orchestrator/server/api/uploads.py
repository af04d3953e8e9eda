"""`/v1/uploads`: large files in parts, which may arrive in parallel and are joined at the end."""

from __future__ import annotations

import os
import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.core.batch_api import File, Upload, UploadPart, UploadStatus
from orchestrator.server import multipart
from orchestrator.server.api.access import require_bytes
from orchestrator.server.api.files import check_purpose, checked_name, lifetime, seconds_now, take_in
from orchestrator.server.api.http import ApiError, as_json, json_body, missing, tenant_of
from orchestrator.server.service import Service
from orchestrator.server.uploads import (
    LIFETIME_SECONDS,
    MAX_PART_BYTES,
    MAX_UPLOAD_BYTES,
    BadParts,
    UploadRecord,
)


class UploadRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        return [
            Route("/v1/uploads", self.create, methods=["POST"]),
            Route("/v1/uploads/{upload_id}/parts", self.add_part, methods=["POST"]),
            Route("/v1/uploads/{upload_id}/complete", self.complete, methods=["POST"]),
            Route("/v1/uploads/{upload_id}/cancel", self.cancel, methods=["POST"]),
        ]

    async def create(self, request: Request) -> Response:
        record = _record_of(await json_body(request), tenant_of(request))
        require_bytes(self._service, request, record.upload.bytes)
        self._service.require_room(record.upload.bytes)
        self._service.uploads.add(record)
        return as_json(record.upload)

    async def add_part(self, request: Request) -> Response:
        service = self._service
        upload = _pending(self._record(request)).upload
        require_bytes(service, request, 1)
        most = min(MAX_PART_BYTES, MAX_UPLOAD_BYTES - service.uploads.received(upload.id))
        part_id = f"part_{os.urandom(12).hex()}"
        path = service.uploads.new_part_path(part_id)
        try:
            form = await take_in(service, request, path, most, "data")
        except multipart.TooLarge:
            raise ApiError(413, f"The part is larger than the {most} bytes maximum.") from None
        part = UploadPart(part_id, seconds_now(), upload.id)
        try:
            require_bytes(service, request, form.bytes)
            if not service.uploads.add_part(part, form.bytes, path):
                _pending(self._record(request))
                raise _no_such_upload(upload.id)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return as_json(part)

    async def complete(self, request: Request) -> Response:
        service = self._service
        body = await json_body(request)
        part_ids, md5 = _part_ids(body), _md5(body)
        async with service.uploads.lock(request.path_params["upload_id"]):
            record = self._record(request)
            if record.upload.status is UploadStatus.COMPLETED:
                # Clients repeat a call whose answer they did not get.
                return as_json(record.upload)
            upload = _pending(record).upload
            service.require_room(upload.bytes)
            file = _file_of(record)
            path = service.new_file_path(file.id)
            try:
                done = await service.uploads.complete(record, part_ids, md5, file, path)
            except BadParts as error:
                raise ApiError(400, f"The upload cannot be completed: {error}.") from None
            service.uploaded_bytes += upload.bytes
            return as_json(done)

    async def cancel(self, request: Request) -> Response:
        async with self._service.uploads.lock(request.path_params["upload_id"]):
            record = self._record(request)
            if record.upload.status is UploadStatus.CANCELLED:
                return as_json(record.upload)
            return as_json(await self._service.uploads.cancel(_pending(record).upload))

    def _record(self, request: Request) -> UploadRecord:
        upload_id = request.path_params["upload_id"]
        found = self._service.uploads.get(upload_id, tenant_of(request), seconds_now())
        if found is None:
            raise _no_such_upload(upload_id)
        return found


def _no_such_upload(upload_id: str) -> ApiError:
    return ApiError(404, f"No such Upload object: {upload_id}", param="id")


def _pending(record: UploadRecord) -> UploadRecord:
    upload = record.upload
    if upload.status is not UploadStatus.PENDING:
        raise ApiError(409, f"The upload {upload.id} is not pending: its status is '{upload.status}'.", retry=False)
    return record


def _record_of(body: dict[str, Any], tenant: str) -> UploadRecord:
    for name in ("bytes", "filename", "mime_type", "purpose"):
        if body.get(name) is None or body[name] == "":
            missing(name)
        if name != "bytes" and not isinstance(body[name], str):
            raise ApiError(400, f"Invalid type for '{name}': expected a string.", param=name, code="invalid_type")
    size = body["bytes"]
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_UPLOAD_BYTES:
        message = f"'bytes' must be a whole number from 1 to {MAX_UPLOAD_BYTES}."
        raise ApiError(400, message, param="bytes", code="invalid_value")
    filename, purpose, expires = checked_name(body["filename"]), body["purpose"], body.get("expires_after")
    check_purpose(purpose, filename)
    if expires is None:
        kept = lifetime(purpose, None, None)
    elif not isinstance(expires, dict):
        message = "Invalid type for 'expires_after': expected an object."
        raise ApiError(400, message, param="expires_after", code="invalid_type")
    else:
        kept = lifetime(purpose, expires.get("anchor", ""), expires.get("seconds"))
    created = seconds_now()
    upload = Upload(
        id=f"upload_{os.urandom(12).hex()}",
        bytes=size,
        created_at=created,
        filename=filename,
        purpose=purpose,
        status=UploadStatus.PENDING,
        expires_at=created + LIFETIME_SECONDS,
    )
    return UploadRecord(upload, tenant, kept)


def _file_of(record: UploadRecord) -> File:
    upload, created = record.upload, seconds_now()
    expires = None if record.file_seconds is None else created + record.file_seconds
    return File(f"file-{os.urandom(12).hex()}", upload.bytes, created, upload.filename, upload.purpose, expires)


def _part_ids(body: dict[str, Any]) -> list[str]:
    part_ids = body.get("part_ids")
    if part_ids is None:
        missing("part_ids")
    if not isinstance(part_ids, list) or not part_ids or not all(isinstance(part_id, str) for part_id in part_ids):
        message = "'part_ids' must be a list of the ids of parts."
        raise ApiError(400, message, param="part_ids", code="invalid_type")
    return part_ids


def _md5(body: dict[str, Any]) -> str | None:
    md5 = body.get("md5")
    if md5 is not None and not (isinstance(md5, str) and re.fullmatch("[0-9a-fA-F]{32}", md5)):
        raise ApiError(400, "'md5' must be 32 hexadecimal digits.", param="md5", code="invalid_value")
    return md5
