"""A job's rows to a file, an address or stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path, PurePath

import click

from orchestrator import exports
from orchestrator.cli import drop_output
from orchestrator.cli.context import Context
from orchestrator.errors import StorageError, UsageError
from orchestrator.exports import Format
from orchestrator.model import Job, JobKind
from orchestrator.pipeline import merged_lines
from orchestrator.pipeline.merge import check_output
from orchestrator.pipeline.outputs import BY_HAND, is_foreign


def write_rows(context: Context, job: Job, output: str | Path | None, form: Format | None) -> str:
    """Write every row; how many and where, in words. Raises StorageError."""
    form = form or form_of(job, output)
    return write_lines(merged_lines(context.store, context.home, job, style=style_of(form)), job, output, form)


def require_own(context: Context, place: str | Path, option: str = "-o", *, overwrite: bool) -> None:
    """Raises UsageError where an option names a file that orch did not write, and nobody says that it may go."""
    if overwrite or not is_foreign(context.store, context.home.identity(), BY_HAND, place):
        return
    if not may_overwrite(f"{place} is there already, and orch did not write it"):
        raise UsageError(
            f"{option} {place}: is there already, and orch did not write it",
            hint="--force overwrites it; or name another file",
        )


def may_overwrite(told: str) -> bool:
    """Ask whoever sits at the terminal; nobody there says no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return click.confirm(f"orch: {told}. Overwrite it?", default=False, err=True)


def place_of(output: str, job: Job) -> str | Path:
    """Where `-o` writes. Raises UsageError where it could not, or must not."""
    if exports.places.is_address(output):
        exports.places.check_address(output, "-o")
    place = exports.places.located(output, Path())
    if isinstance(place, Path):
        check_output(place, Path(job.source))
    return place


def form_of(job: Job, output: str | Path | None) -> Format:
    """What a file ends in; else merged rows for documents, OpenAI's own result lines for a ready batch file."""
    match PurePath(output or "").suffix:
        case ".parquet":
            return "parquet"
        case ".csv":
            return "csv"
        case _:
            return "batch" if job.kind is JobKind.BATCH else "jsonl"


def style_of(form: Format) -> str:
    """The lines that a format is made of."""
    return "batch" if form == "batch" else "jsonl"


def write_lines(lines: Iterator[bytes], job: Job, output: str | Path | None, form: Format) -> str:
    if output is not None:
        return str(exports.write(output, form, job, lines))
    counted = exports.Counted(lines)
    stream = sys.stdout.buffer
    try:
        exports.encode(stream, counted, form, job.id, exports.tasks_of(job))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output(1)
        raise StorageError(f"cannot write to stdout: {error.strerror}", hint="-o FILE writes to a file") from error
    return f"{counted.rows:,} rows"
