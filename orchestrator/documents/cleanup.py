"""Removes meaningless parts of documents: spaces, invisible characters, page headers and footers. Pure.

The result depends only on the document itself, never on other documents.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

RULES_VERSION = 1
"""Part of the fingerprint of cleaned texts. Increase it whenever a rule changes results."""
PAGE_BREAK = "\f"
MARGIN_LINES = 3
"""Number of lines at the top, and at the bottom, of a page that may be its header or footer."""
MARGIN_LENGTH = 2000
"""Maximum characters of a line in which a page number is searched for."""
MARGIN_NUMBERS = 20
"""Maximum numbers at each end of a line that are tried as the page number."""
FEWEST_PAGES = 3

# Soft hyphen, zero-width space, word joiner, byte order mark. The joiners U+200C and U+200D are missing because the
# spelling of some languages and emoji need them.
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
_BLANKS = r"[ \t\u00a0\u2000-\u200a\u202f\u205f\u3000]"
_GAP = re.compile(rf"(?<=\S)(?:{_BLANKS}{{2,}}|\t)(?=\S)")
_BLANK_CHARACTERS = " \t\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_NUMBER = re.compile(r"\d{1,5}")


def clean(text: str, *, whitespace: bool, boilerplate: bool) -> str:
    """Return the cleaned text, or the original if nothing would remain."""
    found = _without_margins(text) if boilerplate else text
    found = _without_blanks(found) if whitespace else found
    return found if found.strip() else text


def _without_blanks(text: str) -> str:
    """Shorten runs of spaces and of empty lines to one, and remove trailing spaces and invisible characters.

    Indents and code between fences stay. Gaps in two consecutive lines count as columns and stay, too.
    """
    lines: list[str] = []
    for line, is_code in _fenced(text.split("\n")):
        kept = line if is_code else line.translate(_INVISIBLE).rstrip(_BLANK_CHARACTERS)
        if kept or is_code or (lines and lines[-1]):
            lines.append(kept)
    while lines and not lines[-1]:
        lines.pop()
    gaps = [_GAP.search(line) is not None for line in lines]
    return "\n".join(
        line if is_code or before or after else _GAP.sub(" ", line)
        for (line, is_code), before, after in zip(_fenced(lines), [False, *gaps], [*gaps[1:], False], strict=False)
    )


def _fenced(lines: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield each line with True if it is a fence or fenced code, else False. An unclosed fence extends to the end."""
    fence = ""
    for line in lines:
        found = _FENCE.match(line.translate(_INVISIBLE))
        if fence:
            yield line, True
            if found is not None and found[1].startswith(fence) and line.strip() == found[1]:
                fence = ""
        else:
            fence = "" if found is None else found[1]
            yield line, found is not None


class _Line(Struct, frozen=True):
    """A line near the edge of a page. `marks` identify it on other pages.

    One mark is the hash of the line. Each further mark leaves out one number: the hash of the rest, and the number's
    distance from the page number.
    """

    index: int
    marks: frozenset[tuple[int, int | None]]


def _without_margins(text: str) -> str:
    """Keep only the first occurrence of lines that repeat at the top or bottom of most pages.

    A number in such lines may be the page number. Documents with fewer than FEWEST_PAGES pages stay unchanged.
    """
    pages = [page.split("\n") for page in text.split(PAGE_BREAK)]
    if len(pages) < FEWEST_PAGES:
        return text
    for is_foot in (False, True):
        edges = [_outer_lines(page, number, is_foot=is_foot) for number, page in enumerate(pages, 1)]
        on_pages = Counter(mark for edge in edges for mark in {mark for line in edge for mark in line.marks})
        repeated = {mark for mark, many in on_pages.items() if 2 * many > len(pages) and many >= FEWEST_PAGES}
        told: set[tuple[int, int | None]] = set()
        for page, edge in zip(pages, edges, strict=True):
            gone = []
            for line in edge:
                known = line.marks & repeated
                if not known:
                    break  # lines further from the edge are the page's own text
                if known & told:
                    gone.append(line.index)
                told |= known
            for index in sorted(gone, reverse=True):
                del page[index]
    return PAGE_BREAK.join("\n".join(page) for page in pages)


def _outer_lines(page: list[str], number: int, *, is_foot: bool) -> list[_Line]:
    order = range(len(page) - 1, -1, -1) if is_foot else range(len(page))
    there = [index for index in order if page[index].strip()][:MARGIN_LINES]
    return [_Line(index, _marks(" ".join(page[index].split()), number)) for index in there]


def _marks(line: str, number: int) -> frozenset[tuple[int, int | None]]:
    numbers = list(_NUMBER.finditer(line)) if len(line) <= MARGIN_LENGTH else []
    numbered = {
        (hash(f"{line[: found.start()]}#{line[found.end() :]}"), int(found[0]) - number)
        for found in (*numbers[:MARGIN_NUMBERS], *numbers[-MARGIN_NUMBERS:])
    }
    return frozenset({(hash(line), None), *numbered})
