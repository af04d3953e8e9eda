"""One refusal, one text: whichever library or event loop met it."""

from __future__ import annotations

import errno
import socket
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from orchestrator.core import unreachable

ADDRESS = "('127.0.0.1', 41771)"
KEY = ConnectionKey("upstream.internal", 8000, False, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "Connection refused"),
        # asyncio's loop, and uvloop's older words for the same
        (ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {ADDRESS}"), "Connection refused"),
        (OSError(errno.ENETUNREACH, f"Multiple exceptions: {ADDRESS}"), "Network is unreachable"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (OSError(f"no errno, and an address {ADDRESS}"), "OSError"),
        (TimeoutError(), "TimeoutError"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"), "TLS: SSLError"),
    ],
)
def test_what_is_told_has_the_words_of_the_system_and_no_address(error: Exception, told: str) -> None:
    assert unreachable.reason(error) == told
    if isinstance(error, OSError):
        assert unreachable.reason(aiohttp.ClientConnectorError(KEY, error)) == told
