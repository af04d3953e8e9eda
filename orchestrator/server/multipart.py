"""A multipart upload, streamed to disk: memory stays flat whatever the file's size."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

MAX_FIELD_BYTES = 64 * 1024


class BadUpload(Exception):
    """The body is no multipart form with a file; the text says why."""


class TooLarge(Exception):
    """The file is over the limit."""


@dataclass(slots=True)
class Upload:
    """The form's fields by name, and its file, which lies durable at the given path."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    bytes: int = 0


class _Form:
    """Callbacks of the parser: one part after the other, the file's bytes straight to disk."""

    def __init__(self, target: BinaryIO, limit: int) -> None:
        self.upload = Upload()
        self.is_complete = False
        self._target = target
        self._limit = limit
        self._header = [b"", b""]
        self._disposition: dict[bytes, bytes] = {}
        self._value = bytearray()

    def on_part_begin(self) -> None:
        self._disposition, self._value = {}, bytearray()

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def on_header_end(self) -> None:
        if self._header[0].lower() == b"content-disposition":
            self._disposition = parse_options_header(self._header[1])[1]
            if self._is_file:
                self.upload.filename = self._disposition.get(b"filename", b"upload").decode(errors="replace")
        self._header = [b"", b""]

    @property
    def _is_file(self) -> bool:
        return self._disposition.get(b"name") == b"file"

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.upload.bytes += end - start
            if self.upload.bytes > self._limit:
                raise TooLarge
            self._target.write(data[start:end])
        else:
            self._value += data[start:end]
            if len(self._value) > MAX_FIELD_BYTES:
                raise BadUpload("a form field is too long")

    def on_part_end(self) -> None:
        if not self._is_file and b"name" in self._disposition:
            name = self._disposition[b"name"].decode(errors="replace")
            self.upload.fields[name] = self._value.decode(errors="replace")

    def on_end(self) -> None:
        self.is_complete = True


async def receive(body: AsyncIterator[bytes], content_type: str, path: Path, limit: int) -> Upload:
    """Stream a form's file to `path` and sync it. Raises BadUpload, TooLarge or OSError; then no file is left."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise BadUpload("the request must be multipart/form-data")
    try:
        with path.open("xb") as target:
            form = _Form(target, limit)
            names = ("on_part_begin", "on_header_field", "on_header_value", "on_header_end", "on_part_data",
                     "on_part_end", "on_end")  # fmt: skip
            callbacks: Any = {name: getattr(form, name) for name in names}
            parser = MultipartParser(boundary, callbacks)
            async for chunk in body:
                parser.write(chunk)
            parser.finalize()
            target.flush()
            os.fsync(target.fileno())
        if form.upload.filename is None:
            raise BadUpload("the form has no part named 'file'")
        if not form.is_complete:
            raise BadUpload("the form ends before its last boundary")
        return form.upload
    except MultipartParseError as error:
        path.unlink(missing_ok=True)
        raise BadUpload(str(error)) from None
    except BaseException:
        path.unlink(missing_ok=True)
        raise
