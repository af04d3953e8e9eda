"""Superscripts and subscripts in plain text. Without them, 1,200³ would be read as 1,2003."""

from __future__ import annotations

from collections.abc import Callable

_RAISED = str.maketrans("0123456789+-−=()ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿⁱ")
_LOWERED = str.maketrans("0123456789+-−=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")


def raised(text: str) -> str:
    """Return a superscript in Unicode characters, or after `^`. A text without digits is unchanged, as in 4th."""
    return _marked(text, _RAISED, "^")


def lowered(text: str) -> str:
    """Return a subscript in Unicode characters, or after `_`. A text without digits is unchanged."""
    return _marked(text, _LOWERED, "_")


def script_of(position: str) -> Callable[[str], str] | None:
    """Return the function for OpenDocument's `text-position` (`super 58%`, `sub 58%`, or a shift in percent), or
    None.
    """
    word = position.split(" ")[0]
    if word == "super" or (word.endswith("%") and not word.startswith(("-", "0"))):
        return raised
    return lowered if word == "sub" or word.startswith("-") else None


def _marked(text: str, characters: dict[int, int], mark: str) -> str:
    inner = text.strip()
    if "[" in inner or not any(character.isdecimal() for character in inner):  # "[": a note's mark stays as it is
        return text
    if all(ord(character) in characters for character in inner):
        return text.translate(characters)
    before, _, after = text.partition(inner)
    return f"{before}{mark}({inner}){after}" if " " in inner else f"{before}{mark}{inner}{after}"
