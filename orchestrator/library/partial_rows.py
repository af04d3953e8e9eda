"""Finished rows of a running job, for `orch fetch --partial` and for Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from orchestrator.backends.open import profile_for
from orchestrator.core.errors import UsageError
from orchestrator.core.model import Job
from orchestrator.daemon.lock import daemon_lock, running_daemon
from orchestrator.daemon.loop import Daemon
from orchestrator.library.context import Context, say_keys
from orchestrator.library.messages import say
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.backend_set import open_handle
from orchestrator.pipeline.collect.partial_results import OpenHandle, partial_lines
from orchestrator.pipeline.finish.confidences import merging_checks
from orchestrator.server.in_process import socket_path
from orchestrator.settings.backends import HostedBackend


@contextmanager
def rows_so_far(
    context: Context, job: Job, *, style: str = "jsonl", is_followed: bool = False
) -> Iterator[Iterator[bytes]]:
    """Yield the merged lines of rows that have a result by now, including rows of running batches.

    The servers of the running daemon are asked. Without a daemon, the servers are started for this purpose, and no
    rows are sent. Providers that give answers only at a batch's end are not asked, so their keys are not needed.

    `is_followed` is for callers who ask repeatedly. No server is started then, and rows that a running batch may
    still retry are left out.
    """
    with ExitStack() as stack:
        checks = merging_checks(context.store, context.home, job)
        asked = _answering_handles(context, _handles(context, stack, may_start=not is_followed))
        lines = partial_lines(
            context.store, context.home, job, checks, asked, style=style, with_failed=not is_followed
        )
        yield stack.enter_context(lines)


def _handles(context: Context, stack: ExitStack, *, may_start: bool) -> OpenHandle:
    """Return a function that opens backends. Its first call checks or takes the daemon's lock."""
    opened: list[Callable[[str], BackendHandle]] = []

    def handle(name: str) -> BackendHandle | None:
        if not may_start and running_daemon(context.home) is None:
            return None
        if not opened:
            holder = None if not may_start else stack.enter_context(daemon_lock(context.home))
            is_own = may_start and holder is None
            opened.append(_own(context, stack) if is_own else _running(context, stack))
        return opened[0](name)

    return handle


def _answering_handles(context: Context, handles: OpenHandle) -> OpenHandle:
    """Return a function that opens backends which show answers of running batches.

    It returns None for any other backend, and reports backends that it cannot open.
    """
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
