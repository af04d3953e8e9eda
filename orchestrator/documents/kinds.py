"""File endings, their kinds, and the number of documents in a file of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from orchestrator.documents.plugins import Plugin


class Holds(StrEnum):
    """Number of documents in a file."""

    ONE = "one"
    ROWS = "rows"  # a table: a document per row
    PARTS = "parts"  # an archive or mail: a document per file in it


UNKNOWN = "unknown"
"""Kind of a file that only a user's pattern chooses. The file is read if it is text."""
SHEETS = "sheets"
PLUGIN = "plugin"
FILES = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".markdown": "text",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".pdf": "pdf",
    **dict.fromkeys((".docx", ".docm", ".dotx", ".dotm"), "docx"),
    **dict.fromkeys((".pptx", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm"), "pptx"),
    **dict.fromkeys((".odt", ".ott", ".fodt", ".odp", ".otp", ".fodp"), "odf"),
    ".epub": "epub",
    ".fb2": "fb2",
    **dict.fromkeys((".mhtml", ".mht"), "mhtml"),
    ".rtf": "rtf",
    **dict.fromkeys((".xlsx", ".xlsm", ".xltx", ".xltm", ".xlsb", ".xls", ".ods", ".ots", ".fods"), SHEETS),
}
CHOSEN = {".ipynb": "ipynb", ".svg": "svg", ".xml": "xml", ".ics": "folded", ".vcf": "folded"}
"""Kinds that are read only if the user's pattern or path names them, because folders may hold settings in these
formats.
"""
CONVERTED = "converted"
LEGACY = {
    **dict.fromkeys((".doc", ".dot", ".pages", ".wpd", ".wps", ".hwp", ".lwp", ".abw"), ("docx", "docx")),
    **dict.fromkeys((".ppt", ".pps", ".pot"), ("pptx", "pptx")),
    **dict.fromkeys((".sxw", ".stw"), ("odf", "odt")),
    **dict.fromkeys((".sxi", ".sti"), ("odf", "odp")),
    **dict.fromkeys((".numbers", ".sxc", ".stc"), (SHEETS, "xlsx")),
}
"""Formats that LibreOffice converts, with the target's kind and ending."""
JSON = "json"
"""Kind of a JSON file that is a list of rows. Without a text column, the file is read as text."""
IMAGE = "image"
IMAGES = dict.fromkeys((".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".heic", ".heif"), IMAGE)
"""Endings of pictures. Pictures are read if a source renders pages."""
RENDERED = ("pdf", IMAGE)
TABLES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
CONTAINERS = {
    ".zip": "zip",
    ".tar": "tar",
    ".eml": "eml",
    ".mbox": "mbox",
    ".msg": "msg",
    ".7z": "7z",
}
PACKINGS = {".gz": "gz", ".zst": "zst", ".bz2": "bz2", ".xz": "xz"}
_SHORT = {".tgz": ("tar", "gz"), ".tbz2": ("tar", "bz2"), ".txz": ("tar", "xz")}
SUFFIXES = (*FILES, *TABLES, *CONTAINERS, *_SHORT)


class Kind(NamedTuple):
    """Kind of a file, which decides how the file is read.

    `packing` is a value of PACKINGS, or empty. If `plugin` is set, the plug-in reads the file.
    """

    name: str
    holds: Holds
    packing: str = ""
    plugin: Plugin | None = None


TEXT = Kind("text", Holds.ONE)
CALENDAR = Kind(CHOSEN[".ics"], Holds.ONE)
MAIL = Kind("eml", Holds.PARTS)
OUTLOOK = Kind("msg", Holds.PARTS)
OUTLOOK_DATA = Kind("tnef", Holds.PARTS)
"""A winmail.dat inside a mail."""


def kind_of(name: str, plugins: Mapping[str, Plugin], *, as_rows: bool) -> Kind:
    """Return a file's kind by its name. With `as_rows`, spreadsheets and JSON files are tables.

    A plug-in for an ending replaces orch's own reader.
    """
    stem, ending = split_name(name)
    ending = ending.lower()
    if ending in plugins:
        return Kind(PLUGIN, Holds.ONE, "", plugins[ending])
    packing = PACKINGS.get(ending, "")
    if packing:
        ending = split_name(stem)[1].lower()
        if ending in plugins:
            return Kind(PLUGIN, Holds.ONE, packing, plugins[ending])
    return _own_kind(ending, packing, as_rows)


@lru_cache(maxsize=1000)
def _own_kind(ending: str, packing: str, as_rows: bool) -> Kind:
    if ending in _SHORT and not packing:
        return Kind(_SHORT[ending][0], Holds.PARTS, _SHORT[ending][1])
    if ending in TABLES:
        return Kind(TABLES[ending], Holds.ROWS, packing)
    if ending in CONTAINERS:
        return Kind(CONTAINERS[ending], Holds.PARTS, packing)
    if ending == ".json" and as_rows:
        return Kind(JSON, Holds.ROWS, packing)
    found = FILES.get(ending) or IMAGES.get(ending) or CHOSEN.get(ending, UNKNOWN)
    if ending in LEGACY and not packing:
        return Kind(CONVERTED, Holds.ONE)
    return Kind(found, Holds.ROWS if found == SHEETS and as_rows else Holds.ONE, packing)


def is_supported(name: str, plugins: Mapping[str, Plugin], *, pictures: bool, converts: bool) -> bool:
    """Return True if a file is read even if no pattern chooses it."""
    return is_read_unasked(kind_of(name, plugins, as_rows=False), pictures=pictures, converts=converts)


def is_read_unasked(kind: Kind, *, pictures: bool, converts: bool) -> bool:
    """Return True if files of a kind are read even if no pattern chooses them."""
    return kind.name not in _ASKED_FOR and (pictures or kind.name != IMAGE) and (converts or kind.name != CONVERTED)


_ASKED_FOR = frozenset((UNKNOWN, JSON, *CHOSEN.values()))


def split_name(name: str) -> tuple[str, str]:
    """Return stem and suffix as pathlib does, without the cost of a Path."""
    dot = name.rfind(".")
    return (name[:dot], name[dot:]) if 0 < dot < len(name) - 1 else (name, "")
