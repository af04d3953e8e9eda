"""Multipart forms with one file, streamed to disk: memory does not grow with the file's size."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct, field
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from orchestrator.server.memory_limits import MOST_BLOCK, Blocks

MAX_FIELD_BYTES = 64 * 1024
MAX_OTHER_BYTES = 256 * 1024
"""Maximum bytes of a body besides its file: fields, headers, boundaries, and text around them."""

ONCE = ("purpose", "expires_after")
"""Fields that may occur only once. Other fields are ignored, even if a client repeats them."""


class BadUpload(Exception):
    """The body is not a multipart form with a file; the text says why."""


class NoFile(BadUpload):
    """The form lacks the part with the file."""


class TooLarge(Exception):
    pass


class FormUpload(Struct):
    """The form's fields by name, and the name and size of its file."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    bytes: int = 0


class _Form:
    """Callbacks of the parser. They collect the file's bytes in `block` until the caller takes them."""

    def __init__(self, part: str, limit: int) -> None:
        self.upload = FormUpload()
        self.block = bytearray()
        self.is_complete = False
        self._part = part
        self._limit = limit
        self._header = [b"", b""]
        self._disposition: dict[bytes, bytes] = {}
        self._name: str | None = None
        self._value = bytearray()

    def on_part_begin(self) -> None:
        self._disposition, self._name, self._value = {}, None, bytearray()

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def on_header_end(self) -> None:
        if self._header[0].lower() == b"content-disposition":
            self._disposition = parse_options_header(self._header[1])[1]
        self._header = [b"", b""]

    def on_headers_finished(self) -> None:
        if b"name" not in self._disposition:
            return
        self._name = self._disposition[b"name"].decode(errors="replace")
        if self._name == self._part:
            if self.upload.filename is not None:
                raise BadUpload(f"the form has several parts named '{self._part}'")
            self.upload.filename = self._disposition.get(b"filename", b"upload").decode(errors="replace")
        elif self._name in self.upload.fields and self._name.startswith(ONCE):
            raise BadUpload(f"the form has several fields named '{self._name[:100]}'")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == self._part:
            self.upload.bytes += end - start
            if self.upload.bytes > self._limit:
                raise TooLarge
            self.block += memoryview(data)[start:end]
        else:
            self._value += data[start:end]
            if len(self._value) > MAX_FIELD_BYTES:
                raise BadUpload("a form field is too long")

    def on_part_end(self) -> None:
        if self._name is not None and self._name != self._part:
            self.upload.fields[self._name] = self._value.decode(errors="replace")

    def on_end(self) -> None:
        self.is_complete = True


CALLBACKS = tuple(name for name in vars(_Form) if name.startswith("on_"))


async def receive(
    body: AsyncIterator[bytes],
    content_type: str,
    path: Path,
    limit: int,
    *,
    part: str = "file",
    room: Callable[[int], None] = lambda size: None,
    blocks: Blocks | None = None,
) -> FormUpload:
    """Stream the form's part named `part` to the new file `path`, at most `limit` bytes, and sync it.

    `room` is called with the number of bytes before each write, and may raise. `blocks` gives the size of a write.
    Raises BadUpload, TooLarge if the part exceeds `limit`, OSError, or an error of `body` or `room`. After an error,
    the file is removed. The event loop never waits for the disk.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise BadUpload("the request must be multipart/form-data with a boundary")
    form = _Form(part, limit)
    try:
        with path.open("xb") as target:
            callbacks: Any = {name: getattr(form, name) for name in CALLBACKS}
            parser = MultipartParser(boundary, callbacks)
            total = 0
            async for chunk in body:
                parser.write(chunk)
                total += len(chunk)
                if total - form.upload.bytes > MAX_OTHER_BYTES:
                    raise BadUpload("the form contains too much besides its file")
                if len(form.block) >= (MOST_BLOCK if blocks is None else blocks.size):
                    room(len(form.block))
                    block, form.block = form.block, bytearray()
                    await asyncio.to_thread(target.write, block)
            if not form.is_complete and form.upload.filename is not None:
                raise BadUpload("the form ends before its last boundary")
            if form.upload.filename is None:
                raise NoFile(f"the form has no part named '{part}'")
            room(len(form.block))
            await asyncio.to_thread(_end, target, form.block)
        return form.upload
    except FormParserError as error:
        path.unlink(missing_ok=True)
        raise BadUpload(str(error)) from None
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _end(target: BinaryIO, block: bytearray) -> None:
    target.write(block)
    target.flush()
    os.fsync(target.fileno())
