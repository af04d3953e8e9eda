"""Regular expressions of JSON Schemas, matched in time linear in the text (RE2).

A schema's patterns are JavaScript's (ECMA-262). RE2 supports all but look-around and back-references, which need a
backtracking engine. Constructs that RE2 spells differently are translated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from orchestrator.core.sanitize import cut

MOST_MEMORY = 8 << 20
"""Maximum memory of a compiled pattern, in bytes."""
MOST_SHOWN = 80

_TOKEN = re.compile(
    r"\\u(?P<high>[dD][89abAB][0-9A-Fa-f]{2})\\u(?P<low>[dD][c-fC-F][0-9A-Fa-f]{2})"
    r"|\\u(?:\{(?P<code>[0-9A-Fa-f]{1,6})\}|(?P<four>[0-9A-Fa-f]{4}))"
    r"|\\c(?P<control>[A-Za-z])"
    r"|\\(?P<sign>[pP])\{(?P<property>[^}]*)\}"
    r"|\\(?P<escaped>.)"
    r"|(?P<all>\[\^\])|(?P<none>\[\])|(?P<opening>\[\^?)|(?P<closing>\])"
    r"|(?P<other>[^\\\[\]]+)",
    re.DOTALL,
)
_CATEGORIES = {
    "Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Mark": "M", "Number": "N",
    "Decimal_Number": "Nd", "Punctuation": "P", "Symbol": "S", "Currency_Symbol": "Sc", "Separator": "Z",
    "Alphabetic": "L", "White_Space": "Z",
}  # fmt: skip
_AROUND = (("(?=", "look-ahead"), ("(?!", "look-ahead"), ("(?<=", "look-behind"), ("(?<!", "look-behind"))
_BACK = re.compile(r"(?<!\\)(?:\\\\)*\\(?:[1-9]|k<)")
_FOREIGN = frozenset("CQE")  # RE2's own escapes, which mean something else in JavaScript


class PatternProblem(ValueError):
    """An invalid or unsupported pattern; the error's text says what to do."""


class Searcher(NamedTuple):
    """A compiled pattern: a search function and its number of instructions.

    A search takes at most the text's length times `size` steps, at about a hundred steps per microsecond.
    """

    found_in: Callable[[str], bool]
    size: int


@lru_cache(maxsize=1024)
def searcher(pattern: str) -> Searcher:
    """Compile a pattern, or return it from the cache. Raises PatternProblem."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MOST_MEMORY
    options.never_capture = True
    try:
        compiled = re2.compile("".join(_translated(pattern)), options)
    except (re2.error, ValueError, OverflowError) as error:
        raise PatternProblem(_refusal(pattern, error)) from None
    return Searcher(lambda text: compiled.search(text) is not None, compiled.programsize)


def _translated(pattern: str) -> Iterator[str]:
    in_class = False
    at = 0
    while at < len(pattern):
        found = _TOKEN.match(pattern, at)
        if found is None:
            raise ValueError("it ends with a backslash")
        at = found.end()
        match found.lastgroup:
            case "all" | "none" | "opening" if in_class:
                yield found[0].replace("[", r"\[")
                in_class = found.lastgroup == "opening"
            case "all":
                yield r"(?s:.)"
            case "none":
                yield r"[^\x{0}-\x{10FFFF}]"
            case "opening" | "closing":
                in_class = found.lastgroup == "opening"
                yield found[0]
            case "other":
                yield found[0]
            case _:
                yield _escape(found, in_class=in_class)


def _escape(found: re.Match[str], *, in_class: bool) -> str:
    if found["low"]:
        code = 0x10000 + ((int(found["high"], 16) - 0xD800) << 10) + int(found["low"], 16) - 0xDC00
        return rf"\x{{{code:X}}}"
    if digits := found["code"] or found["four"]:
        return rf"\x{{{digits}}}"
    if found["control"]:
        return rf"\x{{{ord(found['control']) % 32:X}}}"
    if found["sign"]:
        name = found["property"].rpartition("=")[2]
        return rf"\{found['sign']}{{{_CATEGORIES.get(name, name)}}}"
    if found["escaped"] == "b" and in_class:
        return r"\x{8}"
    if found["escaped"] in _FOREIGN:
        raise ValueError(f"invalid escape sequence: {found[0]}")
    return found[0]


def _refusal(pattern: str, error: Exception) -> str:
    shown = cut(pattern, MOST_SHOWN)
    for sign, name in _AROUND:
        if sign in pattern:
            return f"the pattern {shown!r} uses {name}, {sign}…), which is not supported; write it without"
    if _BACK.search(pattern):
        return f"the pattern {shown!r} refers back to a group, which is not supported; write it without"
    said = error.args[0] if error.args else ""
    why = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return f"the pattern {shown!r} cannot be used: {why[:200]}"
