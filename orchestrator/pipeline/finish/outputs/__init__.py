"""Formats and destinations of merged rows: JSONL, CSV, Parquet or .xlsx; in a file, folder, bucket or SQL table.

Callers supply the merged lines from `results.merged_row`. This package does not use the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from msgspec import Struct

from orchestrator.core import addresses
from orchestrator.core.counts import number_of
from orchestrator.core.errors import InputError
from orchestrator.core.extras import require
from orchestrator.core.model import Job
from orchestrator.pipeline.finish.outputs import places
from orchestrator.pipeline.finish.outputs.column_types import VectorOf
from orchestrator.pipeline.finish.outputs.formats import LONG, CountedLines, Format, TableShape, encode
from orchestrator.pipeline.finish.outputs.layout import Tasks
from orchestrator.pipeline.finish.outputs.vectors import sized
from orchestrator.settings.job_spec import Output
from orchestrator.settings.stored_spec import tasks_of
from orchestrator.settings.task_spec import Task

__all__ = [
    "ENDINGS", "LONG", "CountedLines", "Format", "TableShape", "Written", "check", "check_columns", "check_format",
    "deliver", "encode", "place_of", "places", "probe", "schemas_of", "table_of", "write",
]  # fmt: skip
ENDINGS: Mapping[Format, str] = {
    "jsonl": "jsonl", "batch": "jsonl", "csv": "csv", "parquet": "parquet", "xlsx": "xlsx",
}  # fmt: skip


class Written(Struct, frozen=True):
    """Result of writing an output.

    `bytes` is its size, or None for a SQL table. `jsonl_bytes` is its size as JSONL. `rows` counts the rows of the
    file or table. `lines` counts the merged lines: a wide table has a row per document.
    """

    place: str
    rows: int
    jsonl_bytes: int
    bytes: int | None
    lines: int = 0

    def __str__(self) -> str:
        said = f"{number_of(self.rows, 'row')} in {self.place}"
        if self.bytes is None or self.bytes == self.jsonl_bytes:
            return said
        return f"{said}, {_size(self.bytes)} (as JSONL {_size(self.jsonl_bytes)})"


def _size(number: int) -> str:
    for unit, scale in (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number:,} bytes"


def schemas_of(job: Job) -> Tasks:
    """Return the kind of answers of each task of a job; empty for a batch file."""
    return _schemas(tasks_of(job))


def _schemas(tasks: Iterable[Task]) -> Tasks:
    return {task.id: _answers_of(task) for task in tasks}


def table_of(output: Output) -> TableShape:
    return TableShape(output.shape == "wide", output.columns or (), bool(output.excel))


def check_columns(table: TableShape, form: Format, tasks: Iterable[Task]) -> None:
    """Raise UsageError if `table` names a column that the table of these tasks lacks."""
    table.layout("", _schemas(tasks), flat=form in ("csv", "xlsx"))


def _answers_of(task: Task) -> Mapping[str, Any] | VectorOf | None:
    if task.kind == "embedding":
        return VectorOf(task.dimensions)
    if task.logprobs and task.output_schema is not None:
        number = {"type": "number"}
        told = {**task.output_schema["properties"], "probability": number, "confidence": number}
        return {**task.output_schema, "properties": told}
    return task.output_schema


def write(place: str | Path, form: Format, job: Job, lines: Iterable[bytes], table: TableShape = LONG) -> Written:
    """Write a job's lines to a path or an address, whole or not at all.

    `lines` are merged lines; for the format `batch`, they are OpenAI's result lines. Raises OutputError, and
    UsageError if no installed library can write the format.
    """
    check_format(form, str(place))
    counted = CountedLines(lines)
    with places.opened(place) as file:
        rows = encode(file, counted, form, job.id, schemas_of(job), table)
        size = file.tell()
    return Written(str(place), rows, counted.bytes, size, counted.rows)


def deliver(output: Output, job: Job, lines: Iterable[bytes], night: date) -> Written:
    """Deliver a job's lines as its job file says. If the output has partitions, `night` names the partition.

    Raises OutputError. Raises InputError if an environment variable for the address is no longer set. Raises
    UsageError if no installed library can write the format.
    """
    if (place := place_of(output, job, night)) is not None:
        return write(place, output.format, job, lines, table_of(output))
    from orchestrator.pipeline.finish.outputs import sqltable
    from orchestrator.pipeline.finish.outputs.layout import Layout

    table, counted = str(output.table), CountedLines(lines)
    tasks, rows = sized(schemas_of(job), counted)
    sqltable.replace(_database(output, job), table, Layout(job.id, tasks, flat=True), job.id, rows)
    return Written(f"table {table}", counted.rows, counted.bytes, None, counted.rows)


def probe(output: Output, job: Job, night: date) -> None:
    """Test if `deliver` would work now, without changing anything.

    Raises OutputError, and InputError if an environment variable for the address is not set.
    """
    if (place := place_of(output, job, night)) is not None:
        places.probe(place)
        return
    from orchestrator.pipeline.finish.outputs import sqltable
    from orchestrator.pipeline.finish.outputs.layout import Layout

    sqltable.probe(_database(output, job), str(output.table), Layout(job.id, schemas_of(job), flat=True))


def place_of(output: Output, job: Job, night: date) -> str | Path | None:
    """Return the file or address that a job's rows are written to; None for a SQL table."""
    path = output.path
    if path is None:
        return None
    if output.partition is not None:
        # The job's name, not its id, so that a repeated night replaces its output.
        path = f"{path.rstrip('/')}/night={night.isoformat()}/{job.name}.{ENDINGS[output.format]}"
    return places.located(path, Path(job.source).parent)


def _database(output: Output, job: Job) -> str:
    return addresses.database_url(_url(output), Path(job.source).parent)


def _url(output: Output) -> str:
    if output.url is not None:
        return output.url
    name = str(output.url_env)
    url = os.environ.get(name)
    if not url:
        raise InputError(f"the variable {name} is not set", field="output.url_env", hint="it holds the address")
    return url


def check(output: Output) -> None:
    """Raise UsageError or InputError if an output cannot be written. Opens no file or connection."""
    check_format(output.format, "output")
    if output.path is None:
        _url(output)
    elif addresses.is_address(output.path):
        addresses.check_address(output.path, "output.path")


def check_format(form: Format, what: str) -> None:
    if form == "parquet":
        require("parquet", f"{what}: Parquet")
    elif form == "xlsx":
        require("xlsx", f"{what}: .xlsx")
