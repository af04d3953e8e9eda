"""Shared parts of the routes: errors in OpenAI's form, JSON bodies, and list pages."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from orchestrator.core.batch_api import JSON_ERRORS, ErrorObject
from orchestrator.server.memory_limits import NoSpace, RoomFull, Rooms, RoomShare

log = logging.getLogger(__name__)

MAX_JSON_BYTES = 1024 * 1024
BUSY_SECONDS = 5


class ApiError(Exception):
    """Raised to answer with an error body. With `retry=False`, OpenAI's clients do not retry. `after` is the
    `Retry-After` in seconds.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry: bool = True,
        after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = ErrorObject(message, "invalid_request_error" if status < 500 else "server_error", param, code)
        self.headers = {} if retry else {"x-should-retry": "false"}
        if after is not None:
            self.headers["retry-after"] = str(after)


def tenant_of(request: Request) -> str:
    """Return the tenant of a request; "" if keys are not in use."""
    tenant: str = request.scope.get("tenant", "")
    return tenant


def missing(name: str) -> NoReturn:
    raise ApiError(400, f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")


class BodyInMemory:
    """A request's body, with its share of the memory room while it is in memory."""

    def __init__(self, content: bytes, place: RoomShare) -> None:
        self.content = content
        self._place = place
        self._place.give_back(keep=len(content))

    def drop(self) -> None:
        """Free the body's memory. A second call changes nothing."""
        self.content = b""
        self._place.give_back()


async def read_body(request: Request, most: int) -> BodyInMemory:
    """Read the request's body, at most `most` bytes, once there is memory room for it.

    Raises ApiError 413 if the body is larger, 429 if there is no room, and 400 if the client disconnects.
    """
    announced = announced_size(request)
    if announced is not None and announced > most:
        _too_large(most)
    size = most if announced is None else announced
    rooms: Rooms = request.app.state.service.rooms
    try:
        place = await rooms.for_body(size).take(tenant_of(request), size)
    except RoomFull:
        message = "The server is busy with other large requests. Try again later."
        raise ApiError(429, message, code="rate_limit_exceeded", after=BUSY_SECONDS) from None
    try:
        return BodyInMemory(await _content(request, most), place)
    except ClientDisconnect:
        place.give_back()
        raise ApiError(400, "The client disconnected before its request was complete.") from None
    except BaseException:
        place.give_back()
        raise


async def _content(request: Request, most: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            _too_large(most)
        parts.append(part)
    return b"".join(parts)


def _too_large(most: int) -> NoReturn:
    raise ApiError(413, f"The body of the request is larger than {most} bytes.")


def announced_size(request: Request) -> int | None:
    """Return the body size that the request declares, or None."""
    length = request.headers.get("content-length", "")
    return int(length) if is_whole(length, 0, 10**10 - 1) else None


async def json_body(request: Request, *, may_be_empty: bool = False) -> dict[str, Any]:
    """Return the request's body, a JSON object of at most MAX_JSON_BYTES. Raises ApiError for any other body, or if
    it cannot be read.
    """
    held = await read_body(request, MAX_JSON_BYTES)
    content = held.content
    held.drop()
    if may_be_empty and not content:
        return {}
    try:
        body = msgspec.json.decode(content)
    except JSON_ERRORS:
        raise ApiError(400, "The body of the request is not valid JSON.") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body of the request must be a JSON object.")
    return body


def limit_of(request: Request, default: int, most: int) -> int:
    """Return the query's `limit`. Raises ApiError 400 if it is out of range."""
    text = request.query_params.get("limit", str(default))
    if not is_whole(text, 1, most):
        raise ApiError(400, f"'limit' must be 1 to {most}.", param="limit", code="invalid_value")
    return int(text)


def is_whole(text: str, least: int, most: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10 and least <= int(text) <= most


def page(found: list[Any], limit: int) -> Response:
    """Return a list object of at most `limit` items. If `found` has more items, the object says that there is another
    page.
    """
    data = found[:limit]
    return as_json(
        {
            "object": "list",
            "data": data,
            "first_id": data[0].id if data else None,
            "last_id": data[-1].id if data else None,
            "has_more": len(found) > limit,
        }
    )


def as_json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def on_api_error(request: Request, error: Exception) -> Response:
    """Return the response for an ApiError that a route raised."""
    assert isinstance(error, ApiError)
    response = as_json({"error": error.error}, error.status)
    response.headers.update(error.headers)
    return response


def on_http_error(request: Request, error: Exception) -> Response:
    """Return the error response for a request that no route accepts."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    message = f"Unknown request URL: {request.method} {request.url.path}." if status == 404 else error.detail
    response = as_json({"error": ErrorObject(message)}, status)
    response.headers.update(error.headers or {})
    if status == 405:
        response.headers["allow"] = ", ".join(sorted(_methods(request)))
    return response


def _methods(request: Request) -> set[str]:
    """Return the methods that the request's path supports. Each method is a separate route."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in routes for method in route.methods}


def on_storage_error(request: Request, error: Exception) -> Response:
    """Return the response when the disk or database fails. Nothing was stored, and a retry may succeed later."""
    log.warning("a request was refused: %s", error)
    reason = _reason(request, error)
    body = {"error": ErrorObject(f"The server cannot write: {reason}", "server_error", None, "storage")}
    response = as_json(body, 507)
    response.headers["x-should-retry"] = "false"
    return response


def _reason(request: Request, error: Exception) -> str | None:
    if isinstance(error, OSError):
        return error.strerror
    # Other errors' texts contain paths, which only a server without keys may show.
    is_told = isinstance(error, NoSpace) or not request.scope.get("asks_for_keys", False)
    return str(error) if is_told else "its log has the reason"


def on_surprise(request: Request, error: Exception) -> Response:
    return as_json({"error": ErrorObject("Internal server error; see the server's log.", "server_error")}, 500)
