"""Lets functions in a worker process request more memory."""

from __future__ import annotations

import resource
from contextlib import suppress


def ask_for_more() -> None:
    """Raise this process's memory limit to its maximum, permanently, because libraries keep some memory after use."""
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
