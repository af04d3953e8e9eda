"""`orch view`: the pages of a home, beside any engine or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from orchestrator.cli.context import Context, opened
from orchestrator.cli.options import WEB_ADDRESS, Address, actions_option, names_option
from orchestrator.cli.output import say
from orchestrator.cli.running import interruptible
from orchestrator.core.errors import UsageError
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.keys import Key, KeyRight, Keys
from orchestrator.settings.discovery import serve_folder

if TYPE_CHECKING:
    from orchestrator.web.metrics import LoopHealth

LOOK_SECONDS = 0.2
Answer = TypeVar("Answer")


@click.command()
@click.argument("address", type=Address(), default=WEB_ADDRESS, metavar="[HOST:PORT]")
@names_option
@actions_option
def view(address: tuple[str, int], names: tuple[str, ...], acts: bool) -> int:
    """Serve this home's pages until stopped: tonight, jobs and their rows, nights, money, backends, quarantine.

    They stay current beside any engine or none, and change nothing unless --web-actions is given. On loopback, open
    the link that is printed; it holds once, for one browser. Beyond loopback, sign in with a key of
    `orch keys add NAME --right view` (or operate, which allows actions), behind a proxy that speaks TLS; --web-name
    is its name. The default address is 127.0.0.1:8091; port 0 picks a free port.
    """
    with (
        opened() as context,
        interruptible() as interrupted,
        serve_pages(context, address, names, _Current(context), acts=acts),
    ):
        while not interrupted():
            time.sleep(LOOK_SECONDS)  # pages are another thread's work; this one only waits for a signal
    return 0


class _Current:
    """The home with the settings that orch.toml has now."""

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


@contextmanager
def serve_pages(
    context: Context,
    address: tuple[str, int],
    names: tuple[str, ...],
    readers: Callable[[], Context],
    loop: LoopHealth | None = None,
    *,
    acts: bool = False,
) -> Iterator[str]:
    """Serve the pages in a thread until the block ends; says and gives where. Raises UsageError, BackendError."""
    from orchestrator.core.threaded_server import bound, url_host
    from orchestrator.web.access import KeyRing, PageAccess
    from orchestrator.web.app import Pages
    from orchestrator.web.serving import hosts_of, is_loopback, serving

    listener = bound(*address)
    with closing(listener):
        keys, links = _KeyFile(context), is_loopback(listener)
        if not links and not keys.has_any():
            raise UsageError(
                f"{address[0]} is not loopback: whoever reaches it would need a key, and there is none",
                hint="`orch keys add NAME --right view` makes one",
            )
        ring = KeyRing(keys.find, keys.current)
        right = KeyRight.OPERATE if acts else KeyRight.VIEW
        access = PageAccess(context.home.root, context.home.identity(), ring, links=links, right=right)
        url = f"http://{url_host(address[0])}:{listener.getsockname()[1]}"

        def say_link() -> None:
            say(f"orch: pages at {url}{access.new_link() or '/'}")

        say_link()
        if not links:
            say("orch: put a proxy with TLS before it: keys and answers are not encrypted here")
        pages = Pages(readers, access, hosts_of(listener, names), say_link, loop)
        with serving(pages.application(), listener):
            yield url


class _KeyFile:
    """The keys in the folder of `orch serve`, looked up afresh each time: other processes add and revoke them."""

    def __init__(self, context: Context) -> None:
        self._path = serve_folder(context.place) / FILE_NAME

    def has_any(self) -> bool:
        """Whether some key opens the pages."""
        return any(key.right.may_view and key.revoked_at is None for key in self._asked(Keys.all) or ())

    def find(self, secret: bytes) -> Key | None:
        """The key with this secret."""
        return self._asked(lambda keys: keys.find(secret))

    def current(self, key_id: str) -> Key | None:
        """The key with this id, unless it was revoked."""
        return self._asked(lambda keys: keys.current(key_id))

    def _asked(self, ask: Callable[[Keys], Answer]) -> Answer | None:
        if not self._path.exists():
            return None
        database = ServerDatabase(self._path)
        try:
            return ask(Keys(database))
        finally:
            database.close()
