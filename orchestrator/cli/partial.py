"""`orch fetch --partial`: the finished rows of a running job."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from orchestrator.cli.rows import WrittenRows, style_of, write_lines
from orchestrator.core.model import Job
from orchestrator.daemon.lock import daemon_lock
from orchestrator.daemon.loop import Daemon
from orchestrator.library.context import Context, say_keys
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.backend_set import open_handle
from orchestrator.pipeline.collect.partial import OpenHandle, partial_lines
from orchestrator.pipeline.finish.confidences import merging_checks
from orchestrator.pipeline.finish.outputs import Format, TableShape
from orchestrator.server.host import socket_path


def write_partial(
    context: Context, job: Job, output: str | Path | None, form: Format, table: TableShape
) -> WrittenRows:
    """Write the rows that have a result by now, including rows of running batches.

    Asks the servers of the running daemon; without a daemon, starts them for this purpose and sends no row.
    """
    say_keys(context.config)
    with ExitStack() as stack:
        holder = stack.enter_context(daemon_lock(context.home))
        handles = _own(context, stack) if holder is None else _running(context, stack)
        lines = stack.enter_context(
            partial_lines(
                context.store,
                context.home,
                job,
                merging_checks(context.store, context.home, job),
                handles,
                style=style_of(form),
            )
        )
        return write_lines(lines, job, output, form, table)


def _own(context: Context, stack: ExitStack) -> OpenHandle:
    return stack.enter_context(Daemon(context.config, context.store, dispatch=False)).open


def _running(context: Context, stack: ExitStack) -> OpenHandle:
    opened: dict[str, BackendHandle] = {}

    def handle(name: str) -> BackendHandle:
        if name not in opened:
            settings = context.config.backends[name]
            opened[name] = open_handle(name, settings, context.config, socket_path(context.home.server(name)))
            stack.callback(opened[name].api.close)
        return opened[name]

    return handle
