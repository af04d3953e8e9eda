"""Text that strangers wrote (models, documents, providers), made safe to print: control characters are shown. Pure.

A terminal obeys escape sequences whoever sends them, and bidirectional controls make a line read as something else.
Each such character is printed as `\\u001b`. That is its escape in JSON too: what is JSON stays the same JSON.
"""

from __future__ import annotations

import re

# C0 without tab and newline, DEL, C1, the Bidi_Control property, line and paragraph separators, lone surrogates.
# A carriage return before a newline is a line's end; alone it overwrites what stands there.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)
_BLANKS = re.compile(r"[ \t\r\n]+")


def escape_controls(text: str) -> str:
    """The text with each control character as `\\uXXXX`. Tabs and newlines stay."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """The text on one line, with control characters shown."""
    return _BLANKS.sub(" ", escape_controls(text)).strip(" ")


def shortened(text: str, most: int) -> str:
    """The text on one line of at most so many characters; `…` where it goes on."""
    line = one_line(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"
