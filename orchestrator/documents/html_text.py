"""Visible text of an HTML page, one line per block.

A page that shows nothing without scripts yields its hidden text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from orchestrator.documents.encoding import ON_THE_WEB, clean, decode
from orchestrator.documents.html_shape import tamed
from orchestrator.documents.list_numbers import in_shape
from orchestrator.documents.superscripts import lowered, raised
from orchestrator.documents.types import ExtractionError

_NEVER_TEXT = frozenset(
    "script style template svg iframe canvas head title annotation annotation-xml _comment -comment".split()
)
"""Elements that no browser shows as text.

`<object>` is not included: browsers show its text if they cannot show the object.
"""
_DROPPED = _NEVER_TEXT | frozenset("nav noscript button select".split())
_HEADINGS = frozenset("h1 h2 h3 h4 h5 h6 dt summary legend th".split())
_LINES = frozenset(
    "address article aside audio blockquote body button caption center dd details dialog div dl dt fieldset "
    "figcaption figure footer form header hgroup hr legend li main menu object ol option section summary table tbody "
    "textarea tfoot thead tr td th ul video br".split()
)
_PARAGRAPHS = frozenset("p h1 h2 h3 h4 h5 h6 blockquote table ul ol dl pre".split())
_DECLARED = re.compile(
    rb"""<meta[^>]+charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]+)|^\s*<\?xml[^>]+encoding\s*=\s*["']([A-Za-z0-9_:.-]+)""",
    re.IGNORECASE,
)
_HEAD_BYTES = 64 * 1024
"""Bytes to search for a page's encoding declaration. Browsers stop after 1,024 bytes from the network."""
_ALWAYS, _FEW = 3, 1000
"""Damaged characters allowed in the declared encoding: `_ALWAYS`, or one in `_FEW` if that is more."""
_HIDDEN = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden|mso-hide\s*:\s*all)\b", re.IGNORECASE)
_MAY_HIDE = ("hidden", "none", "mso-hide")
"""Words of which every page with hidden text has at least one.

On other pages no element is tested, which saves a tenth of the time.
"""
_SHAPES = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
"""Number format for each value of a list's `type` attribute."""
_TWO_PARTS = {"msup": "sup", "msub": "sub", "mfrac": "denominator"}
"""MathML elements with two children, and the role of the second child."""
_FORMULA = re.compile(r"\b(?:math|tex|latex)\b", re.IGNORECASE)
"""Matches the class of a formula's picture, such as Wikipedia's `mwe-math-fallback-image-inline`. Its `alt` is the
formula.
"""
_SPACE = re.compile(r"[ \t\n\r\f]+")  # not \s: a no-break space is content
_BLANK_LINES = re.compile(r"\n{3,}")


def extract(data: bytes, encoding: str | None, most: int = 0) -> tuple[str, dict[str, object]]:
    """Return the text and `{"title": ...}`. Raises ExtractionError (encoding), MemoryError."""
    del most  # the text is not longer than the page, which was measured
    try:
        html = _decoded(data, encoding)
        page = LexborHTMLParser(tamed(html))
    except SelectolaxError as error:  # the parser fails only for lack of memory
        raise MemoryError from error
    title = page.css_first("title")
    fields: dict[str, object] = {"title": _SPACE.sub(" ", clean(title.text())).strip() if title else ""}
    if page.root is None:
        return "", fields
    lowered_html = html.lower()
    shows_hidden = not any(word in lowered_html for word in _MAY_HIDE)
    return clean(
        block_text(page.root, shows_hidden=shows_hidden)
        or block_text(page.root, dropped=_NEVER_TEXT, shows_hidden=True)
    ), fields


