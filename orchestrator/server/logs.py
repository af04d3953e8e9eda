"""The server's log: lines of JSON or plain text, without prompts, bodies or keys."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, TextIO
from urllib.parse import urlsplit

import msgspec

QUIET_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths that machines poll every few seconds, logged only at debug level."""
MAX_PATH = 300

log = logging.getLogger("orchestrator.server.access")


def configure(form: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Send this process's log to `stream` (default: stderr), as "text" or "json", from `level` up.

    Other libraries log only from `warning` up: their lower levels may contain bodies.
    """
    target = logging.StreamHandler(sys.stderr if stream is None else stream)
    target.setFormatter(JsonLines() if form == "json" else PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [target]
    root.setLevel(logging.WARNING)
    logging.getLogger("orchestrator").setLevel(level.upper())


def log_fields(**fields: Any) -> dict[str, Any]:
    """Return the fields of a log line: `log.info("batch created", extra=log_fields(batch=batch.id))`."""
    return {"told": fields}


def plain_url(url: str) -> str:
    """Return a URL without its possibly secret parts: name and password, query, fragment."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


class JsonLines(logging.Formatter):
    """Formats a log line as a JSON object: time (UTC), level, logger, message, then the line's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "told", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode(errors="replace")


class PlainLines(logging.Formatter):
    """Formats a log line as text. A client's text, such as a path, cannot begin a new line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_word(value)}" for name, value in getattr(record, "told", {}).items())
        text = f"{_time(record)} {record.levelname.lower()} {record.name}: {record.getMessage()}{fields}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _word(value: Any) -> str:
    text = str(value)
    plain = text and text.isprintable() and not set(text) & set(' "=')
    return text if plain else msgspec.json.encode(text).decode()


class AccessLog:
    """Outermost ASGI middleware that logs each request when it ends: at `info`, or at `debug` for QUIET_PATHS."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        level = logging.DEBUG if scope.get("path") in QUIET_PATHS else logging.INFO
        if scope["type"] != "http" or not log.isEnabledFor(level):
            await self._app(scope, receive, send)
            return
        began, status, request_id = time.perf_counter(), None, None

        async def noted(message: Any) -> None:
            nonlocal status, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                request_id = next((value for name, value in message["headers"] if name == b"x-request-id"), b"")
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            log.log(
                level,
                "request",
                extra=log_fields(
                    method=scope["method"],
                    path=scope["path"][:MAX_PATH],
                    status=status,
                    ms=round((time.perf_counter() - began) * 1000, 1),
                    tenant=scope.get("tenant", ""),
                    request_id=(request_id or b"").decode("latin-1"),
                ),
            )
