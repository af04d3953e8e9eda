"""Annotations of PDF pages: values of form fields, comments, and text typed over a page.

A value follows its label if the label is a line of the text; otherwise it goes to the end of the page. Comments get
a mark and come at the end of the page, as in other documents. Hidden fields and annotations are omitted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import pypdfium2
from pypdfium2 import raw

_UNSEEN = 2 | 32  # hidden, not viewed
_TEXT_OVER = raw.FPDF_ANNOT_FREETEXT
_MARKS = frozenset(
    (
        raw.FPDF_ANNOT_TEXT, raw.FPDF_ANNOT_HIGHLIGHT, raw.FPDF_ANNOT_UNDERLINE, raw.FPDF_ANNOT_SQUIGGLY,
        raw.FPDF_ANNOT_STRIKEOUT, raw.FPDF_ANNOT_STAMP, raw.FPDF_ANNOT_CARET, raw.FPDF_ANNOT_LINE,
        raw.FPDF_ANNOT_SQUARE, raw.FPDF_ANNOT_CIRCLE, raw.FPDF_ANNOT_POLYGON, raw.FPDF_ANNOT_POLYLINE,
        raw.FPDF_ANNOT_INK, raw.FPDF_ANNOT_FILEATTACHMENT,
    )
)  # fmt: skip
_KNOWN = _MARKS | {_TEXT_OVER, raw.FPDF_ANNOT_WIDGET}
_TICKED = frozenset((raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON))
_WRITTEN = frozenset((raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX))
_BAND = 5.0
"""Distance in points above and below a field's middle in which its label may be. A field may be two lines high."""


class _Field(NamedTuple):
    """A form field with content. `label` is the text beside it, or its name."""

    label: str
    value: str
    is_ticked: bool


def with_annotations(document: pypdfium2.PdfDocument, page: Any, layer: Any, text: str) -> str:
    """Return a page's text with its field values and comments. Raises PdfiumError."""
    count = raw.FPDFPage_GetAnnotCount(page)
    if count <= 0:
        return text
    fields: list[_Field] = []
    typed: list[str] = []
    comments: list[str] = []
    form = document.formenv.raw if document.formenv is not None else None
    get, kind_of, close = raw.FPDFPage_GetAnnot, raw.FPDFAnnot_GetSubtype, raw.FPDFPage_CloseAnnot
    handle = page.raw  # passing the page itself would cost a lookup per call
    for number in range(count):
        found = get(handle, number)
        if not found:
            continue
        try:
            kind = kind_of(found)
            if kind not in _KNOWN or raw.FPDFAnnot_GetFlags(found) & _UNSEEN:
                continue
            if kind == raw.FPDF_ANNOT_WIDGET:
                fields += _field(form, found, page, layer) if form is not None else []
            elif not (words := _value(found, b"Contents")):
                continue
            elif kind == _TEXT_OVER:
                typed.append(words)
            else:
                author = _value(found, b"T")
                comments.append(f"[comment {len(comments) + 1}]: {author + ': ' if author else ''}{words}")
        finally:
            close(found)
    text = _with_values(text, fields)
    return "\n".join(filter(None, (text, *typed, *comments)))


def _field(form: Any, found: Any, page: Any, layer: Any) -> list[_Field]:
    kind = raw.FPDFAnnot_GetFormFieldType(form, found)
    if kind in _TICKED:
        value = "\u2612" if raw.FPDFAnnot_IsChecked(form, found) else "\u2610"
    elif kind in _WRITTEN:
        value = _utf16_text(lambda *rest: raw.FPDFAnnot_GetFormFieldValue(form, found, *rest))
    else:
        return []
    if not value:
        return []
    label = _label_beside(found, page, layer, is_ticked=kind in _TICKED)
    for read in (raw.FPDFAnnot_GetFormFieldAlternateName, raw.FPDFAnnot_GetFormFieldName):
        label = label or _utf16_text(lambda *rest, read=read: read(form, found, *rest))
    return [_Field(label, value, kind in _TICKED)]


def _label_beside(found: Any, page: Any, layer: Any, *, is_ticked: bool) -> str:
    box = raw.FS_RECTF()
    if not raw.FPDFAnnot_GetRect(found, box):
        return ""
    middle = (box.top + box.bottom) / 2
    low, high = middle - _BAND, middle + _BAND
    left, right = (box.right, page.get_width()) if is_ticked else (0.0, box.left)
    words = layer.get_text_bounded(left=left, bottom=low, right=right, top=high) if left < right else ""
    lines = [line for line in (" ".join(line.split()) for line in words.splitlines()) if line]
    return lines[0] if len(lines) == 1 else ""


def _with_values(text: str, fields: list[_Field]) -> str:
    if not fields:
        return text
    lines = text.split("\n")
    plain = list(map(_plain, lines))
    for field in fields:
        told = _plain(field.value) if "\n" not in field.value else field.value
        said = f"{told} {field.label}" if field.is_ticked else f"{field.label.rstrip(':')}: {told}"
        if field.label and plain.count(field.label) == 1:
            start = plain.index(field.label)
            end = start + 1
            added = said if field.is_ticked else f"{lines[start].rstrip()} {told}"
        else:
            start = end = len(lines)
            added = said if field.label else told
        lines[start:end] = added.split("\n")
        plain[start:end] = map(_plain, added.split("\n"))
    return "\n".join(lines)


def _plain(line: str) -> str:
    return " ".join(line.split())


def _value(found: Any, key: bytes) -> str:
    return _utf16_text(lambda *rest: raw.FPDFAnnot_GetStringValue(found, key, *rest))


def _utf16_text(read: Callable[..., int]) -> str:
    size = read(None, 0)  # without a buffer, PDFium returns the size
    if size <= 2:
        return ""
    buffer = ctypes.create_string_buffer(size)
    read(ctypes.cast(buffer, ctypes.POINTER(raw.FPDF_WCHAR)), size)
    return (
        buffer.raw[: size - 2].decode("utf-16-le", "replace").replace("\r\n", "\n").replace("\r", "\n").strip("\0 \n")
    )
