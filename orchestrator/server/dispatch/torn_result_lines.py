"""Removes lines that a kill left incomplete in a result file: half a line, or a line that is not JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from orchestrator.core.atomic import durable
from orchestrator.core.batch_api import JSON_ERRORS, MAX_LINE_BYTES, ResultLine
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.request_lines import lines

LONGEST_LINE = MAX_LINE_BYTES + 64 * 1024
"""Maximum length of a line in a result file, in bytes.

An answer's line is at most as long as a request's line. An error's line may repeat an id of that length and add the
error.
"""

_decode = json_decoder(ResultLine).decode


def recover(path: Path) -> Iterator[ResultLine]:
    """Yield each row of a result file, and remove lines that a kill left incomplete.

    Yields nothing if the file is missing. Raises OSError.
    """
    if not path.exists():
        return
    cut_torn_tail(path)
    broken = False
    with path.open("rb") as file:
        for _, _, raw in lines(file, LONGEST_LINE):
            row = _parse(raw)
            if row is None:
                broken = True
            else:
                yield row
    if broken:
        _drop_broken_lines(path)


def is_expired(row: ResultLine) -> bool:
    """True if a row's batch window ended before the row got an answer."""
    return isinstance(row.error, dict) and row.error.get("code") == "batch_expired"


def cut_torn_tail(path: Path) -> None:
    """Cut the bytes after the last newline, because a line is durable only with its newline."""
    with path.open("rb+") as file:
        end = _end_of_lines(file)
        if end < file.seek(0, os.SEEK_END):
            file.truncate(end)
            os.fsync(file.fileno())


def bytes_of_lines(path: Path) -> int:
    """Return the bytes of a file up to its last newline; 0 if there is no such file."""
    try:
        with path.open("rb") as file:
            return _end_of_lines(file)
    except FileNotFoundError:
        return 0


def _end_of_lines(file: BinaryIO) -> int:
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65_536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _drop_broken_lines(path: Path) -> None:
    with path.open("rb") as source, durable(path) as target:
        for _, _, raw in lines(source, LONGEST_LINE):
            if _parse(raw) is not None:
                target.write(raw + b"\n")


def _parse(raw: bytes) -> ResultLine | None:
    try:
        row = _decode(raw)
    except JSON_ERRORS:
        return None
    return row if row.custom_id is not None else None
