"""Writes a job's rows to a file, an address or stdout."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import click
from msgspec import Struct

from orchestrator.cli.options import TableFlags
from orchestrator.cli.terminal import drop_output
from orchestrator.core import addresses
from orchestrator.core.counts import number_of
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.model import Job, JobKind
from orchestrator.library.answers import finished_lines
from orchestrator.library.context import Context
from orchestrator.pipeline.finish import outputs
from orchestrator.pipeline.finish.merge import check_output
from orchestrator.pipeline.finish.outputs import Format, TableShape
from orchestrator.pipeline.finish.own_files import BY_HAND, is_foreign
from orchestrator.settings.job_spec import ENDINGS_HINT, format_of, has_unknown_ending
from orchestrator.settings.stored_spec import spec_of, tasks_of

EVERY = 1000
Progress = Callable[[str, int, int, str], None]


class WrittenRows(Struct, frozen=True):
    """Result of writing rows: their number, their format, a description, and the number of merged lines in the
    file.
    """

    rows: int
    form: Format
    told: str
    lines: int


def write_rows(
    context: Context,
    job: Job,
    output: str | Path | None,
    form: Format,
    table: TableShape,
    progress: Progress | None = None,
    *,
    is_merged: bool = False,
) -> WrittenRows:
    """Write every row. `progress` receives the activity, the rows done, their total and the unit.

    `is_merged` is true if the job has just ended, so that the merged rows in the home are current. Raises
    StorageError.
    """
    lines = finished_lines(context, job, style=style_of(form), is_merged=is_merged)
    if progress is not None:
        lines = _counted(lines, context.store.jobs.counts([job.id])[job.id].total, progress)
    return write_lines(lines, job, output, form, table)


def _counted(lines: Iterator[bytes], total: int, progress: Progress) -> Iterator[bytes]:
    for number, line in enumerate(lines, 1):
        yield line
        if number % EVERY == 0:
            progress("writing rows", number, total, "rows")


def require_own(context: Context, place: str | Path, option: str = "-o", *, overwrite: bool) -> None:
    """Raise UsageError if an option names a file that orch did not write and must not overwrite."""
    if overwrite or not is_foreign(context.store, context.home.identity(), BY_HAND, place):
        return
    if not may_overwrite(f"{place} already exists, and orch did not write it"):
        raise UsageError(
            f"{option} {place}: already exists, and orch did not write it",
            hint="--force overwrites it; or name another file",
        )


def may_overwrite(told: str) -> bool:
    """Ask the user at the terminal for permission to overwrite. Without a terminal, return False."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return click.confirm(f"orch: {told}. Overwrite it?", default=False, err=True)


def place_of(output: str, source: Path, form: Format | None = None) -> str | Path:
    """Return the file or address that `-o` means for a job made from `source`.

    Raises UsageError if the file cannot or must not be written. Also raises it if neither `form` nor the file
    extension determines a format.
    """
    if addresses.is_address(output):
        addresses.check_address(output, "-o")
    place = outputs.places.located(output, Path())
    if isinstance(place, Path):
        check_output(place, source)
    if form is None and has_unknown_ending(output):
        raise UsageError(f"-o {output}: the ending names no format", hint=ENDINGS_HINT)
    return place


def form_of(job: Job, output: str | Path | None) -> Format:
    """Return the format for a file extension. The default is merged rows, or result lines for a batch file."""
    named = format_of(str(output or ""))
    if named is not None and named != "jsonl":
        return named
    return "batch" if job.kind is JobKind.BATCH else "jsonl"


def table_for(job: Job, form: Format, flags: TableFlags) -> TableShape:
    """Return the shape of a table from the options, or else from the job file's output.

    Merged rows keep their shape unless options change it. Raises UsageError for options that do not fit the format,
    and for an unknown column.
    """
    is_stated = flags.wide is not None or flags.columns
    if form == "batch" and is_stated:
        raise UsageError("--wide, --long and --columns are for tables", hint="--format csv, parquet, xlsx or jsonl")
    if flags.excel and form != "csv":
        raise UsageError("--excel is for CSV", hint="-o FILE.csv or --format csv; an .xlsx file needs no option")
    spec = spec_of(job) if form in ("csv", "parquet", "xlsx") else None
    output = None if spec is None else spec.output
    stated = TableShape() if output is None else outputs.table_of(output)
    wide = stated.wide if flags.wide is None else flags.wide
    columns = flags.columns or (stated.columns if wide == stated.wide else ())
    table = TableShape(wide, columns, flags.excel or (stated.excel and form == "csv"))
    outputs.check_columns(table, form, tasks_of(job))
    return table


def style_of(form: Format) -> str:
    """Return the style of the lines from which a format is made."""
    return "batch" if form == "batch" else "jsonl"


def write_lines(
    lines: Iterator[bytes], job: Job, output: str | Path | None, form: Format, table: TableShape
) -> WrittenRows:
    if output is not None:
        written = outputs.write(output, form, job, lines, table)
        return WrittenRows(written.rows, form, str(written), written.lines)
    counted = outputs.CountedLines(lines)
    # A program gets the bytes unchanged. A terminal would obey control characters in answers and documents.
    stream = cast(BinaryIO, _Shown(sys.stdout)) if sys.stdout.isatty() else sys.stdout.buffer
    try:
        rows = outputs.encode(stream, counted, form, job.id, outputs.schemas_of(job), table)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output(1)
        raise StorageError(f"cannot write to stdout: {error.strerror}", hint="-o FILE writes to a file") from error
    return WrittenRows(rows, form, number_of(rows, "row"), counted.rows)


class _Shown(io.RawIOBase):
    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(self._decode(bytes(data)))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()
