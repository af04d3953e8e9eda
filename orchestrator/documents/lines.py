"""Bytes and lines of files of any size. The longest allowed line bounds the memory."""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from orchestrator.documents.encoding import bom_of, encoding_of, extends_ascii, names_of, wide_without_bom
from orchestrator.documents.safe_open import open_file
from orchestrator.documents.types import DocumentProblem, ExtractionError, beyond_limit

CHUNK = 1 << 20
TRIES = 3
"""Attempts to read a file that keeps changing."""
_SHORTEST_RUN = b"\n" * 8
_RUN = re.compile(rb"\n{8,}")


class TooLong(NamedTuple):
    """Placeholder for an overlong line of `size` bytes with `quotes` double quotes."""

    size: int
    quotes: int


class Blanks(NamedTuple):
    """Placeholder for `number` consecutive empty lines."""

    number: int


def read_all(
    open_it: Callable[[str, str | None], tuple[int, os.stat_result]], path: str, within: str | None, limit: int
) -> bytes:
    """Return the bytes of a file that did not change while it was read. `open_it` opens the file.

    Raises OSError. Raises ExtractionError: too_large (after reading at most `limit` + 1 bytes), changing, or any
    error of `open_file`.
    """
    for _ in range(TRIES):
        fd, before = open_it(path, within)
        try:
            data = _read(fd, before.st_size, limit)
            after = os.fstat(fd)
        finally:
            os.close(fd)
        if (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
            return data
    raise ExtractionError(
        DocumentProblem.CHANGING, "It was being written to while it was read; run again when it is whole."
    )


def _read(fd: int, size: int, limit: int) -> bytes:
    if size > limit:
        raise too_large(size, limit)
    data = os.read(fd, size + 1)
    if len(data) != size or not size:  # the file is growing, or its file system returns portions
        parts, total = [data], len(data)
        while total <= limit and (more := os.read(fd, min(CHUNK, limit + 1 - total))):
            parts.append(more)
            total += len(more)
        data = b"".join(parts)
    if len(data) > limit:
        raise too_large(len(data), limit)
    return data


def too_large(size: int, limit: int) -> ExtractionError:
    return beyond_limit(
        f"It has {size:,} bytes, more than the {limit:,} allowed; split it, or raise `max_bytes`.", size=size
    )


def text_too_large(limit: int) -> ExtractionError:
    """Return the error for a text that is too long although its file is not."""
    return beyond_limit(f"Its text has more than the {limit:,} characters allowed; split it, or raise `max_bytes`.")


def chunks(path: str, within: str | None = None) -> Iterator[bytes]:
    """Yield a file in pieces of 1 MiB. Bytes appended after the opening are ignored.

    Raises OSError or ExtractionError.
    """
    fd, status = open_file(path, within)
    left = status.st_size or sys.maxsize  # some file systems do not report sizes
    try:
        while left > 0 and (data := os.read(fd, min(CHUNK, left))):
            left -= len(data)
            yield data
    finally:
        os.close(fd)


def utf8_chunks(pieces: Iterator[bytes], encoding: str | None, *, checked: bool) -> Iterator[bytes]:
    """Yield a file's pieces as UTF-8 without byte order mark.

    With `checked`, the pieces are verified and other encodings are detected. With neither `checked` nor `encoding`,
    pieces without a mark pass unchanged. Raises OSError; ExtractionError (encoding).
    """
    first = next(pieces, b"")
    name = bom_of(first) or (wide_without_bom(first) if checked else None) or "utf-8"
    if encoding is not None and not extends_ascii(encoding):
        name = names_of(encoding)[0]
    if codecs.lookup(name).name != "utf-8":
        yield from _transcoded(chain((first,), pieces), name)
        return
    pieces = chain((first.removeprefix(codecs.BOM_UTF8),), pieces)
    yield from _checked(pieces, encoding) if checked or encoding is not None else pieces


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


def _checked(pieces: Iterator[bytes], encoding: str | None) -> Iterator[bytes]:
    """Yield UTF-8 pieces unchanged. At the first invalid byte, switch to `encoding`.

    Without `encoding`, switch to the encoding that fits if all earlier bytes were ASCII; otherwise raise
    ExtractionError.
    """
    held, ascii_so_far = b"", True
    for piece in pieces:
        data = held + piece
        valid = _utf8_prefix_length(data)
        if len(data) - valid > 3 or not _is_incomplete_character(data[valid:]):
            yield from _not_utf8(data, pieces, valid, encoding, is_first=ascii_so_far)
            return
        held = data[valid:]
        ascii_so_far = ascii_so_far and data[:valid].isascii()
        yield data[:valid] if held else data
    if held:
        yield from _not_utf8(held, pieces, 0, encoding, is_first=ascii_so_far)


def _utf8_prefix_length(data: bytes) -> int:
    if data.isascii():
        return len(data)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return len(data)


def _is_incomplete_character(rest: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(rest)
    except UnicodeDecodeError:
        return False
    return True


def _not_utf8(
    data: bytes, pieces: Iterator[bytes], at: int, encoding: str | None, *, is_first: bool
) -> Iterator[bytes]:
    if encoding is None and not is_first:
        raise ExtractionError(
            DocumentProblem.ENCODING,
            "From here on the text is not UTF-8, as it was before; fix the file or set `encoding`.",
        )
    from orchestrator.documents.encoding_guess import guess

    name = guess(data, at) if encoding is None else encoding_of(data, encoding)
    yield from _transcoded(chain((data,), pieces), name)


def lines(pieces: Iterator[bytes], limit: int) -> Iterator[bytes | TooLong | Blanks]:
    """Yield lines without their `\\n`.

    A line of more than `limit` bytes becomes a TooLong. A long run of empty lines becomes a Blanks.
    """
    held: list[bytes] = []
    size = quotes = 0  # of the line in `held`; the bytes of an overlong line are dropped
    for piece in _cut_at_runs(pieces):
        if isinstance(piece, Blanks):
            yield piece
            continue
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


def _cut_at_runs(pieces: Iterator[bytes]) -> Iterator[bytes | Blanks]:
    for piece in pieces:
        at = 0
        if _SHORTEST_RUN in piece:
            for run in _RUN.finditer(piece):
                yield piece[at : run.start() + 1]  # up to the end of the line before the run
                yield Blanks(run.end() - run.start() - 1)
                at = run.end()
        yield piece[at:] if at else piece


def _line(held: list[bytes], last: bytes, size: int, quotes: int, limit: int) -> bytes | TooLong:
    if size > limit:
        return TooLong(size, quotes + last.count(b'"'))
    return b"".join([*held, last])
