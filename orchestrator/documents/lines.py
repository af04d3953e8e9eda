"""Bytes and lines of files of any size, with memory bounded by the longest line that is allowed."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.documents.encoding import bom_of, guess, wide_without_bom
from orchestrator.documents.types import DocumentProblem, ExtractionError

CHUNK = 1 << 20


class TooLong(NamedTuple):
    """Stands for a line of more than the allowed bytes; `quotes` counts its double quotes."""

    size: int
    quotes: int


def open_file(path: str) -> tuple[int, int]:
    """A descriptor and the size in bytes. Raises OSError; ExtractionError for what is not a regular file."""
    # Without O_NONBLOCK a pipe put in the place of a listed file would hang here for ever.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise ExtractionError(
            DocumentProblem.UNREADABLE, "This is a pipe, socket, device or folder, not a file; exclude it."
        )
    return fd, status.st_size


def read_all(path: str, limit: int) -> bytes:
    """The whole file. Raises OSError; ExtractionError (too_large) without reading more than `limit` + 1 bytes."""
    fd, size = open_file(path)
    try:
        if size > limit:
            raise too_large(size, limit)
        data = os.read(fd, size + 1)
        if len(data) != size or not size:  # it is growing, or a file system that reads in portions
            parts, total = [data], len(data)
            while total <= limit and (more := os.read(fd, min(CHUNK, limit + 1 - total))):
                parts.append(more)
                total += len(more)
            data = b"".join(parts)
    finally:
        os.close(fd)
    if len(data) > limit:
        raise too_large(len(data), limit)
    return data


def too_large(size: int, limit: int) -> ExtractionError:
    return ExtractionError(
        DocumentProblem.TOO_LARGE,
        f"It has {size:,} bytes, more than the {limit:,} allowed; split it, or raise `max_bytes`.",
        size=size,
    )


def chunks(path: str) -> Iterator[bytes]:
    """The file in pieces of 1 MiB. Raises OSError, ExtractionError."""
    fd, _ = open_file(path)
    try:
        while data := os.read(fd, CHUNK):
            yield data
    finally:
        os.close(fd)


def utf8_chunks(path: str, encoding: str | None, *, checked: bool) -> Iterator[bytes]:
    """The file as UTF-8 without byte order mark.

    `checked` also makes certain that it is UTF-8, and finds another encoding if not; otherwise bytes that
    carry no mark pass as they are. Raises OSError; ExtractionError (encoding).
    """
    pieces = chunks(path)
    first = next(pieces, b"")
    name = encoding or bom_of(first) or (wide_without_bom(first) if checked else None) or "utf-8"
    if codecs.lookup(name).name not in ("utf-8", "ascii"):
        yield from _transcoded(_joined(first, pieces), name)
        return
    pieces = _joined(first.removeprefix(codecs.BOM_UTF8), pieces)
    yield from _checked(pieces, fixed=encoding is not None) if checked else pieces


def _joined(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _transcoded(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(name)()
    at_start = True
    try:
        for piece in pieces:
            text = decoder.decode(piece)
            if at_start and text:
                text, at_start = text.removeprefix("\ufeff"), False
            yield text.encode("utf-8")
        yield decoder.decode(b"", True).encode("utf-8")
    except ValueError as error:
        raise ExtractionError(
            DocumentProblem.ENCODING,
            f"From here on the text is not valid {name}; correct `encoding` or convert the file.",
        ) from error


def _checked(pieces: Iterator[bytes], *, fixed: bool) -> Iterator[bytes]:
    """Pass UTF-8 on; at the first byte that is not, change to the encoding that fits, if only ASCII went before."""
    held, ascii_so_far = b"", True
    for piece in pieces:
        data = held + piece
        valid = _valid_utf8(data)
        if len(data) - valid > 3 or not _may_continue(data[valid:]):
            yield from _not_utf8(data, pieces, valid, guessable=ascii_so_far and not fixed)
            return
        held = data[valid:]
        ascii_so_far = ascii_so_far and data[:valid].isascii()
        yield data[:valid] if held else data
    if held:
        yield from _not_utf8(held, pieces, 0, guessable=ascii_so_far and not fixed)


def _valid_utf8(data: bytes) -> int:
    """How many bytes from the start are UTF-8."""
    if data.isascii():
        return len(data)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return len(data)


def _may_continue(rest: bytes) -> bool:
    """Whether `rest` is the beginning of a character that the next piece completes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(rest)
    except UnicodeDecodeError:
        return False
    return True


def _not_utf8(data: bytes, pieces: Iterator[bytes], at: int, *, guessable: bool) -> Iterator[bytes]:
    if not guessable:
        raise ExtractionError(
            DocumentProblem.ENCODING,
            "From here on the text is not UTF-8, as it was before; mend the file or set `encoding`.",
        )
    name = guess(data, at)
    yield from _transcoded(_joined(data, pieces), name)


def lines(pieces: Iterator[bytes], limit: int) -> Iterator[bytes | TooLong]:
    """Lines without their `\\n`; a line of more than `limit` bytes is counted, not kept."""
    held: list[bytes] = []
    size = quotes = 0  # of the line in `held`; above the limit the line itself is dropped
    for piece in pieces:
        parts = piece.split(b"\n")
        for part in parts[:-1]:
            if size:
                yield _line(held, part, size + len(part), quotes, limit)
                held, size, quotes = [], 0, 0
            elif len(part) > limit:
                yield TooLong(len(part), part.count(b'"'))
            else:
                yield part
        last = parts[-1]
        size += len(last)
        quotes += last.count(b'"')
        held = [*held, last] if size <= limit else []
    if size:
        yield _line(held, b"", size, quotes, limit)


def _line(held: list[bytes], last: bytes, size: int, quotes: int, limit: int) -> bytes | TooLong:
    if size > limit:
        return TooLong(size, quotes + last.count(b'"'))
    return b"".join([*held, last])
