"""Why an upstream cannot be reached, in the operating system's words.

Each library words the same refusal in its own way and puts an address or a whole URL into it; a user reads one text,
and a stranger no address.
"""

from __future__ import annotations

import os
import ssl


def reason(error: BaseException) -> str:
    """What went wrong, such as `Connection refused`; the name of the error where there are no words for it."""
    error = getattr(error, "os_error", error)  # aiohttp's holds the system's
    if isinstance(error, ssl.SSLError):
        return f"TLS: {getattr(error, 'reason', None) or type(error).__name__}"
    if not isinstance(error, OSError):
        return type(error).__name__
    # The errors of names that do not resolve are below zero, and have their own words.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or type(error).__name__
