"""Errors about a call. Mistakes in files that the call wrote are reported as mistakes in its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.core.errors import OrchError
from orchestrator.library.job_folders import ROWS

_PART = re.compile(r"(?:tasks|documents)\[0\](?:\.|$)")


@contextmanager
def told_by_arguments(frames: Path) -> Iterator[None]:
    """Make errors raised in the block name the call's arguments.

    `frames` is the folder of the files that calls write.
    """
    try:
        yield
    except OrchError as error:
        for one in (error, *error.others):
            if one.file is not None and Path(one.file).is_relative_to(frames):
                _name_argument(one, Path(one.file).name)
        raise


def _name_argument(error: OrchError, file: str) -> None:
    if file == "job.yaml":
        error.field = _PART.sub("", error.field or "") or None
    elif error.line is not None:
        row = f"row {error.line - 1}" if file == ROWS else f"params[{error.line - 1}]"
        error.field = ".".join(filter(None, (row, (error.field or "").removeprefix("body.").removeprefix("body"))))
        error.hint = error.hint and "correct them and call again; nothing was sent"
    error.file = error.line = None
