"""Lines of JSON that every reader splits at the same places."""

from __future__ import annotations

# UTF-8 is self-synchronizing: these bytes always stand for this character, never for parts of other characters.
_SEPARATORS = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)


def single_line(line: bytes) -> bytes:
    """Escape U+2028, U+2029 and U+0085 in a line of JSON.

    JSON allows these characters only in strings. Python's `splitlines`, which several SDKs use to iterate over lines,
    splits at each of the three.
    """
    if line.isascii():
        return line
    for raw, escaped in _SEPARATORS:
        if raw in line:
            line = line.replace(raw, escaped)
    return line
