"""Reasons why a server cannot be reached, in the operating system's words, and their cures.

Libraries word the same error differently, and include an address or a whole URL. This module always gives users the
same text, without an address.
"""

from __future__ import annotations

import os
import socket
import ssl
from enum import StrEnum


class Unreached(StrEnum):
    """Reasons for a failed connection that have their own cures."""

    NAME = "name"  # this machine does not know the host's name
    TLS = "tls"  # the server does not speak TLS, or its certificate is not trusted


CURES: dict[str, str] = {
    Unreached.NAME: "correct the name of its host in orch.toml",
    Unreached.TLS: "write http:// in orch.toml if it has no TLS; else name the authority of its certificate in"
    " SSL_CERT_FILE",
}


def reason(error: BaseException) -> str:
    """Return the cause, such as `Connection refused`, or the name of the error if it has no text."""
    error = _system_error(error)
    if isinstance(error, ssl.SSLError):
        return f"TLS: {getattr(error, 'reason', None) or type(error).__name__}"
    if not isinstance(error, OSError):
        return type(error).__name__
    # Errors of name resolution have negative numbers and their own texts.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or type(error).__name__


def unreached(error: BaseException | None) -> Unreached | None:
    """Return why no connection was made, if that reason has its own cure; otherwise None."""
    match None if error is None else _system_error(error):
        case socket.gaierror() | UnicodeError():
            return Unreached.NAME
        case ssl.SSLError():
            return Unreached.TLS
        case _:
            return None


def _system_error(error: BaseException) -> BaseException:
    wrapped = getattr(error, "os_error", None)
    if wrapped is None and not isinstance(error, OSError):
        wrapped = error.__cause__ or error.__context__
    return error if wrapped is None else _system_error(wrapped)
