"""Sizes of the vectors of a job's tasks. Sizes that the job file does not state are learned from the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import IO

import msgspec

from orchestrator.core.json_decoders import json_decoder
from orchestrator.pipeline.finish.outputs.column_types import VectorOf
from orchestrator.pipeline.finish.outputs.layout import Tasks

IN_MEMORY = 32_000_000
"""Maximum bytes of lines kept in memory until every task has had a vector. Further lines go to a temporary file."""


class _Line(msgspec.Struct):
    task: str
    status: str
    output: msgspec.Raw


_decode_line = json_decoder(_Line).decode
_decode_numbers = json_decoder(list[float]).decode


def sized(tasks: Tasks, lines: Iterable[bytes]) -> tuple[Tasks, Iterable[bytes]]:
    """Return the tasks with their vector sizes, and the same merged lines, which can be read once.

    The first vector of a task gives its size; without a vector, the size stays unknown. Raises the errors of `lines`.
    """
    unknown = {task for task, answer in tasks.items() if isinstance(answer, VectorOf) and answer.size is None}
    if not unknown:
        return tasks, lines
    found: dict[str, VectorOf] = {}
    rest, head = iter(lines), SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115  (closed when it was read)
    for line in rest:
        head.write(line + b"\n")
        if (told := _size(line)) is not None and told[0] in unknown:
            found[told[0]] = VectorOf(told[1])
            unknown.discard(told[0])
            if not unknown:
                break
    head.seek(0)
    return {**tasks, **found}, chain(_read(head), rest)


def _size(line: bytes) -> tuple[str, int] | None:
    row = _decode_line(line)
    if row.status != "succeeded":
        return None
    try:
        return row.task, len(_decode_numbers(row.output))
    except msgspec.ValidationError:
        return None


def _read(head: IO[bytes]) -> Iterator[bytes]:
    with head:
        for line in head:
            yield line.removesuffix(b"\n")
