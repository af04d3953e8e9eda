"""An upstream that gives every POST the same bytes: for answers that no scripted fault has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.support.inthread import Answering, serving

MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


class Canned:
    """What each POST gets: `status`, `headers` and `body`, but only 503 behind the first `good_for` of them.

    `bodies` are the requests that came, `asked` the paths of GETs. `pages` are status and content of what a GET gets,
    by its path; all else is a 404.
    """

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str], good_for: int) -> None:
        self.status, self.body, self.headers, self.good_for = status, body, headers, good_for
        self.bodies: list[bytes] = []
        self.asked: list[str] = []
        self.pages = {"/v1/models": (200, MODELS)}
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@contextmanager
def canned(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None, *, good_for: int = 1_000_000
) -> Iterator[Canned]:
    found = Canned(status, body, headers or {}, good_for)

    class Handler(Answering):
        def do_GET(self) -> None:  # noqa: N802 - the library's name
            found.asked.append(self.path)
            self.answer(*found.pages.get(self.path, (404, b"{}")))

        def do_POST(self) -> None:  # noqa: N802 - the library's name
            found.bodies.append(self.read_body())
            if len(found.bodies) > found.good_for:
                self.answer(503, b'{"error":{"message":"full"}}', {"Retry-After": "60"})
            else:
                self.answer(found.status, found.body, found.headers)

    with serving(Handler) as found.port:
        yield found
