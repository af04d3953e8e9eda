"""The reason why an upstream cannot be reached, in the operating system's words.

Each library words the same refusal differently and includes an address or a whole URL; here users always get the same
text, without an address.
"""

from __future__ import annotations

import os
import ssl


def reason(error: BaseException) -> str:
    """Return the cause, such as `Connection refused`, or the name of the error if it has no text."""
    error = getattr(error, "os_error", error)  # aiohttp wraps the system's error
    if isinstance(error, ssl.SSLError):
        return f"TLS: {getattr(error, 'reason', None) or type(error).__name__}"
    if not isinstance(error, OSError):
        return type(error).__name__
    # Errors of names that do not resolve have numbers below zero, and their own texts.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or type(error).__name__
