"""Lines of JSON that every reader splits in the same places."""

from __future__ import annotations

# Each is a lead byte with its own tail, so in valid UTF-8 these bytes are always this character.
_SEPARATORS = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)


def single_line(line: bytes) -> bytes:
    """Escape U+2028, U+2029 and U+0085 in a line of JSON.

    JSON allows these characters in strings, and only there. Python's `splitlines`, and with it the line iterators of
    several SDKs, end a line at each.
    """
    if line.isascii():
        return line
    for raw, escaped in _SEPARATORS:
        if raw in line:
            line = line.replace(raw, escaped)
    return line
