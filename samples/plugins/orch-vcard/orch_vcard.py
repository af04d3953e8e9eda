"""A reader and a delivery channel for orch. Neither imports anything of orch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHOWN = {"FN": "Name", "ORG": "Company", "TITLE": "Title", "EMAIL": "Mail", "TEL": "Phone", "NOTE": "Note"}


def read(data: bytes, most: int) -> tuple[str, dict[str, object]]:
    """The text of an address book, and the fields that templates may use besides.

    It runs in a worker process without environment that may write no file, and is ended when it takes too long or
    too much memory. Whatever it raises is reported for this document alone. `most`: the characters a text may have.
    """
    lines = data.decode("utf-8").replace("\r\n ", "").replace("\n ", "").splitlines()
    people: list[str] = []
    for line in lines:
        name, _, value = line.partition(":")
        name = name.partition(";")[0].upper()
        if name == "BEGIN":
            people.append("")
        elif name in SHOWN and value and people:
            people[-1] += f"{SHOWN[name]}: {value}\n"
    return "\n".join(people)[:most], {"people": len(people)}


class Logbook:
    """Appends the subject of each message to a file."""

    def __init__(self, options: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self._path = Path(str(options["file"])).expanduser()

    def send(self, message: Any) -> None:
        """`message` has name, subject, brief, text (Markdown), page (HTML or None) and at."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{message.at:%Y-%m-%d %H:%M} {message.subject}\n")
