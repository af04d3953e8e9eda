"""Recognizes a file's kind by its content, for files with a wrong extension."""

from __future__ import annotations

import io
import re
import zipfile

from orchestrator.documents.excel_4 import is_old_stream
from orchestrator.documents.kinds import CONVERTED, SHEETS, UNKNOWN
from orchestrator.documents.office import OLE

_HEAD = 8192
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|meta|body|table|style)\b", re.IGNORECASE)
_FOLDERS = {"word": "docx", "ppt": "pptx", "xl": SHEETS}
_MIMETYPES = {
    b"application/epub+zip": "epub",
    b"application/vnd.oasis.opendocument.spreadsheet": SHEETS,
    b"application/vnd.oasis.opendocument.text": "odf",
    b"application/vnd.oasis.opendocument.presentation": "odf",
}
_WORKBOOKS = tuple(f"{name}\0".encode("utf-16-le") for name in ("Workbook", "Book"))
_OTHERS = tuple(name.encode("utf-16-le") for name in ("WordDocument", "PowerPoint Document"))
"""Streams of Word and PowerPoint documents. These documents may embed a workbook, but are not workbooks."""
_NAMES = {
    SHEETS: "a workbook", UNKNOWN: "plain text", "html": "a web page", "mhtml": "a saved web page",
    "odf": "OpenDocument",
}  # fmt: skip


def name_of(kind: str) -> str:
    return _NAMES.get(kind, f".{kind}")


def kind_of(data: bytes, kind: str, suffix: str) -> str | None:
    """Return the content's kind if it is certain and differs from `kind`, the kind of the file's extension. Otherwise
    return None.

    Programs export text and web pages with the extensions of old workbooks and letters, so these exports are read.
    With other extensions, a web page is usually the error page of a download.
    """
    found = _by_signature(data)
    if found is None and kind in (SHEETS, CONVERTED):
        if _PAGE.match(data) is not None:
            found = "html"
        elif data[:13].lower() == b"mime-version:":
            found = "mhtml"
        elif suffix.lower() in (".xls", ".doc") and not data.lstrip().startswith((b"<", b"{")):
            found = UNKNOWN  # read if it is text
    return None if found == kind else found


def _by_signature(data: bytes) -> str | None:
    if data.startswith(b"%PDF-"):
        return "pdf"
    if data.startswith(b"{\\rtf"):
        return "rtf"
    if data.startswith(b"PK\x03\x04"):
        return _in_package(data)
    if is_old_stream(data):
        return SHEETS
    if not data.startswith(OLE) or any(name in data for name in _OTHERS):
        return None
    return SHEETS if any(name in data for name in _WORKBOOKS) else None


def _in_package(data: bytes) -> str | None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            names = package.namelist()
            if names[0] == "mimetype":
                with package.open("mimetype") as part:
                    return _MIMETYPES.get(part.read(_HEAD).strip())
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, IndexError, ValueError, EOFError, OSError):
        return None
    if "[content_types].xml" not in map(str.lower, names):
        return None
    return next((kind for name in names if (kind := _FOLDERS.get(name.partition("/")[0].lower()))), None)
