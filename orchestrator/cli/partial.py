"""`orch fetch --partial`: the finished rows of a running job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from orchestrator.backends.open import profile_for
from orchestrator.cli.output import say
from orchestrator.cli.rows import WrittenRows, style_of, write_lines
from orchestrator.core.errors import UsageError
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
from orchestrator.settings.backends import HostedBackend


def write_partial(
    context: Context, job: Job, output: str | Path | None, form: Format, table: TableShape
) -> WrittenRows:
    """Write the rows that have a result by now, including rows of running batches.

    Asks the servers of the running daemon; without a daemon, starts them for this purpose and sends no row. Nothing
    is asked of providers that give answers at a batch's end, so that their keys are not needed.
    """
    with ExitStack() as stack:
        holder = stack.enter_context(daemon_lock(context.home))
        handles = _own(context, stack) if holder is None else _running(context, stack)
        lines = stack.enter_context(
            partial_lines(
                context.store,
                context.home,
                job,
                merging_checks(context.store, context.home, job),
                _askable(context, handles),
                style=style_of(form),
            )
        )
        return write_lines(lines, job, output, form, table)


def _askable(context: Context, handles: Callable[[str], BackendHandle]) -> OpenHandle:
    """Return a function that opens backends with answers of running batches, and names the others."""
    opened: dict[str, BackendHandle | None] = {}

    def opened_for(name: str) -> BackendHandle | None:
        settings = context.config.backends.get(name)
        if settings is None:
            say(f"orch: did not look for answers at {name}, which is no longer in {context.config.path}")
            return None
        if isinstance(settings, HostedBackend) and not profile_for(settings).is_orch:
            return None
        if not any(opened.values()):
            say_keys(context.config)
        try:
            return handles(name)
        except UsageError as error:
            say(f"orch: did not look for answers at {name}: {error.message}")
            return None

    def handle(name: str) -> BackendHandle | None:
        if name not in opened:
            opened[name] = opened_for(name)
        return opened[name]

    return handle


def _own(context: Context, stack: ExitStack) -> Callable[[str], BackendHandle]:
    return stack.enter_context(Daemon(context.config, context.store, dispatch=False)).open


def _running(context: Context, stack: ExitStack) -> Callable[[str], BackendHandle]:
    def handle(name: str) -> BackendHandle:
        settings = context.config.backends[name]
        found = open_handle(name, settings, context.config, socket_path(context.home.server(name)))
        stack.callback(found.api.close)
        return found

    return handle
