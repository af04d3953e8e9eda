"""Python encodings for the numbers of code pages in office files, their fonts and Outlook mails."""

from __future__ import annotations

import codecs

from orchestrator.documents.encoding import extends_ascii

_ENCODINGS = {
    367: "ascii", 936: "gb18030", 1200: "utf-16-le", 10000: "mac_roman", 10001: "cp932", 10002: "big5",
    10003: "cp949", 10004: "mac_arabic", 10006: "mac_greek", 10007: "mac_cyrillic", 10008: "gb18030",
    10010: "mac_romanian", 10021: "cp874", 10029: "mac_latin2", 10079: "mac_iceland", 10081: "mac_turkish",
    10082: "mac_croatian",
    20127: "ascii", 20866: "koi8-r", 20932: "euc_jp", 20936: "gb18030", 21866: "koi8-u", 28591: "cp1252",
    0x8000: "mac_roman", 0x8001: "cp1252", 50220: "iso2022_jp", 50221: "iso2022_jp", 50222: "iso2022_jp",
    50225: "iso2022_kr", 51932: "euc_jp", 51936: "gb18030", 51949: "cp949", 52936: "hz", 54936: "gb18030",
    65000: "utf-7", 65001: "utf-8", **{28590 + i: f"iso8859-{i}" for i in (*range(2, 10), 13, 15)},
}  # fmt: skip

CHARSETS = {
    0: "cp1252", 2: "cp1252", 77: "mac_roman", 78: "cp932", 79: "big5", 80: "cp949", 81: "mac_arabic",
    83: "mac_greek", 84: "mac_cyrillic", 85: "gb2312", 86: "mac_romanian", 89: "mac_latin2", 128: "cp932",
    129: "cp949", 130: "johab", 134: "gbk", 136: "big5", 161: "cp1253", 162: "cp1254", 163: "cp1258", 177: "cp1255",
    178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250", 254: "cp437", 255: "cp850",
}  # fmt: skip
"""Encodings by the number of a font's character set."""


def code_page(number: int) -> str | None:
    """Return Python's name for a code page, or None if Python does not know it."""
    name = _ENCODINGS.get(number, f"cp{number}")
    try:
        return codecs.lookup(name).name
    except LookupError:
        return None


def byte_page(number: int) -> str | None:
    """Return Python's name for a code page that extends ASCII, or None for any other code page."""
    name = code_page(number)
    return name if name is not None and extends_ascii(name) else None
