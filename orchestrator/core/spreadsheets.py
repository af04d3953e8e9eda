"""Texts that spreadsheets would take for formulas."""

from __future__ import annotations

_STARTS = ("=", "+", "-", "@", "\t", "\r")
BOM = "\ufeff"
"""The first character of a CSV file that spreadsheets then read as UTF-8."""


def no_formula(text: str) -> str:
    """Return a text that no spreadsheet runs: one that looks like a formula is quoted."""
    return f"'{text}" if text.startswith(_STARTS) else text
