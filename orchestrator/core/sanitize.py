"""Pure functions that make untrusted text (from models, documents, providers) safe to print.

A terminal obeys escape sequences from any source, and bidirectional controls make a line look like different text.
Each such character is printed as an escape such as `\\u001b`. JSON uses the same escapes, so JSON keeps its meaning.
"""

from __future__ import annotations

import re

# C0 without tab and newline, DEL, C1, the Bidi_Control property, line and paragraph separators, lone surrogates. A
# carriage return before a newline ends a line; elsewhere, it overwrites the line.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)
_BLANKS = re.compile(r"[ \t\r\n]+")


def escape_controls(text: str) -> str:
    """Replace each control character with `\\uXXXX`. Tabs and newlines stay."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """Return the text on one line, with control characters escaped."""
    return _BLANKS.sub(" ", escape_controls(text)).strip(" ")


def shortened(text: str, most: int) -> str:
    """Return the text on one line of at most `most` characters; `…` marks a cut."""
    return cut(one_line(text), most)


def cut(text: str, most: int) -> str:
    """Return a text of at most `most` characters; `…` marks a cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


_STARTS = ("=", "+", "-", "@", "\t", "\r")
BOM = "\ufeff"
"""First character of a CSV file, so that spreadsheets read the file as UTF-8."""


def no_formula(text: str) -> str:
    """Return the text, with a leading `'` if a spreadsheet could run it as a formula."""
    return f"'{text}" if text.startswith(_STARTS) else text
