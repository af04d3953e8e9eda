"""Files received from a backend. Each file is either complete and on disk, or absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from os import SEEK_END
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, TypeVar

from orchestrator.backends import Download
from orchestrator.core.atomic import durable
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.errors import InputError, JobFilesError

_BLOCK = 256 * 1024
Line = TypeVar("Line")


def store(chunks: Iterable[bytes], path: Path) -> None:
    """Write bytes to a file that is either complete and on disk, or absent. Raises OSError."""
    with durable(path) as file:
        for chunk in chunks:
            file.write(chunk)


def keep(
    chunks: Iterable[bytes],
    lines: Callable[[Iterable[bytes]], Iterable[bytes]],
    path: Path,
    breaks: tuple[type[Exception], ...],
) -> Download:
    """Write the `lines` of `chunks` to a durable file. After an error in `breaks`, keep the lines before it.

    If no bytes arrive, write no file and raise the error. Raises OSError.
    """
    came, cut, problem = 0, None, None

    def counted() -> Iterator[bytes]:
        nonlocal came, cut, problem
        try:
            for chunk in chunks:
                came += len(chunk)
                yield chunk
        except breaks as error:
            cut, problem = str(error) or type(error).__name__, error

    with durable(path) as file:
        try:
            for line in lines(counted()):
                file.write(line + b"\n")
        except breaks as error:
            cut, problem = str(error) or type(error).__name__, error
        if problem is not None and not came:
            raise problem
    return Download(came, cut)


def request_lines(source: Iterable[bytes], decode: Callable[[bytes], Line]) -> Iterator[Line]:
    """Yield the decoded lines of an input file, skipping blank lines. Raises InputError for an invalid line."""
    for number, raw in enumerate(source, 1):
        if not raw.strip():
            continue
        try:
            line = decode(raw)
        except JSON_ERRORS as error:
            raise InputError(f"is not a request: {error}", line=number) from None
        yield line


@contextmanager
def translated(source: BinaryIO, lines: Iterable[bytes]) -> Iterator[BinaryIO]:
    """Open a temporary file that holds `lines`, which are made from a job's file. Raises JobFilesError."""
    try:
        with TemporaryFile(dir=Path(source.name).parent) as file:
            file.writelines(lines)
            file.seek(0)
            yield file
    except OSError as error:
        message = f"cannot translate {source.name}: {error.strerror}"
        raise JobFilesError(message, hint="free disk space, then run it again") from error


def sized(file: BinaryIO) -> int:
    """Return the size of a file in bytes, and rewind the file."""
    size = file.seek(0, SEEK_END)
    file.seek(0)
    return size


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the remainder of a file, in blocks."""
    while block := file.read(_BLOCK):
        yield block


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Split bytes into lines at "\\n" only, because answers may contain Unicode's line ends.

    The lines do not include the "\\n".
    """
    rest = b""
    for chunk in chunks:
        first, *more = chunk.split(b"\n")
        if not more:
            rest += first
            continue
        yield rest + first
        yield from more[:-1]
        rest = more[-1]
    if rest:
        yield rest
