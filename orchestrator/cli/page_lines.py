"""Lays out Markdown pages for a terminal: wrapped text, tables in columns, links as `orch help` commands. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence

from orchestrator.reports.text_tables import GAP, Column, Line, StyledText, sentence, table, wrap

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_ITEM = re.compile(r"(\s*(?:[-*]|\d+\.) +)(.*)")
_CELLS = re.compile(r"(?<!\\)\|")


def page_lines(text: str, width: int, pages: Container[str]) -> Iterator[Line]:
    """Yield the lines of a page in at most `width` columns. Code blocks keep their lines.

    A link to one of `pages` becomes the command that shows that page.
    """
    kept: list[str] = []
    is_code = False
    for line in [*text.splitlines(), ""]:
        if line.startswith("```"):
            yield from _block(kept, width, pages)
            kept, is_code = [], not is_code
        elif is_code:
            yield (StyledText(f"    {line}"),)
        elif line.startswith("#"):
            yield from _block(kept, width, pages)
            kept = []
            yield from sentence(line.lstrip("# "), width, "bold")
        elif kept and (not line.strip() or _ITEM.match(line) or line.startswith("|") != kept[0].startswith("|")):
            yield from _block(kept, width, pages)
            kept = [line] if line.strip() else []
            if not line.strip():
                yield ()
        elif line.strip():
            kept.append(line)


def _block(lines: Sequence[str], width: int, pages: Container[str]) -> Iterator[Line]:
    if not lines:
        return
    if lines[0].startswith("|"):
        rows = [[cell.strip().replace("\\|", "|") for cell in _CELLS.split(line)[1:-1]] for line in lines]
        head, _, *body = rows if len(rows) > 1 else [*rows, []]
        cells = [
            [_linked(cell, pages, is_bare=name == "page") for name, cell in zip(head, row, strict=False)]
            for row in body
        ]
        share = (width - GAP * (len(head) - 1)) // len(head)
        if all(len(word) <= share for row in [head, *cells] for cell in row for word in cell.split()):
            yield from table([Column(name, prose=True) for name in head], cells, width)
        else:  # narrow columns would break words
            for row in [head, *cells]:
                yield from _hanging("- ", " · ".join(filter(None, row)), width)
        return
    found = _ITEM.match(lines[0])
    lead = found[1] if found else ""
    text = " ".join([found[2] if found else lines[0].strip(), *(line.strip() for line in lines[1:])])
    yield from _hanging(lead, _linked(text, pages), width)


def _hanging(lead: str, text: str, width: int) -> Iterator[Line]:
    for number, part in enumerate(wrap(text, width - len(lead))):
        yield (StyledText((lead if not number else " " * len(lead)) + part),)


def _linked(text: str, pages: Container[str], *, is_bare: bool = False) -> str:
    """Return a text with links to pages as `Title (orch help NAME)`. A bare link becomes only the page's name."""

    def told(found: re.Match[str]) -> str:
        page = found[2].partition("#")[0]
        if "://" in page:
            return f"{found[1]} ({page})"
        name = page.removesuffix(".md").removesuffix("/README").rpartition("/")[2]
        is_page = page.endswith(".md") and name in pages
        return (name if is_bare and found[0] == text else f"{found[1]} (`orch help {name}`)") if is_page else found[1]

    return _LINK.sub(told, text)
