"""The server's OpenAPI description, `/openapi.json`, built from a table of its routes and the wire types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.core import batch_api
from orchestrator.core.batch_api import Batch, ErrorObject, File, Upload, UploadPart
from orchestrator.core.version import __version__
from orchestrator.server.api.access import OPEN_PATHS
from orchestrator.server.api.files import PURPOSES
from orchestrator.server.api.http import as_json
from orchestrator.server.endpoints import KNOWN
from orchestrator.server.service import Service
from orchestrator.server.uploads import MAX_UPLOAD_BYTES

JSON = "application/json"
FORM = "multipart/form-data"
BYTES = "application/octet-stream"
JSONL = "application/jsonl"
EVENTS = "text/event-stream"
TEXT = "text/plain"
T = TypeVar("T")


class Error(msgspec.Struct):
    """The body of every answer with status 400 or above."""

    error: ErrorObject


class ListPage(msgspec.Struct, Generic[T]):
    """A page of a list; request the next page with `after=last_id`."""

    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class Deleted(msgspec.Struct):
    """The answer to a file's deletion."""

    id: str
    deleted: Literal[True] = True
    object: Literal["file"] = "file"


class ExpiresAfter(msgspec.Struct):
    """How long a file is kept, counted from its creation."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)]


Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]]


class NewBatch(msgspec.Struct):
    """A request for a new batch; `order` and `include_provenance` are extensions."""

    input_file_id: Annotated[str, Meta(min_length=1)]
    endpoint: Annotated[
        str, Meta(description="A path of the upstreams.", examples=list(batch_api.ENDPOINTS), min_length=1)
    ]
    completion_window: Annotated[
        str, Meta(pattern="^[1-9][0-9]{0,6}[smhd]$", description="`24h`, or any number with s, m, h or d.")
    ]
    metadata: Annotated[Metadata, Meta(max_length=16)] | UnsetType | None = UNSET
    output_expires_after: ExpiresAfter | UnsetType | None = UNSET
    order: Literal["prefix", "input"] | UnsetType = UNSET
    include_provenance: bool | UnsetType = UNSET


class Retry(msgspec.Struct):
    """Selects the rows of an ended batch to put into a new batch. Without a body: all rows that have no good
    answer.
    """

    only: Annotated[list[Literal["failed", "expired", "cancelled"]], Meta(min_length=1)] | UnsetType = UNSET
    completion_window: Annotated[str, Meta(pattern="^[1-9][0-9]{0,6}[smhd]$")] | UnsetType = UNSET


class NewUpload(msgspec.Struct):
    """A large file that will be uploaded in parts."""

    bytes: Annotated[int, Meta(ge=1, le=MAX_UPLOAD_BYTES)]
    filename: Annotated[str, Meta(min_length=1)]
    mime_type: Annotated[str, Meta(min_length=1)]
    purpose: Annotated[str, Meta(extra_json_schema={"enum": [*PURPOSES]})]
    expires_after: ExpiresAfter | UnsetType | None = UNSET


class Complete(msgspec.Struct):
    """The parts of an upload, in file order."""

    part_ids: Annotated[list[str], Meta(min_length=1)]
    md5: str | UnsetType | None = UNSET


class Model(msgspec.Struct):
    """A model of an upstream, with any further fields that the upstream states."""

    id: str
    created: int
    owned_by: str
    object: Literal["model"] = "model"


class Models(msgspec.Struct):
    """The models of all upstreams."""

    data: list[Model]
    object: Literal["list"] = "list"


class Health(msgspec.Struct):
    """The state of the server; `problem` is a sentence."""

    status: Literal["ok", "storage", "broken"]
    problem: str | None
    running_batches: int
    upstreams: list[dict[str, Any]]
    replica: dict[str, Any] | None


class Ready(msgspec.Struct):
    """Readiness for work, with the reasons if the server is not ready."""

    status: Literal["ready", "not ready"]
    reasons: list[str]


class ResultRow(msgspec.Struct):
    """A line of an output or error file: exactly one of `response` and `error` is not null."""

    id: str
    custom_id: str
    response: dict[str, Any] | None
    error: dict[str, Any] | None


FILE_FORM = {
    "type": "object",
    "required": ["purpose", "file"],
    "properties": {
        "purpose": {"type": "string", "enum": [*PURPOSES]},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
        "file": {"type": "string", "format": "binary", "description": "For purpose `batch`, lines of JSON."},
    },
}
PART_FORM = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "format": "binary", "description": "At most 64 MiB."}},
}
PASSED_ON = {"type": "object", "description": "As the upstream takes it; passed on byte for byte."}

AFTER = {"name": "after", "in": "query", "schema": {"type": "string"}, "description": "`last_id` of the page before."}
PURPOSE = {"name": "purpose", "in": "query", "schema": {"type": "string"}}
ORDER = {"name": "order", "in": "query", "schema": {"type": "string", "enum": ["asc", "desc"], "default": "desc"}}
RANGE = {
    "name": "Range",
    "in": "header",
    "schema": {
        "type": "string",
        "pattern": "^bytes=([0-9]{1,9}-[0-9]{0,9}|-[0-9]{1,9})$",
        "examples": ["bytes=0-99"],
    },
}
LAST_EVENT = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}}


def _limit(default: int, most: int) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
    return {"name": "limit", "in": "query", "schema": schema}


class Operation(Struct, frozen=True):
    """One route: its request (a type, a form or a plain schema) and its answer (a type or a media type).

    Status 401 is not listed per route. If keys are required, every path outside OPEN_PATHS may answer 401.
    """

    method: str
    path: str
    summary: str
    answers: Any
    takes: Any = None
    must: bool = True
    asks: tuple[dict[str, Any], ...] = ()
    refuses: tuple[int, ...] = ()
    also: tuple[int, ...] = ()
    """Statuses other than 200 whose answer has the same type."""


_FILE, _BATCH, _UPLOAD = "/v1/files/{file_id}", "/v1/batches/{batch_id}", "/v1/uploads/{upload_id}"
_IN = (400, 413, 429, 507)
OPERATIONS = (
    Operation("POST", "/v1/files", "Upload a file", File, FILE_FORM, refuses=_IN),
    Operation("GET", "/v1/files", "List files", ListPage[File], asks=(AFTER, _limit(10_000, 10_000), ORDER, PURPOSE),
              refuses=(400,)),
    Operation("GET", _FILE, "Retrieve a file", File, refuses=(404,)),
    Operation("DELETE", _FILE, "Delete a file", Deleted, refuses=(404, 409, 507)),
    Operation("GET", f"{_FILE}/content", "Download a file, whole or in ranges", BYTES, asks=(RANGE,),
              refuses=(400, 404, 416), also=(206,)),
    Operation("POST", "/v1/uploads", "Begin the upload of a large file", Upload, NewUpload, refuses=_IN),
    Operation("POST", f"{_UPLOAD}/parts", "Add a part to an upload", UploadPart, PART_FORM,
              refuses=(*_IN, 404, 409)),
    Operation("POST", f"{_UPLOAD}/complete", "Make a file of an upload's parts", Upload, Complete,
              refuses=(*_IN, 404, 409)),
    Operation("POST", f"{_UPLOAD}/cancel", "Drop an upload", Upload, refuses=(404, 409, 507)),
    Operation("POST", "/v1/batches", "Create a batch", Batch, NewBatch, refuses=_IN),
    Operation("GET", "/v1/batches", "List batches, newest first", ListPage[Batch], asks=(AFTER, _limit(20, 100)),
              refuses=(400,)),
    Operation("GET", _BATCH, "Retrieve a batch", Batch, refuses=(404,)),
    Operation("POST", f"{_BATCH}/cancel", "Cancel a batch", Batch, refuses=(404, 409, 507)),
    Operation("POST", f"{_BATCH}/retry", "A new batch of the rows without a good answer", Batch, Retry, must=False,
              refuses=(*_IN, 404, 409)),
    Operation("GET", f"{_BATCH}/results", "A page of results in the order of the input", ListPage[ResultRow],
              asks=(AFTER, _limit(100, 1000)), refuses=(400, 404, 409, 507)),
    Operation("GET", f"{_BATCH}/results.jsonl", "All results in the order of the input", JSONL,
              refuses=(404, 409, 507)),
    Operation("GET", f"{_BATCH}/events", "Server-Sent Events: the batch at every change, until its end", EVENTS,
              asks=(LAST_EVENT,), refuses=(404,)),
    Operation("GET", f"{_BATCH}/output", "The output file of a batch, which may still run", BYTES, asks=(RANGE,),
              refuses=(404, 416), also=(206,)),
    Operation("GET", f"{_BATCH}/error", "The error file of a batch, which may still run", BYTES, asks=(RANGE,),
              refuses=(404, 416), also=(206,)),
    Operation("GET", "/v1/models", "List the upstreams' models", Models),
    Operation("GET", "/v1/models/{model}", "Retrieve a model", Model, refuses=(404,)),
    Operation("GET", "/health", "The state of the server and its upstreams", Health),
    Operation("GET", "/ready", "Whether the server can take work", Ready, also=(503,)),
    Operation("GET", "/metrics", "Counters and gauges for Prometheus", TEXT),
    Operation("GET", "/openapi.json", "This description", JSON),
)  # fmt: skip


def _passed(path: str) -> Operation:
    about = "Passed to an upstream ahead of batch rows; its answer is passed back"
    return Operation("POST", path, about, JSON, PASSED_ON, refuses=(400, 404, 408, 413, 422, 429, 500, 502, 503, 504))


SAID = {
    206: "The part that was asked for.",
    400: "The request is not valid.",
    401: "The API key is missing, unknown or revoked.",
    404: "Not found, or owned by another tenant.",
    408: "The request did not come in time.",
    409: "Not in this state; trying again would not help.",
    413: "Too large.",
    416: "No such range.",
    422: "The upstream does not understand it.",
    429: "A limit is reached; `Retry-After` says when to try again.",
    500: "The upstream failed.",
    502: "The upstream broke off.",
    503: "Not now.",
    504: "The upstream did not answer in time.",
    507: "The disk is full: nothing was accepted.",
}


class Description:
    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        return [Route("/openapi.json", self.openapi, methods=["GET"])]

    async def openapi(self, request: Request) -> Response:
        return as_json(description(self._service.endpoints.all))


@cache
def description(endpoints: frozenset[str] = KNOWN) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description as JSON values. `endpoints` are the paths passed on to upstreams."""
    operations = (*OPERATIONS, *map(_passed, sorted(endpoints)))
    asked = _schemas({operation.takes for operation in operations if _is_type(operation.takes)})
    answered = _schemas({Error, *(operation.answers for operation in operations if _is_type(operation.answers))})
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "orch serve",
            "version": __version__,
            "description": "OpenAI's Batch API in front of any endpoint that speaks OpenAI's protocol.",
        },
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": {**asked, **{name: _whole(schema) for name, schema in answered.items()}},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _is_type(value: Any) -> bool:
    return value is not None and not isinstance(value, str | dict)


