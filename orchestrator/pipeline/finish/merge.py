"""Stage 6: merging of all rows, in input order, into one file that appears whole or not at all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from orchestrator.core.atomic import NO_ROOM, beside_name, durable, resolved
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.model import FinishedRow
from orchestrator.policy.answer_check import AnswerCheck
from orchestrator.policy.merged_rows import batch_row, merged_row

MAX_OPEN = 64
Locate = Callable[[str, str], Path]


class ResultLines:
    """Reader of result lines by byte range. Recently used files stay open."""

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._open: OrderedDict[tuple[str, str], BinaryIO] = OrderedDict()
        self._last: tuple[str, str, BinaryIO] = "", "", BytesIO()

    def read(self, row: FinishedRow) -> bytes | None:
        """Return a row's result line, or None. Raises StorageError if its file is gone or truncated."""
        if row.result is None:
            return None
        shard, kind, span = row.result
        # Most rows are beside each other in one file.
        if self._last[0] != shard or self._last[1] != kind:
            self._last = shard, kind, self._file(shard, kind)
        file = self._last[2]
        file.seek(span.offset)
        line = file.read(span.length)
        if len(line) < span.length:
            raise StorageError(f"the result file {file.name} is truncated before the line of {row.custom_id!r}")
        return line

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
        while self._open:
            self._open.popitem()[1].close()


def lines(
    locate: Locate,
    rows: Iterable[FinishedRow],
    checks: Mapping[str, AnswerCheck],
    *,
    style: str,
    partial: bool = False,
    tolerant: bool = False,
) -> Iterator[bytes]:
    """Yield the merged lines, without newlines. With `partial`, yield only rows that have an outcome.

    `locate(shard, kind)` returns the path of a result file. Raises StorageError if a file is gone or truncated. With
    `tolerant`, the answers in that file are left out instead.
    """
    reader = ResultLines(locate)
    try:
        for row in rows:
            if not row.state.is_final and partial:
                continue
            try:
                line = reader.read(row)
            except StorageError:
                if not tolerant:
                    raise
                line = None
            yield (batch_row(row, line) if style == "batch" else merged_row(row, line, checks.get(row.task)))
    finally:
        reader.close()


def check_output(path: Path, source: Path | None) -> None:
    """Raise UsageError if `path` cannot, or must not, be written. `source` is the job's input."""
    try:
        fault = _fault(path, source)
    except OSError as error:
        fault = f"cannot be written: {error.strerror}", "name another file"
    if fault is not None:
        raise UsageError(f"-o {path}: {fault[0]}", hint=fault[1])


def _fault(path: Path, source: Path | None) -> tuple[str, str] | None:
    target = resolved(path)
    if target.is_dir():
        return "is a folder", "name a file in it"
    folder = next(place for place in target.parents if place.exists())
    if not folder.is_dir():
        return f"{folder} is not a folder", "name another file"
    if target.exists() and not target.is_file():
        return "is not a regular file", "name another file; `orch fetch` without -o writes to stdout"
    if source is not None and target.exists() and source.exists() and target.samefile(source):
        return "is the job's own input file", "name another file"
    beside_name(target).exists()  # raises OSError if the name is too long
    return None


def write(path: Path, merged: Iterable[bytes]) -> int:
    """Write lines to a file, whole or not at all, and return their number. Symbolic links are followed.

    Raises StorageError.
    """
    try:
        if path.exists() and not path.is_file():
            raise StorageError(f"cannot write {path}: it is not a regular file")
        number = 0
        with durable(path) as file:
            for number, line in enumerate(merged, 1):  # noqa: B007  (the last number is the count)
                file.write(line + b"\n")
        return number
    except OSError as error:
        hint = "free disk space, then run it again" if error.errno in NO_ROOM else None
        raise StorageError(f"cannot write {path}: {error.strerror or error}", hint=hint) from error
