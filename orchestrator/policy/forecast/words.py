"""Text for the source of a forecast."""

from __future__ import annotations


def source(count: int, what: str, enough: int) -> str:
    """Return `assumed` without observations, `from 312 rows` if `count` is at least `enough`, otherwise both
    texts.
    """
    if not count:
        return "assumed"
    observed = f"from {count:,} {what if count > 1 else what[:-1]}"
    return observed if count >= enough else f"{observed}, else assumed"
