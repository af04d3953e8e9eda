"""Probabilities in words, the same in every table, sentence and page."""

from __future__ import annotations

from math import floor


def chance_words(chance: float) -> str:
    """Format a probability as a whole percentage, rounded down.

    Below 1% and from 99% on it has one decimal, and is at least 0.1%. Only a certain outcome reads 0% or 100%.
    """
    if chance <= 0 or chance >= 1:
        return "100%" if chance >= 1 else "0%"
    if 0.01 <= chance < 0.99:
        return f"{floor(chance * 100 + 1e-9)}%"
    return f"{max(1, floor(chance * 1000 + 1e-9)) / 10:.1f}%"
