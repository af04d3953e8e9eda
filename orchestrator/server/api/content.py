"""A response with a file's content: all of it, or one range."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from orchestrator.server.api.http import ApiError
from orchestrator.server.memory_limits import Blocks


class _Open(StreamingResponse):
    """A response streamed from an open file. Deleting the file does not interrupt the download."""

    def __init__(self, file: BinaryIO, start: int, end: int, status: int, headers: dict[str, str]) -> None:
        super().__init__((), status, headers, media_type="application/octet-stream")
        self._file = file
        self._span = start, end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        blocks: Blocks = scope["app"].state.service.rooms.blocks
        with self._file, blocks.passing():
            self.body_iterator = self._read(blocks)
            await super().__call__(scope, receive, send)

    async def _read(self, blocks: Blocks) -> AsyncIterator[bytes]:
        start, end = self._span
        self._file.seek(start)
        while start < end and (block := await asyncio.to_thread(self._file.read, min(blocks.size, end - start))):
            start += len(block)
            yield block


def content(request: Request, path: Path, tag: str, filename: str, size: int | None = None) -> Response:
    """Return a response with a file's content, or with its first `size` bytes.

    `tag` identifies the content and never changes. Raises FileNotFoundError, and ApiError 416 for a range beyond the
    end. A Range header that is malformed, or names several ranges, is ignored, as RFC 9110 allows.
    """
    etag = f'"{tag}"'
    headers = {"accept-ranges": "bytes", "etag": etag, "content-disposition": _disposition(filename)}
    file = path.open("rb")
    try:
        size = os.fstat(file.fileno()).st_size if size is None else size
        start, end, status = 0, size, 200
        wanted = request.headers.get("range")
        if wanted is not None and request.headers.get("if-range", etag) == etag and (found := _span(wanted, size)):
            (start, end), status = found, 206
            headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
    except BaseException:
        file.close()
        raise
    headers["content-length"] = str(end - start)
    return _Open(file, start, start if request.method == "HEAD" else end, status, headers)


def _span(wanted: str, size: int) -> tuple[int, int] | None:
    """Return start and end of a Range header's single range, or None if the header is to be ignored."""
    found = re.fullmatch(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", wanted.strip(), re.ASCII | re.IGNORECASE)
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if first and last and int(first) > int(last):
        return None
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= size:
        error = ApiError(416, f"The content has {size} bytes: the range '{wanted}' is after its end.")
        error.headers["content-range"] = f"bytes */{size}"
        raise error
    return start, end


def _disposition(filename: str) -> str:
    is_plain = re.fullmatch(r"[ -~]+", filename) and not re.search(r'["\\%]', filename)
    return f'attachment; filename="{filename}"' if is_plain else f"attachment; filename*=utf-8''{quote(filename, '')}"
