"""The chapters of an EPUB book in reading order, separated by form feeds."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote

from orchestrator.documents import html_text
from orchestrator.documents.lines import text_too_large
from orchestrator.documents.office import Losses, damage_as, damaged, encrypted
from orchestrator.documents.office_package import Package
from orchestrator.documents.pdf_text import PAGE_BREAK

_CONTAINER = "META-INF/container.xml"
_LOCKS = "META-INF/encryption.xml"
_PICTURE = re.compile(rb"<(?:img|image)\b", re.IGNORECASE)
_PAGES = ("application/xhtml+xml", "text/html")


def extract(data: bytes, encoding: str | None, most: int = 50_000_000) -> tuple[str, dict[str, object]]:
    """Return the text and `{"title": ...}`. Raises ExtractionError."""
    del encoding  # the book's pages declare their own encoding
    with damage_as("EPUB book"):
        package = Package(data)
        index = _index_part(package)
        title, order = _title_and_parts(package, index)
        locked = _encrypted_parts(package)
        chapters, size, losses = [], 0, Losses()
        for part in order:
            if part in locked:  # books without copy protection encrypt only fonts
                raise encrypted()
            if not package.holds(part):
                losses["missing chapter"] += 1
                continue
            page = package.whole(part)
            losses["picture"] += len(_PICTURE.findall(page))
            chapters.append(html_text.extract(page, None)[0])
            size += len(chapters[-1])
            if size > most:
                raise text_too_large(most)
    if not chapters and losses:
        raise damaged("EPUB book")
    return PAGE_BREAK.join(filter(None, chapters)), {"title": title, **losses.notes()}


def _index_part(package: Package) -> str:
    found: list[str] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag.rpartition("}")[2] == "rootfile" and "full-path" in attributes:
            found.append(attributes["full-path"])

    package.parse(_CONTAINER, start)
    return found[0]


def _title_and_parts(package: Package, index: str) -> tuple[str, list[str]]:
    folder = posixpath.dirname(index)
    items: dict[str, str] = {}
    order: dict[str, None] = {}
    title: list[str] = []
    inside: list[str] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition("}")[2]
        inside.append(name)
        if name == "item" and attributes.get("media-type") in _PAGES and "id" in attributes:
            path = unquote(attributes.get("href", "").partition("#")[0])
            items[attributes["id"]] = posixpath.normpath(posixpath.join(folder, path))
        elif name == "itemref" and attributes.get("idref") in items:
            order[items[attributes["idref"]]] = None

    def end(tag: str) -> None:
        inside.pop()

    def characters(text: str) -> None:
        if inside[-1] == "title":
            title.append(text)

    package.parse(index, start, end, characters)
    return " ".join("".join(title).split()), list(order)


def _encrypted_parts(package: Package) -> frozenset[str]:
    found: list[str] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag.rpartition("}")[2] == "CipherReference":
            found.append(unquote(attributes.get("URI", "")))

    if package.holds(_LOCKS):
        package.parse(_LOCKS, start)
    return frozenset(found)
