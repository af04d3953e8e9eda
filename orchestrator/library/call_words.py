"""Errors about a call: the mistakes of files that a call wrote, told by its arguments, and options as arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.core.errors import OrchError
from orchestrator.library.job_folders import ROWS

_OPTION = re.compile(r"--(deadline|budget|backend)(?: ([\w.+:@-]*\w))?")
_PART = re.compile(r"(?:tasks|documents)\[0\](?:\.|$)")


@contextmanager
def told_by_arguments(frames: Path) -> Iterator[None]:
    """Tell errors of a block in terms of the call. `frames` is the folder of the files that calls write."""
    try:
        yield
    except OrchError as error:
        for one in (error, *error.others):
            one.message, one.hint = as_arguments(one.message), None if one.hint is None else as_arguments(one.hint)
            one.field = None if one.field is None else as_arguments(one.field)
            if one.file is not None and Path(one.file).is_relative_to(frames):
                _place(one, Path(one.file).name)
        raise


def as_arguments(text: str) -> str:
    """Write options of the command line as arguments: `--budget 0.5` as `budget=0.5`."""
    return _OPTION.sub(lambda found: found[1] if found[2] is None else f"{found[1]}={_value(found[2])}", text)


def _value(text: str) -> str:
    return text if re.fullmatch(r"[\d.]+", text) else repr(text)


def _place(error: OrchError, file: str) -> None:
    """Name the argument that became a line of a call's file."""
    if file == "job.yaml":
        error.field = _PART.sub("", error.field or "") or None
    elif error.line is not None:
        row = f"row {error.line - 1}" if file == ROWS else f"params[{error.line - 1}]"
        error.field = ".".join(filter(None, (row, (error.field or "").removeprefix("body.").removeprefix("body"))))
        error.hint = error.hint and "correct them and call again; nothing was sent"
    error.file = error.line = None
