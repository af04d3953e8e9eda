"""How many examples a property has that looks for rare ones."""

from __future__ import annotations

from hypothesis import settings

SHARE = 10


def ample(number: int) -> int:
    """A tenth of `number` in `make test`; in `make soak` as many as any property has there."""
    return max(settings().max_examples, number // SHARE)
