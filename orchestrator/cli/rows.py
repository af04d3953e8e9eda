"""A job's rows to a file or stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from orchestrator.backends.openai import OpenAIBackend, over_unix_socket
from orchestrator.cli import drop_output
from orchestrator.cli.context import Context
from orchestrator.engine import Engine, engine_lock
from orchestrator.errors import StorageError
from orchestrator.model import Job, JobKind
from orchestrator.pipeline import checks_of, merge, merged_lines
from orchestrator.pipeline.partial import Apis, partial_lines
from orchestrator.pipeline.routes import row_price
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
        apis = _own(context, stack) if holder is None else _running(context, stack)

        lines = stack.enter_context(
            partial_lines(
                context.store,
                context.home,
                job,
                checks_of(job),
                apis,
                lambda name, seconds: row_price(context.config.backends[name], seconds),
                style=style or default_style(job),
            )
        )
        return _write(lines, output)


def _own(context: Context, stack: ExitStack) -> Apis:
    engine = stack.enter_context(Engine(context.config, context.store, dispatch=False))
    return lambda name: engine.open(name).api


def _running(context: Context, stack: ExitStack) -> Apis:
    clients: dict[str, OpenAIBackend] = {}

    def client(name: str) -> OpenAIBackend:
        if name not in clients:
            clients[name] = OpenAIBackend(name, over_unix_socket(socket_path(context.home.server(name))))
            stack.callback(clients[name].close)
        return clients[name]

    return client


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
