"""`/v1/batches`: create, list, retrieve and cancel, as in OpenAI's API."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from types import NoneType
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.core.batch_api import Batch, BatchStatus
from orchestrator.core.clock import now
from orchestrator.core.durations import window_seconds
from orchestrator.server.api.access import limits_of, require_room
from orchestrator.server.api.http import ApiError, as_json, json_body, limit_of, missing, page, tenant_of
from orchestrator.server.endpoints import FORMS
from orchestrator.server.records import BatchOptions, BatchRecord
from orchestrator.server.service import Service

METADATA_PAIRS, METADATA_KEY, METADATA_VALUE = 16, 64, 512
RETRY_SECONDS = 5
SHORTEST_KEPT, LONGEST_KEPT = 3600, 30 * 86_400
JSON_KINDS = {
    list: "an array",
    dict: "an object",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    NoneType: "null",
}
"""JSON type names used in OpenAI's errors about a value that should be a string."""


class BatchRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        return [
            Route("/v1/batches", self.create, methods=["POST"]),
            Route("/v1/batches", self.list, methods=["GET"]),
            Route("/v1/batches/{batch_id}", self.retrieve, methods=["GET"]),
            Route("/v1/batches/{batch_id}/cancel", self.cancel, methods=["POST"]),
        ]

    async def create(self, request: Request) -> Response:
        body = await json_body(request)
        batch = batch_object(body, await self._endpoints_for(body.get("endpoint")))
        options = msgspec.structs.replace(_options(body), max_rows=limits_of(request).max_rows)
        record = BatchRecord(batch, options, tenant_of(request))
        require_room(self._service, request)
        self._service.require_room()
        return as_json(self._service.batches.create(record))

    async def _endpoints_for(self, named: object) -> tuple[str, ...]:
        """Return the paths that a new batch may name. Raises ApiError 503 if the answer depends on upstreams that do
        not respond.
        """
        endpoints = self._service.endpoints
        if not isinstance(named, str) or not endpoints.is_optional(named):
            return endpoints.for_batches(())
        upstreams = self._service.upstreams
        offers = await asyncio.gather(*(upstream.offered_paths() for upstream in upstreams))
        found = endpoints.for_batches(path for offer in offers for path in offer or ())
        silent = [upstream.shown for upstream, offer in zip(upstreams, offers, strict=True) if offer is None]
        if silent and not {named, f"/v1{named}"} & {*found}:
            message = f"Whether '{named}' is offered is unknown now: {', '.join(silent)} did not list its paths."
            raise ApiError(503, message, param="endpoint", code="endpoint_unknown", after=RETRY_SECONDS)
        return found

    async def list(self, request: Request) -> Response:
        limit = limit_of(request, 20, 100)
        tenant, after = tenant_of(request), request.query_params.get("after") or None
        if after is not None and self._service.records.batch(after, tenant) is None:
            raise ApiError(400, f"'after' names no batch: '{after[:100]}'.", param="after", code="invalid_value")
        found = self._service.records.batches(tenant, after, limit + 1)
        batches = self._service.batches
        await batches.counts_known(batch.id for batch in found)
        return page(
            [batches.runs[batch.id].counted() if batch.id in batches.runs else batch for batch in found], limit
        )

    async def retrieve(self, request: Request) -> Response:
        await self._service.batches.counts_known([request.path_params["batch_id"]])
        batch = batch_of(self._service, request).batch
        run = self._service.batches.runs.get(batch.id)
        if run is None:
            return as_json(batch)
        more = {"upstream_seconds": run.upstream_seconds(), "row_order": run.row_order}
        return as_json({**msgspec.to_builtins(batch), **more})

    async def cancel(self, request: Request) -> Response:
        batch = batch_of(self._service, request).batch
        if batch.status in (BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED):
            raise ApiError(409, f"Cannot cancel a batch with status '{batch.status}'.", retry=False)
        if not batch.status.is_final:
            self._service.batches.cancel(batch.id)
        return as_json(batch_of(self._service, request).batch)


def batch_of(service: Service, request: Request) -> BatchRecord:
    """Return the batch named in the request's path. Raises ApiError 404 if the batch is unknown or belongs to another
    tenant.
    """
    batch_id = request.path_params["batch_id"]
    found = service.batches.get(batch_id, tenant_of(request))
    if found is None:
        raise ApiError(404, f"No batch found with id '{batch_id}'.")
    return found


def batch_object(body: dict[str, Any], endpoints: Collection[str]) -> Batch:
    """Build a new batch from the body of a create call. Raises ApiError 400."""
    for name in ("input_file_id", "endpoint", "completion_window"):
        if not body.get(name):
            missing(name)
        if not isinstance(body[name], str):
            raise ApiError(400, f"Invalid type for '{name}': expected a string.", param=name, code="invalid_type")
    endpoint = body["endpoint"]
    if endpoint not in endpoints and f"/v1{endpoint}" in {*endpoints, *FORMS}:
        endpoint = f"/v1{endpoint}"  # Azure's clients omit the /v1
    if endpoint in FORMS:
        message = f"'{endpoint}' takes or gives a file, which no line of a batch can hold: send it synchronously."
        raise ApiError(400, message, param="endpoint", code="invalid_value")
    if endpoint not in endpoints:
        supported = ", ".join(f"'{name}'" for name in endpoints)
        message = f"Invalid value: '{body['endpoint']}'. Supported values are: {supported}."
        raise ApiError(400, message, param="endpoint", code="invalid_value")
    seconds = window_seconds(body["completion_window"])
    if seconds is None:
        message = f"Invalid value: '{body['completion_window']}'. Use '24h', or a number with s, m, h or d."
        raise ApiError(400, message, param="completion_window", code="invalid_value")
    created = int(now().timestamp())
    return Batch(
        id=f"batch_{os.urandom(12).hex()}",
        endpoint=endpoint,
        input_file_id=body["input_file_id"],
        completion_window=body["completion_window"],
        status=BatchStatus.VALIDATING,
        created_at=created,
        expires_at=created + seconds,
        metadata=_metadata(body.get("metadata")),
    )


def _options(body: dict[str, Any]) -> BatchOptions:
    order = body.get("order", "prefix")
    if order not in ("prefix", "input"):
        raise ApiError(400, "'order' must be 'prefix' or 'input'.", param="order", code="invalid_value")
    return BatchOptions(
        provenance=body.get("include_provenance") is True,
        in_order=order == "input",
        output_seconds=_kept_seconds(body.get("output_expires_after")),
    )


def _kept_seconds(value: Any) -> int | None:
    if value is None:
        return None
    param = "output_expires_after"
    if not isinstance(value, dict) or value.get("anchor") != "created_at":
        raise ApiError(
            400,
            f"'{param}' must be an object with anchor 'created_at'.",
            param=f"{param}.anchor",
            code="invalid_value",
        )
    seconds = value.get("seconds")
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not SHORTEST_KEPT <= seconds <= LONGEST_KEPT:
        raise ApiError(
            400,
            f"'{param}.seconds' must be {SHORTEST_KEPT} to {LONGEST_KEPT}.",
            param=f"{param}.seconds",
            code="invalid_value",
        )
    return seconds


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
            message = f"Invalid type for '{param}': expected a string, but got {JSON_KINDS[type(text)]} instead."
            raise ApiError(400, message, param=param, code="invalid_type")
        if len(key) > METADATA_KEY or len(text) > METADATA_VALUE:
            raise ApiError(400, f"'{param}' is too long (key {METADATA_KEY}, value {METADATA_VALUE}).", param=param)
    return value
