"""Lines of a ready batch file: each line is checked, and each custom_id must be unique."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.core import batch_api, request_lines
from orchestrator.core.errors import InputError
from orchestrator.policy.request_limits import too_large

MAX_ERRORS = 20


def batch_lines(path: Path) -> Iterator[tuple[request_lines.CheckedLine, bytes]]:
    """Yield the lines of a ready batch file. Raises one InputError with up to MAX_ERRORS bad lines."""
    problems: list[InputError] = []
    seen: set[int] = set()
    number_of_lines = 0
    for number, raw in _numbered(path):
        checked = request_lines.check_line(raw)
        if isinstance(checked, request_lines.CheckedLine):
            key = request_lines.id_key(checked.custom_id)
            if key in seen:
                checked = _duplicate(path, checked.custom_id)
            elif (large := too_large(raw, checked.url, checked.body)) is not None:
                checked = batch_api.LineError("integer_above_max_value", large[1], large[0])
            seen.add(key)
        if isinstance(checked, batch_api.LineError):
            problems.append(InputError(checked.message, file=path, line=number, field=checked.param))
            if len(problems) == MAX_ERRORS:
                break
            continue
        number_of_lines += 1
        if not problems:
            yield checked, raw
    if problems:
        problems[-1].hint = "fix these lines and run the same command again; nothing was sent"
        raise joined(problems)
    if number_of_lines == 0:
        raise InputError("the file has no request lines", file=path, hint="write one request per line")


def _duplicate(path: Path, custom_id: str) -> batch_api.LineError:
    error = request_lines.duplicate_error(custom_id)
    for number, raw in _numbered(path):
        first = request_lines.check_line(raw)
        if isinstance(first, request_lines.CheckedLine) and first.custom_id == custom_id:
            return batch_api.LineError(error.code, f"{error.message} Line {number} has it first.", error.param)
    return error


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, _, raw in request_lines.lines(file):
                yield number, raw
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from None


def joined(problems: list[InputError]) -> InputError:
    """Join several mistakes into one error: the first, with the others in `others`."""
    first, *first.others = problems
    return first
