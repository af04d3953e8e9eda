"""Requests that are made while a job runs, appended to the job's request file before rows refer to them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from orchestrator.core.errors import JobFilesError
from orchestrator.core.model import Span


def append_requests(path: Path, lines: Iterable[tuple[int, bytes]]) -> dict[int, Span]:
    """Append lines durably, and return where each is by its row's number. Raises JobFilesError.

    OSErrors of `lines` become JobFilesErrors, too.
    """
    spans: dict[int, Span] = {}
    try:
        with path.open("r+b") as file:  # not "ab": a missing file is an error, not a new file
            file.seek(0, os.SEEK_END)
            for seq, line in lines:
                spans[seq] = Span(file.tell(), len(line))
                file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise JobFilesError(f"cannot use {path}: {error}", hint="free disk space, then run it again") from error
    return spans
