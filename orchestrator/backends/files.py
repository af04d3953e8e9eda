"""What a backend sends, in files that are whole and on disk, or not there at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from orchestrator.backends import Download
from orchestrator.core.atomic import durable


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
