"""Serves the pages of a home at an address, controls access, and prints their link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from orchestrator.cli.output import say
from orchestrator.core.errors import UsageError
from orchestrator.core.listening import is_loopback, url_host
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.keys import Key, KeyRight, Keys
from orchestrator.settings.discovery import Place, serve_folder
from orchestrator.settings.home import Home
from orchestrator.web.access import KeyRing, PageAccess

if TYPE_CHECKING:
    import socket

    from orchestrator.library.context import Context
    from orchestrator.web.loop_health import LoopHealth

Answer = TypeVar("Answer")


class PagesOptions(Struct, frozen=True):
    """Command-line options of the pages: the `host`, and the `names` under which a proxy serves them.

    `acts` is true if the link also allows actions.
    """

    host: str
    names: tuple[str, ...] = ()
    acts: bool = False


def access_at(listener: socket.socket, place: Place, options: PagesOptions) -> PageAccess:
    """Return the access rules of an address.

    Raises StorageError, and UsageError if the rules would admit no visitor.
    """
    keys, links = _KeyFile(place), is_loopback(listener)
    if not links and not keys.has_any():
        raise UsageError(
            f"{options.host} is not loopback: whoever reaches it would need a key, and there is none",
            hint="`orch keys add NAME --right view` makes one",
        )
    home, right = Home(place.home), KeyRight.OPERATE if options.acts else KeyRight.VIEW
    return PageAccess(
        home.root, home.identity(), KeyRing(keys.find, keys.current),
        port=listener.getsockname()[1], links=links, right=right,
    )  # fmt: skip


@contextmanager
def serve_pages(
    listener: socket.socket,
    context: Context,
    options: PagesOptions,
    readers: Callable[[], Context],
    loop: LoopHealth | None = None,
) -> Iterator[str]:
    """Serve the pages in a thread until the block ends, then close the socket. Print and yield the URL.

    `loop` is the health of the daemon's loop, if a daemon serves the pages. Raises UsageError or StorageError.
    """
    from orchestrator.web.app import Pages
    from orchestrator.web.serving import hosts_of, serving

    with closing(listener):
        access = access_at(listener, context.place, options)
        url = f"http://{url_host(options.host)}:{listener.getsockname()[1]}"

        def say_link() -> None:
            say(f"orch: pages at {url}{access.new_link() or '/'}")

        say_link()
        if not is_loopback(listener):
            say("orch: put a proxy with TLS before it: keys and answers are not encrypted here")
        pages = Pages(readers, access, hosts_of(listener, options.names), say_link, loop)
        with serving(pages.application(), listener):
            yield url


class _KeyFile:
    """The keys in the folder of `orch serve`. Each access rereads them, because other processes add and revoke
    keys.
    """

    def __init__(self, place: Place) -> None:
        self._path = serve_folder(place) / FILE_NAME

    def has_any(self) -> bool:
        return any(key.right.may_view and key.revoked_at is None for key in self._ask_keys(Keys.all) or ())

    def find(self, secret: bytes) -> Key | None:
        return self._ask_keys(lambda keys: keys.find(secret))

    def current(self, key_id: str) -> Key | None:
        return self._ask_keys(lambda keys: keys.current(key_id))

    def _ask_keys(self, ask: Callable[[Keys], Answer]) -> Answer | None:
        if not self._path.exists():
            return None
        database = ServerDatabase(self._path)
        try:
            return ask(Keys(database))
        finally:
            database.close()
