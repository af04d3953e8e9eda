"""Stage 6: every row, in input order, into one file; written beside its place and moved there whole."""

from __future__ import annotations

import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from orchestrator import results
from orchestrator.errors import StorageError
from orchestrator.model import FinishedRow
from orchestrator.results import OutputCheck

MAX_OPEN = 64
Locate = Callable[[str, str], Path]


class ResultLines:
    """Reads result lines by their place; keeps the newest few files open."""

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._open: OrderedDict[tuple[str, str], BinaryIO] = OrderedDict()

    def read(self, row: FinishedRow) -> bytes | None:
        """The result line of a row, None where it has none. Raises StorageError where its file is gone."""
        if row.result is None:
            return None
        shard, kind, span = row.result
        file = self._file(shard, kind)
        file.seek(span.offset)
        return file.read(span.length)

    def _file(self, shard: str, kind: str) -> BinaryIO:
        file = self._open.pop((shard, kind), None)
        if file is None:
            path = self._locate(shard, kind)
            try:
                file = path.open("rb")
            except OSError as error:
                raise StorageError(f"the result file {path} cannot be read: {error.strerror}") from error
        self._open[shard, kind] = file
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)[1].close()
        return file

    def close(self) -> None:
        """Close the files."""
        while self._open:
            self._open.popitem()[1].close()


def lines(
    locate: Locate,
    rows: Iterable[FinishedRow],
    checks: Mapping[str, OutputCheck],
    *,
    style: str,
    partial: bool = False,
) -> Iterator[bytes]:
    """The merged lines, without newlines; with `partial`, only of rows that have an outcome.

    `locate(shard, kind)` says where a result file lies.
    """
    reader = ResultLines(locate)
    try:
        for row in rows:
            if not row.state.is_final and partial:
                continue
            line = reader.read(row)
            yield (
                results.batch_row(row, line)
                if style == "batch"
                else results.merged_row(row, line, checks.get(row.task))
            )
    finally:
        reader.close()


def write(path: Path, merged: Iterable[bytes]) -> int:
    """Write lines to a file, whole or not at all; how many. Raises StorageError."""
    # One name, not one a process: what a kill leaves is overwritten by the next try.
    partial = path.with_name(f".{path.name}.partial")
    number = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _claimed(partial) as file:
            for number, line in enumerate(merged, 1):  # noqa: B007  (the last number is the count)
                file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror}", hint="make room, then run it again") from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return number


@contextmanager
def _claimed(path: Path) -> Iterator[BinaryIO]:
    """An empty file that this process alone writes; another that writes the same one waits its turn."""
    while True:
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever had it before us has moved it to its place: then this is no longer the file of that name.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                file.truncate(0)
                yield file
                return
