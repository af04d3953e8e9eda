"""Text for the source of a forecast."""

from __future__ import annotations


def source(count: int, what: str, enough: int) -> str:
    """Return the source of a forecast with `count` observations: `assumed` if there are no observations.

    Otherwise, the text is like `from 312 rows`. If `count` is below `enough`, it is like `from 12 rows, else
    assumed`. `what` is the plural noun.
    """
    if not count:
        return "assumed"
    observed = f"from {count:,} {what if count > 1 else what[:-1]}"
    return observed if count >= enough else f"{observed}, else assumed"
