"""Where a forecast comes from, in words."""

from __future__ import annotations


def source(count: int, what: str, enough: int) -> str:
    """`assumed`, `from 312 rows`, or both."""
    if not count:
        return "assumed"
    told = f"from {count:,} {what if count > 1 else what[:-1]}"
    return told if count >= enough else f"{told}, else assumed"
