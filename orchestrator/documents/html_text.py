"""The visible text of an HTML page, a line per block."""

from __future__ import annotations

import re
from collections.abc import Iterator

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from orchestrator.documents.encoding import clean, decode
from orchestrator.documents.html_shape import tamed

_DROPPED = frozenset(
    "script style nav noscript template svg iframe object canvas head title button select _comment -comment".split()
)
_LINES = frozenset(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure "
    "footer form header hgroup hr legend li main menu ol option section summary table tbody tfoot thead tr td th "
    "ul br".split()
)
_PARAGRAPHS = frozenset("p h1 h2 h3 h4 h5 h6 blockquote table ul ol dl pre".split())
_DECLARED = re.compile(rb"""<meta[^>]+charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]+)""", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\n\r\f]+")  # not \s: a no-break space is content
_BLANK_LINES = re.compile(r"\n{3,}")


def extract(data: bytes, encoding: str | None, most: int = 0) -> tuple[str, dict[str, object]]:
    """Text and `{"title": ...}`. Raises ExtractionError (encoding), MemoryError."""
    del most  # it has hardly more characters than the page
    try:
        page = LexborHTMLParser(tamed(decode(data, encoding, declared_encoding(data))))
    except SelectolaxError as error:  # any page can be parsed, with memory enough
        raise MemoryError from error
    title = page.css_first("title")
    fields: dict[str, object] = {"title": _SPACE.sub(" ", clean(title.text())).strip() if title else ""}
    if page.root is None:
        return "", fields
    return clean(block_text(page.root)), fields


def declared_encoding(data: bytes) -> str | None:
    """The `charset` of a meta element in the first KiB; Latin-1 means windows-1252, as in browsers."""
    found = _DECLARED.search(data[:1024])
    if found is None:
        return None
    name = found[1].decode("ascii").lower()
    return "cp1252" if name in ("iso-8859-1", "latin1", "latin-1", "us-ascii", "ascii") else name


class _Lines:
    """Collects inline text into lines and lines into paragraphs."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.inline: list[str] = []
        self.is_item = False
        """Whether a list item waits for the first line that bears its mark."""

    def end_line(self) -> None:
        text = _SPACE.sub(" ", "".join(self.inline)).strip(" ")
        self.inline.clear()
        if text:
            self.done.append(f"- {text}" if self.is_item else text)
            self.is_item = False

    def end_paragraph(self) -> None:
        self.end_line()
        if not self.is_item and self.done and self.done[-1] != "":
            self.done.append("")

    def end_item(self) -> None:
        self.end_line()
        self.is_item = False


_END = {"paragraph": _Lines.end_paragraph, "line": _Lines.end_line, "item": _Lines.end_item}


def block_text(root: LexborNode) -> str:
    """Depth first with a stack of our own: pages nest deeper than Python may recurse."""
    lines = _Lines()
    stack: list[LexborNode | str] = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            _END[item](lines)
            continue
        tag = item.tag or ""
        if tag == "-text":
            lines.inline.append(item.text_content or "")
        elif tag == "pre":
            lines.end_paragraph()
            lines.done += [*item.text().strip("\n").split("\n"), ""]
        elif tag == "tr" and (cells := _cells(item)):
            lines.end_line()
            lines.done.append(" | ".join(cells))
        elif tag not in _DROPPED:
            _open(item, tag, lines, stack)
    lines.end_line()
    return _BLANK_LINES.sub("\n\n", "\n".join(lines.done)).strip()


def _open(node: LexborNode, tag: str, lines: _Lines, stack: list[LexborNode | str]) -> None:
    if tag == "li":
        lines.end_line()
        lines.is_item = True
        stack.append("item")
    elif tag in _PARAGRAPHS:
        lines.end_paragraph()
        stack.append("paragraph")
    elif tag in _LINES:
        lines.end_line()
        stack.append("line")
    stack.extend(reversed(list(node.iter(include_text=True))))


def _cells(row: LexborNode) -> list[str]:
    """The cells of a data row, each on one line; none for a row that only serves layout."""
    cells = [cell for cell in row.iter() if cell.tag in ("td", "th")]
    if len(cells) < 2 or row.css_first("table") is not None:
        return []
    return [" ".join(_inner_lines(cell)) for cell in cells]


def _inner_lines(cell: LexborNode) -> Iterator[str]:
    return (line for line in block_text(cell).split("\n") if line)
