"""A job's rows to a file, an address or stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePath

from orchestrator import exports
from orchestrator.cli import drop_output
from orchestrator.cli.context import Context
from orchestrator.config import LocalBackend, SyncBackend
from orchestrator.engine import Engine, engine_lock, hosted_lane, own_lane
from orchestrator.errors import StorageError
from orchestrator.exports import Format
from orchestrator.model import Job, JobKind
from orchestrator.pipeline import checks_of, merged_lines
from orchestrator.pipeline.lanes import Lane
from orchestrator.pipeline.merge import check_output
from orchestrator.pipeline.partial import OpenLane, partial_lines
from orchestrator.server.host import socket_path


def write_rows(context: Context, job: Job, output: str | Path | None, form: Format | None) -> str:
    """Write every row; how many and where, in words. Raises StorageError."""
    form = form or _form(job, output)
    return _write(merged_lines(context.store, context.home, job, style=_style(form)), job, output, form)


def write_partial(context: Context, job: Job, output: str | Path | None, form: Format | None) -> str:
    """Write the rows that have a result by now, also those in batches that still run; how many and where, in words.

    The servers of the engine that runs are asked; where none runs, they are started for this, and send no row.
    """
    form = form or _form(job, output)
    with ExitStack() as stack:
        holder = stack.enter_context(engine_lock(context.home))
        lanes = _own(context, stack) if holder is None else _running(context, stack)
        lines = stack.enter_context(
            partial_lines(
                context.store,
                context.home,
                job,
                checks_of(job),
                lanes,
                style=_style(form),
            )
        )
        return _write(lines, job, output, form)


def _own(context: Context, stack: ExitStack) -> OpenLane:
    return stack.enter_context(Engine(context.config, context.store, dispatch=False)).open


def _running(context: Context, stack: ExitStack) -> OpenLane:
    opened: dict[str, Lane] = {}

    def lane(name: str) -> Lane:
        if name not in opened:
            settings = context.config.backends[name]
            if isinstance(settings, LocalBackend | SyncBackend):
                opened[name] = own_lane(name, settings, context.config, socket_path(context.home.server(name)))
            else:
                opened[name] = hosted_lane(name, settings, context.config)
            stack.callback(opened[name].api.close)
        return opened[name]

    return lane


def place_of(output: str, job: Job) -> str | Path:
    """Where `-o` writes. Raises UsageError where it could not, or must not."""
    if exports.places.is_address(output):
        exports.places.check_address(output, "-o")
    place = exports.places.located(output, Path())
    if isinstance(place, Path):
        check_output(place, Path(job.source))
    return place


def _form(job: Job, output: str | Path | None) -> Format:
    """What a file ends in; else merged rows for documents, OpenAI's own result lines for a ready batch file."""
    match PurePath(output or "").suffix:
        case ".parquet":
            return "parquet"
        case ".csv":
            return "csv"
        case _:
            return "batch" if job.kind is JobKind.BATCH else "jsonl"


def _style(form: Format) -> str:
    """The lines that a format is made of."""
    return "batch" if form == "batch" else "jsonl"


def _write(lines: Iterator[bytes], job: Job, output: str | Path | None, form: Format) -> str:
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
