"""The figures of a page: what each shows, and which command says the same with `--json`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A value on a page, and its place in the `--json` of a command."""

    command: str
    at: str
    value: str

    @property
    def words(self) -> list[str]:
        """The command's arguments; a document's name may hold blanks, and its task is named behind it."""
        head, *rest = self.command.split(" ")
        return [head, rest[0], " ".join(rest[1:-2]), *rest[-2:]] if head == "show" else [head, *rest]

    def is_in(self, told: Any) -> bool:
        """True if the command's JSON has this value at its place."""
        for key in self.at.split("."):
            told = told[int(key) if isinstance(told, list) else key]
        return ("" if told is None else str(told)) == self.value


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Figure] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag == "data":
            self.found.append(Figure(told["data-command"] or "", told["data-at"] or "", told["value"] or ""))


def figures(page: str) -> list[Figure]:
    """The figures of a page that a command has too."""
    parser = _Parser()
    parser.feed(page)
    return parser.found


def words_of(page: str) -> str:
    """The text of a page on one line: cells and blocks apart, what stands in one word together."""
    text = re.sub(r"(?s)<(script|style|head|svg).*?</\1>", "", page)
    text = re.sub(r"</?(data|span|b|a|code|time|wbr)\b[^>]*>", "", text)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())
