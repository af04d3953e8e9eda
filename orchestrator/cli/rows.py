"""A job's rows to a file or stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from orchestrator.cli import drop_output
from orchestrator.cli.context import Context
from orchestrator.config import LocalBackend, SyncBackend
from orchestrator.engine import Engine, engine_lock, hosted_lane, own_lane
from orchestrator.errors import StorageError
from orchestrator.model import Job, JobKind
from orchestrator.pipeline import checks_of, merge, merged_lines
from orchestrator.pipeline.lanes import Lane
from orchestrator.pipeline.partial import OpenLane, partial_lines
from orchestrator.server.host import socket_path


def write_rows(context: Context, job: Job, output: Path | None, style: str | None) -> int:
    """Write every row; how many. Raises StorageError."""
    return _write(merged_lines(context.store, context.home, job, style=style or default_style(job)), output)


def write_partial(context: Context, job: Job, output: Path | None, style: str | None) -> int:
    """Write the rows that have a result by now, also those in batches that still run; how many.

    The servers of the engine that runs are asked; where none runs, they are started for this, and send no row.
    """
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
                style=style or default_style(job),
            )
        )
        return _write(lines, output)


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


def default_style(job: Job) -> str:
    """Merged rows for documents; OpenAI's own result lines for a job that was a ready batch file."""
    return "batch" if job.kind is JobKind.BATCH else "jsonl"


def _write(lines: Iterator[bytes], output: Path | None) -> int:
    if output is not None:
        return merge.write(output, lines)
    stream = sys.stdout.buffer
    number = 0
    try:
        for number, line in enumerate(lines, 1):  # noqa: B007  (the last number is the count)
            stream.write(line + b"\n")
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output(1)
        raise StorageError(f"cannot write to stdout: {error.strerror}", hint="-o FILE writes to a file") from error
    return number