def _schemas(types: set[Any]) -> dict[str, Any]:
    found = msgspec.json.schema_components(sorted(types, key=str), ref_template="#/components/schemas/{name}")
    return found[1]


def _whole(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an answer, with every key required and `object` constant."""
    if "properties" not in schema:
        return schema
    properties = {}
    for name, value in schema["properties"].items():
        kind = {"const": value["default"]} if name == "object" and "default" in value else {}
        properties[name] = {**{key: part for key, part in value.items() if key != "default"}, **kind}
    return {**schema, "properties": properties, "required": list(properties)}


def _operation(operation: Operation) -> dict[str, Any]:
    named = re.findall(r"{(\w+)}", operation.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named]
    found: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{operation.method.lower()}{operation.path}").strip("_"),
        "summary": operation.summary,
        "parameters": [*parameters, *operation.asks],
        "responses": {str(status): answer for status, answer in _answers(operation)},
    }
    if operation.takes is not None:
        media = FORM if operation.takes in (FILE_FORM, PART_FORM) else JSON
        found["requestBody"] = {"required": operation.must, "content": {media: {"schema": _schema(operation.takes)}}}
    return found


def _answers(operation: Operation) -> Iterator[tuple[int, dict[str, Any]]]:
    media = operation.answers if isinstance(operation.answers, str) else JSON
    good = {media: {"schema": _schema(operation.answers)}}
    yield 200, {"description": operation.summary + ".", "content": good}
    for status in operation.also:
        yield status, {"description": SAID[status], "content": good}
    key = () if operation.path in OPEN_PATHS else (401,)
    for status in sorted({*operation.refuses, *key}):
        schema = _schema(JSON if operation.takes is PASSED_ON else Error)
        yield status, {"description": SAID[status], "content": {JSON: {"schema": schema}}}


def _schema(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, str):
        return {"type": "object"} if value == JSON else {}
    (reference,), _ = msgspec.json.schema_components([value], ref_template="#/components/schemas/{name}")
    return dict(reference)
