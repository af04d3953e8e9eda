"""Extensions of OpenAI's Batch API. Standard clients are unaffected."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from orchestrator.core.batch_api import Batch, BatchStatus, File
from orchestrator.server import ordered_results as merged
from orchestrator.server.api.access import limits_of, require_bytes, require_room
from orchestrator.server.api.batches import batch_object, batch_of
from orchestrator.server.api.content import content
from orchestrator.server.api.files import LONGEST_KEPT
from orchestrator.server.api.http import ApiError, as_json, is_whole, json_body, limit_of, tenant_of
from orchestrator.server.dispatch.torn_result_lines import bytes_of_lines
from orchestrator.server.records import BatchRecord
from orchestrator.server.service import Service
from orchestrator.server.unsuccessful_rows import CAUSES, copy_leftovers

EVENT_SECONDS = 0.5
KEEP_ALIVE_SECONDS = 15.0
STREAM_ROWS = 1000
JSONL = "application/jsonl"


class Extensions:
    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        return [
            Route("/v1/batches/{batch_id}/retry", self.retry, methods=["POST"]),
            Route("/v1/batches/{batch_id}/results", self.results, methods=["GET"]),
            Route("/v1/batches/{batch_id}/results.jsonl", self.all_results, methods=["GET"]),
            Route("/v1/batches/{batch_id}/events", self.events, methods=["GET"]),
            Route("/v1/batches/{batch_id}/{kind:str}", self.partial_results, methods=["GET"]),
        ]

    async def partial_results(self, request: Request) -> Response:
        """Return the lines of a batch's `output` or `error` file that are durable so far: all, or a range of
        bytes.
        """
        kind = request.path_params["kind"]
        batch = batch_of(self._service, request).batch
        if kind not in merged.KINDS:
            raise ApiError(404, f"Unknown request URL: {request.method} {request.url.path}.")
        self._require_kept(batch.output_file_id if kind == "output" else batch.error_file_id)
        size = self._durable(batch).get(kind)
        tag = f"{batch.id}-{kind}-{'whole' if size is None else size}"
        path = self._folder(batch) / f"{kind}.jsonl"
        try:
            return content(request, path, tag, f"{batch.id}_{kind}.jsonl", size)
        except FileNotFoundError:
            return Response(b"")

    async def results(self, request: Request) -> Response:
        """Return a page of the rows that have a result, in input order."""
        batch = batch_of(self._service, request).batch
        limit = limit_of(request, 100, 1000)
        after = request.query_params.get("after") or None
        page = await self._page(batch, after, limit)
        ids = [merged.custom_id_of(line) for line in (page.lines[:1] + page.lines[-1:])]
        return as_json(
            {
                "object": "list",
                "data": [msgspec.Raw(line) for line in page.lines],
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
                "has_more": page.has_more,
            }
        )

    async def all_results(self, request: Request) -> Response:
        """Stream every row that has a result as JSON lines, in input order."""
        batch = batch_of(self._service, request).batch
        first = await self._page(batch, None, STREAM_ROWS)
        return StreamingResponse(self._lines(batch, first), media_type=JSONL)

    async def _lines(self, batch: Batch, page: merged.ResultPage) -> AsyncIterator[bytes]:
        while page.lines:
            yield b"\n".join([*page.lines, b""])
            if not page.has_more:
                return
            page = await self._page(batch, page.position, STREAM_ROWS)

    async def _page(self, batch: Batch, after: str | int | None, limit: int) -> merged.ResultPage:
        # Before validation, and if validation failed, rows have neither results nor an order.
        if batch.status in (BatchStatus.VALIDATING, BatchStatus.FAILED):
            return merged.ResultPage([], 0, False)
        self._require_kept(batch.output_file_id, batch.error_file_id)
        given = self._service.records.file(batch.input_file_id)
        path = None if given is None else self._service.root / given.path
        source = merged.ResultSource(path, self._folder(batch), self._durable(batch))
        try:
            return await self._service.ordered_results.page(source, after, limit)
        except FileNotFoundError:
            raise ApiError(404, f"The results of the batch {batch.id} were deleted.", param="id") from None
        except merged.UnknownRow:
            message = f"The batch has no row with the custom_id '{after}'."
            raise ApiError(400, message, param="after", code="invalid_value") from None
        except merged.InputGone:
            message = (
                f"The input file {batch.input_file_id} was deleted, so the order of its rows is not known. "
                "The batch's output and error files have its results."
            )
            raise ApiError(409, message, retry=False) from None

    async def retry(self, request: Request) -> Response:
        """Create a batch of the rows that failed, expired or were cancelled."""
        service, old = self._service, batch_of(self._service, request)
        body = await json_body(request, may_be_empty=True)
        causes = _causes(body)
        _require_leftovers(old.batch)
        require_room(service, request)
        file_id = f"file-{os.urandom(12).hex()}"
        fields = {
            "input_file_id": file_id,
            "endpoint": old.batch.endpoint,
            "completion_window": body.get("completion_window", old.batch.completion_window),
            "metadata": old.batch.metadata,
        }
        batch = batch_object(fields, service.endpoints.all)
        options = msgspec.structs.replace(old.options, max_rows=limits_of(request).max_rows)
        await self._add_leftovers(request, old.batch, batch, causes)
        return as_json(service.batches.create(BatchRecord(batch, options, tenant_of(request))))

    async def _add_leftovers(self, request: Request, old: Batch, new: Batch, causes: list[str]) -> None:
        service = self._service
        source, errors = self._content(old.input_file_id), self._content(old.error_file_id)
        service.require_room()
        path = service.new_file_path(new.input_file_id)
        try:
            size = await asyncio.to_thread(copy_leftovers, source, errors, path, causes)
        except FileNotFoundError:
            raise _gone(f"{old.input_file_id} or {old.error_file_id}") from None
        try:
            # Other requests may have used up the room while the rows were copied.
            require_room(service, request)
            if not size:
                raise ApiError(400, f"The batch has no {' or '.join(causes)} rows: there is nothing to retry.")
            require_bytes(service, request, size)
            file = File(
                id=new.input_file_id,
                bytes=size,
                created_at=new.created_at,
                filename=f"{old.id}_retry.jsonl",
                purpose="batch",
                expires_at=new.created_at + LONGEST_KEPT,
            )
            service.records.add_file(file, str(path.relative_to(service.root)), tenant_of(request))
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def _content(self, file_id: str | None) -> Path:
        found = None if file_id is None else self._service.records.file(file_id)
        if found is None:
            raise _gone(str(file_id))
        return self._service.root / found.path

    async def events(self, request: Request) -> Response:
        """Stream Server-Sent Events until the batch ends. Sends the batch at once, and after each change of its
        status or counts.
        """
        batch = batch_of(self._service, request).batch
        last = request.headers.get("last-event-id", "0")
        number = int(last) if is_whole(last, 0, 10**9) else 0
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if request.method == "HEAD":
            return Response(headers=headers, media_type="text/event-stream")
        return StreamingResponse(self._events(batch.id, number), media_type="text/event-stream", headers=headers)

    async def _events(self, batch_id: str, number: int) -> AsyncIterator[bytes]:
        service, clock = self._service, asyncio.get_running_loop().time
        told, told_at = None, clock()
        while (found := service.batches.get(batch_id)) is not None:
            batch = found.batch
            if (batch.status, batch.request_counts) != told:
                told, told_at, number = (batch.status, batch.request_counts), clock(), number + 1
                data = msgspec.json.encode(batch)
                yield b"id: %d\nevent: batch.%b\ndata: %b\n\n" % (number, batch.status.value.encode(), data)
            elif clock() - told_at >= KEEP_ALIVE_SECONDS:
                told_at = clock()
                yield b": still here\n\n"
            if batch.status.is_final or service.ending.is_set():
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(service.ending.wait(), EVENT_SECONDS)

    def _folder(self, batch: Batch) -> Path:
        return self._service.root / "batches" / batch.id

    def _durable(self, batch: Batch) -> dict[str, int]:
        run = self._service.batches.runs.get(batch.id)
        if run is None:
            return {}
        told = {kind: run.durable_bytes(kind) for kind in merged.KINDS}
        # After a server's start, result files hold an earlier process's lines until the batch opens them.
        return {kind: bytes_of_lines(run.path(kind)) if size is None else size for kind, size in told.items()}

    def _require_kept(self, *file_ids: str | None) -> None:
        for file_id in file_ids:
            if file_id is not None and self._service.records.file(file_id) is None:
                raise ApiError(404, f"The file {file_id} of the batch was deleted.", param="id")


def _gone(file: str) -> ApiError:
    return ApiError(409, f"The rows to retry cannot be read: {file} was deleted.", retry=False)


def _causes(body: dict[str, Any]) -> list[str]:
    causes = body.get("only", list(CAUSES))
    if not isinstance(causes, list) or not causes or any(cause not in CAUSES for cause in causes):
        message = f"'only' must be a list of {', '.join(repr(cause) for cause in CAUSES)}."
        raise ApiError(400, message, param="only", code="invalid_value")
    return causes


def _require_leftovers(batch: Batch) -> None:
    if not batch.status.is_final:
        message = f"A batch with status '{batch.status}' cannot be retried: wait for its end, or cancel it."
        raise ApiError(409, message, retry=False)
    if batch.status is BatchStatus.FAILED:
        message = "None of the batch's rows ran, as its input is not valid. Correct the input and create a new batch."
        raise ApiError(409, message, retry=False)
    if batch.error_file_id is None:
        raise ApiError(400, "Every row of the batch succeeded: there is nothing to retry.")
