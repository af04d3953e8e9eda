"""Web servers that lead on to other hosts: followed only where the source says so.

Who answers at an address does not decide whom this machine asks: a redirect may lead to a host of the network here,
or to a cloud's metadata service, and its answer would go to a model.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin, urlsplit

_MOST_CAUSES = 8


class LedElsewhere(Exception):
    """A server led to another host, or from https to http."""

    def __init__(self, address: str, to: str) -> None:
        super().__init__(f"{address} leads to {to}, which is another host; `follow_links: true` follows it")


def led_elsewhere(error: BaseException | None) -> LedElsewhere | None:
    """What is behind an error of a storage, where that is a redirect that was not followed."""
    for _ in range(_MOST_CAUSES):
        if error is None or isinstance(error, LedElsewhere):
            return error
        error = error.__cause__ or error.__context__
    return None


def is_elsewhere(address: str, to: str) -> bool:
    """Whether a redirect leaves the host; from http to https at the same name it does not."""
    here, there = urlsplit(address), urlsplit(to)
    if (here.scheme, here.netloc) == (there.scheme, there.netloc):
        return False
    is_upgrade = (here.scheme, there.scheme) == ("http", "https") and here.hostname == there.hostname
    return not (is_upgrade and here.port in (None, 80) and there.port in (None, 443))


async def staying_client(**options: Any) -> Any:
    """A client for fsspec's web storage that raises LedElsewhere in place of following."""
    import aiohttp

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_check)
    return aiohttp.ClientSession(trace_configs=[trace], **options)


async def _check(session: Any, context: Any, about: Any) -> None:
    address, headers = str(about.url), about.response.headers
    to = urljoin(address, headers.get("Location") or headers.get("URI") or "")
    if is_elsewhere(address, to):
        about.response.close()
        raise LedElsewhere(address, to)
