"""Readers for kinds that are read only if a pattern selects them: notebooks, drawings, markup, calendars,
contacts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from orchestrator.core.json_decoders import json_decoder
from orchestrator.documents.encoding import clean, decode
from orchestrator.documents.html_shape import tamed
from orchestrator.documents.html_text import block_text, declared_encoding, extract
from orchestrator.documents.office import TextLimit, damaged

Text = tuple[str, dict[str, object]]
_FOLD = re.compile(r"\n[ \t]")
_PARAGRAPHS = re.compile(r"\n{3,}")
_FOREIGN = "foreignObject"
_DRAWN = ", ".join(f"svg {name}" for name in ("text", "title", "desc", "flowRoot", _FOREIGN))
_OBJECT = re.compile(r"<[^\n]+>")
"""Matches Python's placeholder for an object that has a richer form: `<IPython.core.display.HTML object>`."""


def markup(data: bytes, encoding: str | None, most: int) -> Text:
    """Return XML unchanged, decoded by its declared encoding. Raises ExtractionError (encoding)."""
    del most  # a text has at most as many characters as bytes
    return decode(data, encoding, declared_encoding(data)), {}


def folded(data: bytes, encoding: str | None, most: int) -> Text:
    """Return a calendar or contacts (iCalendar, vCard) with unfolded lines. Raises ExtractionError (encoding)."""
    del most
    return _FOLD.sub("", decode(data, encoding)), {}


def drawing(data: bytes, encoding: str | None, most: int) -> Text:
    """Return the text of an SVG drawing, with a line for each text, title and description.

    Embedded HTML is read as a web page. Raises ExtractionError, MemoryError.
    """
    limit, lines = TextLimit(most), list[str]()
    try:
        page = LexborHTMLParser(tamed(markup(data, encoding, most)[0]))
    except SelectolaxError as error:  # the parser fails only for lack of memory
        raise MemoryError from error
    for node in page.css(_DRAWN):
        if _is_switch_fallback(node):
            continue
        if node.tag == _FOREIGN:
            text = block_text(node)
        else:
            text = "\n".join(" ".join(line.split()) for line in "".join(_text_pieces(node)).split("\n"))
        limit.text(text)
        lines.append(text.strip())
    return clean("\n".join(filter(None, lines))), {}


def _is_switch_fallback(node: LexborNode) -> bool:
    while (above := node.parent) is not None:
        first = next(above.iter(), node) if above.tag == "switch" else node
        if first.mem_id != node.mem_id and "systemlanguage" not in map(str.lower, first.attributes):
            return True
        node = above
    return False


def _text_pieces(text: LexborNode) -> Iterator[str]:
    for node in text.traverse(include_text=True):
        if node.tag == "-text":
            yield (node.text_content or "").replace("\n", " ")
        elif node.tag == "tspan" and ("y" in node.attributes or "dy" in node.attributes):
            yield "\n"  # a lowered span is a new line


class _Cell(msgspec.Struct):
    cell_type: str = ""
    source: Any = ""
    input: Any = ""  # the source, before version 4
    outputs: list[dict[str, Any]] = []


class _Sheet(msgspec.Struct):
    cells: list[_Cell] = []


class _Notebook(msgspec.Struct):
    cells: list[_Cell] = []
    worksheets: list[_Sheet] = []  # before version 4


def notebook(data: bytes, encoding: str | None, most: int) -> Text:
    """Return the cells and text outputs of a Jupyter notebook, with code in fences. Raises ExtractionError."""
    limit = TextLimit(most)
    try:
        read = json_decoder(_Notebook).decode(decode(data, encoding).encode())
        parts: list[str] = []
        for part in _parts(read):
            limit.text(part)
            parts.append(part)
    except (msgspec.DecodeError, RecursionError) as error:
        raise damaged("Jupyter notebook") from error
    return _PARAGRAPHS.sub("\n\n", clean("\n\n".join(parts))), {}


def _parts(read: _Notebook) -> Iterator[str]:
    for cell in (*read.cells, *(cell for sheet in read.worksheets for cell in sheet.cells)):
        source = _joined_lines(cell.source) or _joined_lines(cell.input)
        if cell.cell_type == "code":
            source = f"```\n{source}\n```" if source.strip() else ""
        yield from filter(str.strip, (source, *_outputs(cell.outputs)))


def _outputs(outputs: Iterable[dict[str, Any]]) -> Iterator[str]:
    for output in outputs:
        text = _joined_lines(output.get("text")) or _richest(output.get("data"))
        if not text and "ename" in output:
            text = f"{output['ename']}: {output.get('evalue', '')}"
        yield text


def _richest(data: Any) -> str:
    if not isinstance(data, dict):
        return ""
    plain, *others = (_joined_lines(data.get(f"text/{form}")) for form in ("plain", "markdown", "html", "latex"))
    if plain and not _OBJECT.fullmatch(plain):
        return plain
    markdown, html, latex = others
    return markdown or (html and extract(html.encode(), "utf-8")[0]) or latex or plain


def _joined_lines(text: Any) -> str:
    if isinstance(text, list):
        return "".join(line for line in text if isinstance(line, str))
    return text if isinstance(text, str) else ""
