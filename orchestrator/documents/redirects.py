"""Redirects of web servers to other hosts, which are followed only if the source allows them.

The server at an address must not decide which host this machine contacts. A redirect may lead to a host in the local
network or to a cloud's metadata service, and its response would go to a model.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin, urlsplit

_MOST_CAUSES = 8


class LedElsewhere(Exception):
    """A server redirected to another host, or from https to http."""

    def __init__(self, address: str, to: str) -> None:
        super().__init__(f"{address} leads to {to}, which is another host; `follow_links: true` follows it")


def led_elsewhere(error: BaseException | None) -> LedElsewhere | None:
    """Return the refused redirect that caused a storage's error, or None."""
    for _ in range(_MOST_CAUSES):
        if error is None or isinstance(error, LedElsewhere):
            return error
        error = error.__cause__ or error.__context__
    return None


def is_elsewhere(address: str, to: str) -> bool:
    """Return True if a redirect or listed address leads to another host or port, or from https to http."""
    here, there = urlsplit(address), urlsplit(to)
    if (here.scheme, here.netloc) == (there.scheme, there.netloc):
        return False
    is_upgrade = (here.scheme, there.scheme) == ("http", "https") and here.hostname == there.hostname
    return not (is_upgrade and here.port in (None, 80) and there.port in (None, 443))


async def staying_client(**options: Any) -> Any:
    """Return an HTTP client for fsspec that raises LedElsewhere instead of following a redirect to another host."""
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
