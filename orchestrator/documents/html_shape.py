"""Removes deep nesting and excess formatting elements, which would make parsing time quadratic.

For most tags, an HTML parser searches all open elements. In each paragraph, it reopens every open formatting element
(`<b>`). Browsers stop nesting at a depth of 512. Here, deeper tags are removed before the page is parsed. The text
stays the same, and pages written by people are unchanged.
"""

from __future__ import annotations

import re

MAX_DEPTH = 512
MAX_FORMATTING = 32
MAX_TAG = 16 * 1024
"""Maximum characters of a tag with its attributes. A longer tag loses its attributes."""

_FORMATTING = frozenset("a b big code em font i nobr s small strike strong tt u".split())
# Elements that end where the next one begins, or that have no end tag.
_NO_DEPTH = frozenset(
    "p li dt dd tr td th thead tbody tfoot option optgroup rp rt rb rtc colgroup caption html head body "
    "area base br col embed hr img input link meta param source track wbr".split()
)
# The search for an end tag's start tag stops at these elements.
_WALLS = frozenset("applet marquee object table template".split())
_BLOCKS = _WALLS | frozenset(
    "address article aside blockquote button center details dialog dir div dl fieldset figcaption figure footer form "
    "frameset h1 h2 h3 h4 h5 h6 header hgroup listing main menu nav noscript ol pre search section select summary "
    "ul".split()
)
_RAW = frozenset("script style title textarea xmp iframe noembed noframes".split())
# A tag with its attributes, or the start of a comment or unfinished tag. Quotes may contain `>` only after an equals
# sign.
_TAG = re.compile(
    r"<(?:(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*+)(?:[^>=]++|=\s*+(?:\"[^\"]*+\"|'[^']*+'|(?![\"'])))*+>|!--|/?[A-Za-z])"
)


def tamed(page: str) -> str:
    """Return the page without tags beyond `MAX_DEPTH`, and without formatting tags beyond `MAX_FORMATTING`.

    A tag longer than `MAX_TAG` loses its attributes.
    """
    if page.count("<") <= MAX_DEPTH and len(page) <= MAX_TAG:
        return page
    return _Tamer(page).tamed()


class _Tamer:
    """Tracks open elements roughly as a parser does. Where it differs from a parser, it removes a few more tags."""

    def __init__(self, page: str) -> None:
        self._page = page
        self._open: list[str] = []
        self._formatting = 0
        self._kept: list[str] = []
        self._copied = 0

    def tamed(self) -> str:
        page, at = self._page, 0
        while at >= 0 and (found := _TAG.search(page, at)) is not None:
            close, name = found.group("close", "name")
            if name is not None:
                at = self._tag(found, name.lower(), is_end=bool(close))
            elif found[0] == "<!--":
                at = page.find("-->", found.end())
            else:
                break  # the tag never ends, so a parser finds no further tags
        return "".join([*self._kept, page[self._copied :]]) if self._kept else page

    def _tag(self, found: re.Match[str], name: str, *, is_end: bool) -> int:
        """Process a tag. Return the offset from which to search for the next tag; -1 if none can follow."""
        begin, end = found.span()
        if name in _RAW and not is_end:
            raw_end = re.compile(rf"</{name}[\s/>]", re.IGNORECASE).search(self._page, end)
            return -1 if raw_end is None else raw_end.start()
        if name == "plaintext":
            return -1
        if end - begin > MAX_TAG:
            self._replace(found, f"<{'/' if is_end else ''}{name}>")
        if name not in _NO_DEPTH:
            self._end(name) if is_end else self._begin(found, name)
        return end

    def _begin(self, found: re.Match[str], name: str) -> None:
        if len(self._open) >= MAX_DEPTH or (name in _FORMATTING and self._formatting >= MAX_FORMATTING):
            self._replace(found, "<br>" if name in _BLOCKS else "")
            return
        self._open.append(name)
        self._formatting += name in _FORMATTING

    def _end(self, name: str) -> None:
        if self._open and self._open[-1] == name:
            self._open.pop()
            self._formatting -= name in _FORMATTING
            return
        walls = _WALLS if name in _BLOCKS or name in _FORMATTING else _BLOCKS
        for at in range(len(self._open) - 1, -1, -1):
            one = self._open[at]
            if one == name:
                # A formatting element or form ends alone; any other element also ends all open elements inside it.
                gone = self._open[at : at + 1 if name in _FORMATTING or name == "form" else None]
                del self._open[at : at + len(gone)]
                self._formatting -= sum(other in _FORMATTING for other in gone)
                return
            if one in walls:
                return

    def _replace(self, found: re.Match[str], by: str) -> None:
        if self._copied == found.end():
            self._kept.pop()  # replaces the previous replacement of the same tag
        self._kept += [self._page[self._copied : found.start()], by]
        self._copied = found.end()