def _decoded(data: bytes, encoding: str | None) -> str:
    declared = declared_encoding(data)
    try:
        return decode(data, encoding, declared)
    except ExtractionError:
        if encoding is not None or declared is None or declared not in ON_THE_WEB:
            raise
        text = data.decode(declared, "replace")
        if text.count("\ufffd") > max(_ALWAYS, len(text) // _FEW):
            raise
        return clean(text)


def declared_encoding(data: bytes) -> str | None:
    """Return the encoding of a meta element or XML declaration. As in browsers, Latin-1 means windows-1252."""
    found = _DECLARED.search(data[:_HEAD_BYTES])
    if found is None:
        return None
    name = (found[1] or found[2]).decode("ascii").lower()
    return "cp1252" if name in ("iso-8859-1", "latin1", "latin-1", "us-ascii", "ascii") else name


class _Lines:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.inline: list[str] = []
        self.mark = ""
        """Prefix of the next line if it starts a list item."""
        self.numbers: list[int | None] = []
        """Number of the latest item in each open list; None for lists without numbers."""
        self.shapes: list[str] = []
        """Number format of each open list."""
        self.scripts: list[int] = []
        """Index into `inline` at which each open superscript or subscript starts."""

    def end_line(self) -> None:
        text = _SPACE.sub(" ", "".join(self.inline)).strip(" ")
        self.inline.clear()
        if text:
            self.done.append(f"{self.mark}{text}")
            self.mark = ""

    def end_paragraph(self) -> None:
        self.end_line()
        if not self.mark and self.done and self.done[-1] != "":
            self.done.append("")

    def end_item(self) -> None:
        self.end_line()
        self.mark = ""

    def begin_item(self, value: str | None) -> None:
        self.end_line()
        self.mark = "- "
        if self.numbers and (latest := self.numbers[-1]) is not None:
            self.numbers[-1] = number = _whole(value, latest + 1)
            self.mark = f"{in_shape(number, self.shapes[-1])}. "

    def end_list(self) -> None:
        self.end_paragraph()
        self.numbers.pop()
        self.shapes.pop()

    def begin_script(self) -> None:
        self.scripts.append(len(self.inline))

    def end_sup(self) -> None:
        self._end_script(raised)

    def end_sub(self) -> None:
        self._end_script(lowered)

    def end_denominator(self) -> None:
        self._end_script(lambda text: f"/({text})" if len(text.strip()) > 1 else f"/{text}")

    def _end_script(self, change: Callable[[str], str]) -> None:
        begin = self.scripts.pop()
        if begin < len(self.inline):  # otherwise a line ended inside the script
            self.inline[begin:] = [change("".join(self.inline[begin:]))]


_END = {
    "paragraph": _Lines.end_paragraph,
    "line": _Lines.end_line,
    "item": _Lines.end_item,
    "list": _Lines.end_list,
    "script": _Lines.begin_script,
    "sup": _Lines.end_sup,
    "sub": _Lines.end_sub,
    "denominator": _Lines.end_denominator,
}


def _whole(value: str | None, otherwise: int) -> int:
    try:
        return otherwise if value is None else int(value[:9])
    except ValueError:
        return otherwise


def block_text(root: LexborNode, dropped: frozenset[str] = _DROPPED, *, shows_hidden: bool = False) -> str:
    """Return the text below `root`, without the `dropped` elements and, unless `shows_hidden`, without hidden
    elements.

    The walk uses an explicit stack, because pages nest deeper than Python's recursion limit.
    """
    lines = _Lines()
    stack: list[LexborNode | str] = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            _END[item](lines)
            continue
        tag = item.tag or ""
        if (tag in dropped and not (tag == "button" and _is_content(item))) or (
            not shows_hidden and tag != "-text" and _is_hidden(item)
        ):
            continue
        if tag == "-text":
            lines.inline.append(item.text_content or "")
        elif tag == "img":
            about = item.attributes
            lines.inline.append((about.get("alt") or "") if _FORMULA.search(about.get("class") or "") else "")
        elif tag == "pre":
            lines.end_paragraph()
            lines.done += [*item.text().strip("\n").split("\n"), ""]
        elif tag == "tr" and (cells := _cells(item)):
            lines.end_line()
            lines.done.append(" | ".join(cells))
        else:
            _open(item, tag, lines, stack)
    lines.end_line()
    return _BLANK_LINES.sub("\n\n", "\n".join(lines.done)).strip()


def _is_hidden(node: LexborNode) -> bool:
    attributes = node.attributes
    return "hidden" in attributes or _HIDDEN.search(attributes.get("style") or "") is not None


def _is_content(button: LexborNode) -> bool:
    """Return True for a button that heads folded text, or that swallowed content because its end tag is missing."""
    above = button.parent
    while above is not None and above.tag == "span":
        above = above.parent
    return (above is not None and above.tag in _HEADINGS) or button.css_first("p, table, h1, h2, h3") is not None


def _open(node: LexborNode, tag: str, lines: _Lines, stack: list[LexborNode | str]) -> None:
    if tag == "li":
        lines.begin_item(node.attributes.get("value"))
        stack.append("item")
    elif tag in ("ol", "ul"):
        lines.end_paragraph()
        about = node.attributes
        lines.numbers.append(_whole(about.get("start"), 1) - 1 if tag == "ol" else None)
        lines.shapes.append(_SHAPES.get(about.get("type") or "", "decimal"))
        stack.append("list")
    elif tag in ("sup", "sub"):
        lines.begin_script()
        stack.append(tag)
    elif tag in _TWO_PARTS and len(parts := list(node.iter())) == 2:
        stack += [_TWO_PARTS[tag], parts[1], "script", parts[0]]
        return
    elif tag in _PARAGRAPHS:
        lines.end_paragraph()
        stack.append("paragraph")
    elif tag in _LINES:
        lines.end_line()
        stack.append("line")
    stack.extend(reversed(list(node.iter(include_text=True))))


def _cells(row: LexborNode) -> list[str]:
    cells = [cell for cell in row.iter() if cell.tag in ("td", "th")]
    if len(cells) < 2 or row.css_first("table") is not None:  # a row that only serves layout
        return []
    return [" ".join(filter(None, block_text(cell).split("\n"))) for cell in cells]
