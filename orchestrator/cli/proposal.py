"""Scans a folder of documents and proposes a job for them, for `orch init FOLDER`."""

from __future__ import annotations

import csv
import json
import os
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from orchestrator.cli.proposed_model import plain_yaml
from orchestrator.core.counts import number_of
from orchestrator.documents.ignored import never_document
from orchestrator.documents.kinds import FILES, IMAGES, LEGACY, Holds, kind_of, split_name

MAX_FILES = 200_000
MAX_TABLES = 5
WIDTH = 80
SAMPLE_ROWS = 50
_MAX_LINE = 1_000_000


class FoundFiles(Struct):
    """Files of a folder, counted by file extension: readable, pictures, readable with LibreOffice, and others.

    `tables` are files whose rows are documents, as paths relative to the folder.
    """

    read: Counter[str] = field(default_factory=Counter)
    pictures: Counter[str] = field(default_factory=Counter)
    converted: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    tables: list[str] = field(default_factory=list)

    @property
    def is_any(self) -> bool:
        return bool(self.read or self.pictures or self.converted or self.tables)

    def __str__(self) -> str:
        parts = [_list_counts(self.read), _list_counts(self.pictures)]
        parts.append(number_of(len(self.tables), "table") if self.tables else "")
        unread = ((self.converted, "not read without LibreOffice"), (self.others, "not read (`include` would)"))
        parts += [f"{_list_counts(kinds)} {why}" for kinds, why in unread if kinds]
        return "; ".join(filter(None, parts))


def scan(folder: Path, *, deep: bool = True) -> FoundFiles:
    """Count a folder's files, including subfolders if `deep`. Hidden files, lock files and keys are ignored."""
    files = FoundFiles()
    for path in islice(_files(folder, deep=deep), MAX_FILES):
        ending = split_name(path.name)[1].lower()
        kind = kind_of(path.name, {}, as_rows=False)
        if kind.holds is Holds.ROWS:
            files.tables.append(path.relative_to(folder).as_posix())
        elif ending in IMAGES:
            files.pictures[ending] += 1
        elif ending in LEGACY:
            files.converted[ending] += 1
        elif kind.holds is Holds.PARTS or ending in FILES or kind.packing:
            files.read[ending] += 1
        else:
            files.others[ending or "without an ending"] += 1
    files.tables.sort()
    return files


def _files(folder: Path, *, deep: bool) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if deep else []
        yield from (
            Path(place, name) for name in sorted(names) if not name.startswith(".") and never_document(name) is None
        )


def _list_counts(kinds: Counter[str]) -> str:
    return ", ".join(f"{number:,} {ending}" for ending, number in kinds.most_common())


def text_column(table: Path) -> str | None:
    """Return the column of a CSV or JSONL file whose texts have the most letters, or None.

    Letters are counted because dates and numbers have few.
    """
    try:
        with table.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = islice((line[:_MAX_LINE] for line in file), SAMPLE_ROWS)
            rows = list(
                _json_rows(lines) if table.suffix.lower() in (".jsonl", ".ndjson") else _csv_rows(table, lines)
            )
    except (OSError, csv.Error, ValueError):
        return None
    letters: Counter[str] = Counter()
    for row in rows:
        texts = {name: value for name, value in row.items() if name and isinstance(value, str)}
        letters.update({name: sum(map(str.isalpha, text)) for name, text in texts.items()})
    return max(+letters, key=lambda name: letters[name], default=None)


def _csv_rows(table: Path, lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    text = list(lines)
    delimiter = "\t" if table.suffix.lower() == ".tsv" else max(",;\t|", key=text[0].count if text else "".count)
    return csv.DictReader(text, delimiter=delimiter)


def _json_rows(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    return (row for line in lines if line.strip() and isinstance(row := json.loads(line), dict))


def name_of(folder: Path) -> str:
    plain = "".join(one for one in unicodedata.normalize("NFKD", folder.name) if not unicodedata.combining(one))
    return re.sub(r"[^A-Za-z0-9_-]+", "-", plain).strip("-_")[:40] or "documents"


def text_columns(files: FoundFiles, folder: Path) -> dict[str, str | None]:
    return {name: text_column(folder / name) for name in files.tables[:MAX_TABLES]}


def sources(files: FoundFiles, columns: Mapping[str, str | None], path: str, *, deep: bool) -> str:
    """Return the job file's `documents` section for a folder. `path` is the folder's path in the job file."""
    lines = []
    if kinds := {**files.read, **files.pictures, **files.converted}:
        named = f"  - path: {plain_yaml(path)}"
        beside = f"{named}                    # {files}"
        above = [f"  # {line}" for line in textwrap.wrap(str(files), WIDTH - 4, break_on_hyphens=False)]
        lines += [beside] if len(beside) <= WIDTH else [*above, named]
        if not deep:
            patterns = [f"*{ending}" for ending in sorted(kinds)]
            lines.append(f"    include: {plain_yaml(patterns)}   # this folder alone")
        elif files.tables:
            endings = sorted({split_name(name)[1] for name in files.tables})
            lines.append(f"    exclude: {plain_yaml([f'**/*{ending}' for ending in endings])}   # tables: see below")
        if files.pictures:
            lines.append("    render: auto                     # pictures and scans go to a model that sees; or ocr")
        if files.converted:
            lines.append('    # orch.toml: converter = "soffice" under [documents] lets LibreOffice read older files')
    if any(columns.values()):
        lines.append("  # a document for each row; text_column is guessed: the longest texts")
    for name, column in columns.items():
        source = f"{{path: {plain_yaml(f'{path}/{name}')}, text_column: {plain_yaml(column or 'COLUMN')}}}"
        lines.append(f"  {'' if column else '#'}- {source}")
    if len(files.tables) > MAX_TABLES:
        lines.append(f"  # and {number_of(len(files.tables) - MAX_TABLES, 'table')} more, each with its text_column")
    return "\n".join(["documents:", *lines, ""])
