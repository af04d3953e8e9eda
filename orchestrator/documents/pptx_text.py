"""The slides of a presentation in order: titles, text by level, tables, charts, comments and notes."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.documents.encoding import clean
from orchestrator.documents.office import (
    EXCELS_PASSWORD,
    POWERPOINTS_PASSWORD,
    Losses,
    TextLimit,
    check_container,
    damage_as,
    is_locked,
    unlocked,
)
from orchestrator.documents.office_package import Package
from orchestrator.documents.pdf_text import PAGE_BREAK
from orchestrator.documents.shapes_text import drawn_lines, shape_lines


def extract(data: bytes, encoding: str | None, most: int = 50_000_000) -> tuple[str, dict[str, object]]:
    """Return the text, with a form feed before each slide after the first, and `{"pages": count}`.

    Raises ExtractionError.
    """
    del encoding  # XML declares its own encoding
    if is_locked(data):
        data = unlocked(data, POWERPOINTS_PASSWORD, EXCELS_PASSWORD)  # LibreOffice uses Excel's password
    check_container(data, "a PowerPoint 97-2003 presentation; save it as .pptx or PDF")
    losses = Losses()
    with damage_as("presentation"):
        slides = [clean("\n".join(lines)).strip() for lines in _slides(Package(data), TextLimit(most), losses)]
    return PAGE_BREAK.join(slides) if any(slides) else "", {"pages": len(slides), **losses.notes()}


def _slides(package: Package, limit: TextLimit, losses: Losses) -> Iterator[list[str]]:
    main = package.main_part()
    relations = package.relations(main)
    targets = {relation.id: relation.target for relation in relations}
    authors = _authors(package, [one.target for one in relations if one.kind in ("commentAuthors", "authors")])
    order: list[str] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag.rpartition("}")[2] == "sldId":
            order.extend(value for name, value in attributes.items() if name.endswith("}id"))

    package.parse(main, start)
    for ident in order:
        yield _slide(package, targets[ident], limit, authors, losses)


def _authors(package: Package, parts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag.rpartition("}")[2] in ("cmAuthor", "author") and "id" in attributes:
            found[attributes["id"]] = attributes.get("name", "")

    for part in filter(package.holds, parts):
        package.parse(part, start)
    return found


def _slide(package: Package, part: str, limit: TextLimit, authors: dict[str, str], losses: Losses) -> list[str]:
    lines = shape_lines(package, part, limit, losses) + drawn_lines(package, part, limit, losses)
    for relation in package.relations(part):
        if relation.kind == "comments" and package.holds(relation.target):
            lines += _comments(package, relation.target, limit, authors)
    for relation in package.relations(part):
        if relation.kind == "notesSlide" and (
            notes := shape_lines(package, relation.target, limit, losses, notes=True)
        ):
            lines += ["", "Notes:", *notes]
    return lines


def _comments(package: Package, part: str, limit: TextLimit, authors: dict[str, str]) -> list[str]:
    """Return a line per comment and reply. Legacy comments have their text in `text`, modern ones in paragraphs."""
    found: list[tuple[str, list[str]]] = []
    is_text = [False]

    def start(tag: str, attributes: dict[str, str]) -> None:
        limit.element()
        name = tag.rpartition("}")[2]
        if name in ("cm", "reply"):
            found.append((authors.get(attributes.get("authorId", ""), ""), []))
        is_text[0] = name in ("text", "t")

    def characters(text: str) -> None:
        if is_text[0] and found:
            limit.text(text)
            found[-1][1].append(text)

    def end(tag: str) -> None:
        is_text[0] = False
        if tag.endswith("}p") and found:
            found[-1][1].append(" ")

    package.parse(part, start, end, characters)
    texts = [(author, " ".join("".join(pieces).split())) for author, pieces in found]
    return [
        f"[comment {number}]: " + (f"{author}: {text}" if author else text)
        for number, (author, text) in enumerate(((author, text) for author, text in texts if text), 1)
    ]
