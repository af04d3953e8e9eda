"""What a function in a worker process may ask for."""

from __future__ import annotations

import resource
from contextlib import suppress


def ask_for_more() -> None:
    """Let this process have the most memory that it may, from now on: libraries keep some of what they had."""
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
