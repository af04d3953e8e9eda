"""Stage 6: every row, in input order, into one file; written beside its place and moved there whole."""

from __future__ import annotations

import errno
import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.model import FinishedRow
from orchestrator.policy.answer_check import OutputCheck
from orchestrator.policy.merged_rows import batch_row, merged_row

MAX_OPEN = 64
NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
Locate = Callable[[str, str], Path]


class ResultLines:
    """Reads result lines by their place; keeps the newest few files open."""

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._open: OrderedDict[tuple[str, str], BinaryIO] = OrderedDict()

    def read(self, row: FinishedRow) -> bytes | None:
        """The result line of a row, None where it has none. Raises StorageError where its file is gone or cut."""
        if row.result is None:
            return None
        shard, kind, span = row.result
        file = self._file(shard, kind)
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
            yield (batch_row(row, line) if style == "batch" else merged_row(row, line, checks.get(row.task)))
    finally:
        reader.close()


def check_output(path: Path, source: Path | None) -> None:
    """Raises UsageError where `write` could not, or must not, put rows. `source` is what the job is made of."""
    try:
        fault = _fault(path, source)
    except OSError as error:
        fault = f"cannot be written: {error.strerror}", "name another file"
    if fault is not None:
        raise UsageError(f"-o {path}: {fault[0]}", hint=fault[1])


def _fault(path: Path, source: Path | None) -> tuple[str, str] | None:
    """What is wrong with an output's name, and what to do about it."""
    target = _resolved(path)
    if target.is_dir():
        return "is a folder", "name a file in it"
    if not target.parent.exists():
        return "there is no such folder", "create it, or name another file"
    if not target.parent.is_dir():
        return f"{target.parent} is not a folder", "name another file"
    if target.exists() and not target.is_file():
        return "is not a regular file", "name another file; `orch fetch` without -o writes to stdout"
    if source is not None and target.exists() and source.exists() and target.samefile(source):
        return "is the job's own input file", "name another file"
    _beside(target).exists()  # raises OSError where the name is too long
    return None


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError:  # what pathlib makes of it until Python 3.12
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


def _beside(target: Path) -> Path:
    # One name, not one a process: what a kill leaves is overwritten by the next try.
    return target.with_name(f".{target.name}.partial")


def write(path: Path, merged: Iterable[bytes]) -> int:
    """Write lines to a file, whole or not at all; how many. Where it is a link, to what that names.

    Raises StorageError.
    """
    try:
        target = _resolved(path)
        if target.exists() and not target.is_file():
            raise StorageError(f"cannot write {path}: it is not a regular file")
        target.parent.mkdir(parents=True, exist_ok=True)
        with _claimed(_beside(target)) as file:
            return _fill(file, merged, target)
    except OSError as error:
        hint = "free disk space, then run it again" if error.errno in NO_ROOM else None
        raise StorageError(f"cannot write {path}: {error.strerror or error}", hint=hint) from error


def _fill(file: BinaryIO, merged: Iterable[bytes], target: Path) -> int:
    """Write the lines and move the file to its place; it goes while we still hold it where that fails."""
    number = 0
    try:
        for number, line in enumerate(merged, 1):  # noqa: B007  (the last number is the count)
            file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
        _beside(target).replace(target)
    except BaseException:
        with suppress(OSError):
            _beside(target).unlink(missing_ok=True)
        raise
    return number


@contextmanager
def _claimed(path: Path) -> Iterator[BinaryIO]:
    """An empty file that this process alone writes; another that writes the same one waits its turn."""
    while True:
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever had it before us has moved it to its place: then this is no longer the file of that name.
            if _is_at(path, file):
                file.truncate(0)
                yield file
                return


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
