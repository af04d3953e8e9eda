"""Files that are whole and on disk, or not there at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from orchestrator.backends import Download


@contextmanager
def durable(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which is at `path`, whole and on disk, when the block ends; an error leaves what was there.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    # What the bytes came from may be deleted next: the name must survive a power cut as well as they do.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def store(chunks: Iterable[bytes], path: Path) -> None:
    """Bytes as they come, in a file that is whole and on disk or not there at all. Raises OSError."""
    with durable(path) as file:
        for chunk in chunks:
            file.write(chunk)


def keep(
    chunks: Iterable[bytes],
    lines: Callable[[Iterable[bytes]], Iterable[bytes]],
    path: Path,
    breaks: tuple[type[Exception], ...],
) -> Download:
    """The `lines` of what comes, in a file that is on disk or not there at all; what came before it `breaks` off too.

    Where nothing came before that, nothing is written. Raises OSError, and what it broke off with.
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


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without their ends. Only "\\n" ends one: an answer may hold what Unicode takes for a line's end."""
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
