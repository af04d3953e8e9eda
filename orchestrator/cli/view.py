"""`orch view`: the pages of a home, with or without a running daemon."""

from __future__ import annotations

import time

import click

from orchestrator.cli.options import WEB_ADDRESS, Address, actions_option, names_option
from orchestrator.cli.pages import PagesOptions, serve_pages
from orchestrator.cli.running import interruptible
from orchestrator.core.listening import bound
from orchestrator.library.context import Context, opened

LOOK_SECONDS = 0.2


@click.command()
@click.argument("address", type=Address(), default=WEB_ADDRESS, metavar="[HOST:PORT]")
@names_option
@actions_option
def view(address: tuple[str, int], names: tuple[str, ...], acts: bool) -> int:
    """Serve this home's pages until stopped: tonight, jobs and their rows, nights, money, backends, quarantine.

    The pages stay current with or without a daemon. They change nothing unless --web-actions is set. On loopback,
    open the printed link; it works once, for one browser. Beyond loopback, use a proxy that speaks TLS; --web-name is
    its name. Sign in with a key of `orch keys add NAME --right view` (or operate, which allows actions). The default
    address is 127.0.0.1:8091; port 0 picks a free port.
    """
    with (
        opened() as context,
        interruptible() as interrupted,
        serve_pages(bound(*address), context, PagesOptions(address[0], names, acts), _CurrentContext(context)),
    ):
        while not interrupted():
            time.sleep(LOOK_SECONDS)  # another thread serves the pages; this thread only waits for a signal
    return 0


class _CurrentContext:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._stamp = self._look()

    def __call__(self) -> Context:
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp, self._context = stamp, Context(self._context.place, self._context.store)
        return self._context

    def _look(self) -> tuple[int, int] | None:
        try:
            found = None if self._context.path is None else self._context.path.stat()
        except OSError:
            return None
        return None if found is None else (found.st_mtime_ns, found.st_size)
