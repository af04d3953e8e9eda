"""Files received from a backend, each complete and on disk or absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from orchestrator.backends import Download
from orchestrator.core.atomic import durable


def store(chunks: Iterable[bytes], path: Path) -> None:
    """Write bytes to a file that is complete and on disk or absent. Raises OSError."""
    with durable(path) as file:
        for chunk in chunks:
            file.write(chunk)


def keep(
    chunks: Iterable[bytes],
    lines: Callable[[Iterable[bytes]], Iterable[bytes]],
    path: Path,
    breaks: tuple[type[Exception], ...],
) -> Download:
    """Write the `lines` of `chunks` to a durable file; errors in `breaks` keep what came before.

    If nothing came, nothing is written and the error is raised. Raises OSError.
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
    """Split lines, without their ends. Only "\\n" ends a line: an answer may contain Unicode's other line ends."""
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
