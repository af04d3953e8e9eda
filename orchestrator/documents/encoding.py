"""Bytes to text: UTF-8, a byte order mark, the named encoding, or a guess that leaves no second reading.

A wrong guess would send garbled text to a model and nobody would see it, so what can be read in two ways is
an `encoding` problem that names the candidates.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress

from orchestrator.core.errors import InputError
from orchestrator.documents.types import DocumentProblem, ExtractionError

# UTF-32 first: its little-endian mark begins with that of UTF-16.
BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
AUTO = "auto"
"""In the place of an encoding: the most likely one, even if it is not certain."""
_ISO_2022 = re.compile(rb"\x1b\$[@AB)(]|\x1b\([IJ]")
_SEVEN_BITS = ("iso2022_jp", "iso2022_jp_ext", "iso2022_jp_2004", "iso2022_kr")
_UTF_8 = "utf-8"
_ASCII = b"Aa1 +-~{\x1b$B!!"
"""Text that an encoding of seven bits, of two bytes or of mainframes reads as another."""
_LOOK = 32 * 1024
_LAST_PLANE = 0x10  # of Unicode

# What a page on the web may be written in. Python knows more names: not all are of texts, and some are slow.
ON_THE_WEB = frozenset(
    "utf-8 utf-16 utf-16-le utf-16-be cp866 koi8-r koi8-u mac-roman mac-cyrillic cp874 cp932 cp949 gb2312 gbk "
    "gb18030 big5 big5hkscs euc_jp euc_kr iso2022_jp shift_jis".split()
    + [f"cp125{i}" for i in range(9)]
    + [f"iso8859-{i}" for i in (*range(1, 12), *range(13, 17))]
)
# What browsers read under these names: programs write them on texts with characters that only the larger set has.
_LARGER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "gb2312": "gb18030", "gbk": "gb18030",
    "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs", "iso8859-11": "cp874", "tis-620": "cp874",
}  # fmt: skip
_CONTROLS = re.compile(rb"[\x80-\x9f]")
_NO_TEXTS = frozenset(("punycode", "idna", "unicode-escape", "unicode_escape", "raw-unicode-escape", "undefined"))
_NO_CHARACTER = re.compile("[\ud800-\udfff\ue000-\uf8ff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Without byte order mark and NUL (databases refuse it), with lines ended by `\\n`."""
    if text.startswith("\ufeff"):
        text = text[1:]
    if "\0" in text:
        text = text.replace("\0", "")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def whole(text: str) -> str:
    """The same text if it can be written as UTF-8: else halves of a pair are joined, and single ones replaced.

    Readers of formats that count in UTF-16 give such halves, and JSON may spell one out.
    """
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def names_of(encoding: str) -> list[str]:
    """The encodings of a setting, in their order."""
    return [name.strip() for name in encoding.split(",")]


def check_name(encoding: str | None) -> None:
    """Raises InputError when Python knows no text encoding of one of the names."""
    for name in names_of(encoding) if encoding is not None else ():
        if name != AUTO and not _is_text_encoding(name):
            raise InputError(
                f"There is no text encoding named {name!r}; use for example utf-8, windows-1252, utf-16 or auto.",
                field="encoding",
            )


def _is_text_encoding(name: str) -> bool:
    try:
        "".encode(name)
        return codecs.lookup(name).name not in _NO_TEXTS
    except (LookupError, ValueError):
        return False


def decode(data: bytes, encoding: str | None = None, declared: str | None = None) -> str:
    """The text of a whole file. `encoding` is the user's word, `declared` what the file says of itself.

    Raises ExtractionError (encoding) when the bytes do not fit, or fit more than one reading.
    """
    if encoding is None and _told_by_bytes(data) is None:
        with suppress(UnicodeDecodeError):
            return clean(data.decode())  # in which there are no halves of pairs to look for
    return clean(_strictly(data, encoding_of(data, encoding, declared)))


def encoding_of(data: bytes, encoding: str | None = None, declared: str | None = None) -> str:
    """The encoding in which `decode` reads a file. Raises ExtractionError (encoding) as it does."""
    if encoding is not None:
        return _chosen(data, encoding)
    if name := _told_by_bytes(data):
        return name
    try:
        data.decode(_UTF_8)
        return _UTF_8
    except UnicodeDecodeError as error:
        from orchestrator.documents.guessing import guess

        return (declared and _decodes(data, declared)) or guess(data, error.start)


def _told_by_bytes(data: bytes) -> str | None:
    """The encoding that a mark, zeros or shifts give away, unless that is UTF-8."""
    bom = bom_of(data)
    if bom is not None and bom != _UTF_8:
        return bom
    if bom is None and data.count(b"\0") * 5 > len(data) and (wide := wide_without_bom(data)):
        return wide
    return iso_2022_of(data)


def _chosen(data: bytes, encoding: str) -> str:
    """The first of the encodings in the setting that fits; UTF-8 goes before them if the bytes can only be that."""
    if extends_ascii(encoding):
        if bom := bom_of(data):
            return bom
        with suppress(ValueError):
            data.decode(_UTF_8)
            return _UTF_8
    names = names_of(encoding)
    for name in names:
        if name == AUTO:
            return _likeliest(data)
        if fits(data, name):
            return name
    return names[0]  # which says what is wrong


def chosen_encoding(data: bytes, encoding: str | None) -> dict[str, str]:
    """The field that says what `auto` chose, if that was not UTF-8."""
    if encoding is None or AUTO not in names_of(encoding):
        return {}
    name = encoding_of(data, encoding)
    return {} if name == _UTF_8 else {"sent_as": f"text, read as {name}"}


def named(encoding: str | None) -> str | None:
    """The first encoding of a setting that is no `auto`, for formats that name their encodings themselves."""
    return None if encoding is None else next((name for name in names_of(encoding) if name != AUTO), None)


def _likeliest(data: bytes) -> str:
    try:
        return encoding_of(data)
    except ExtractionError:
        from orchestrator.documents.guessing import best_guess

        name = best_guess(data)
        if name is None:
            raise
        return name


def extends_ascii(encoding: str) -> bool:
    """True if ASCII means the same in the first of the encodings in the setting, as in UTF-8."""
    name = names_of(encoding)[0]
    return name == AUTO or _ASCII.decode(name, "replace") == _ASCII.decode("ascii")


def fits(data: bytes, encoding: str) -> bool:
    """True if all of the bytes are text in an encoding, without characters that only a private agreement has."""
    try:
        return not _NO_CHARACTER.search(data.decode(encoding))
    except ValueError:
        return False


def iso_2022_of(data: bytes) -> str | None:
    """The encoding of seven bits whose shifts stand in the text, such as that of Japanese mails."""
    if b"\x1b" not in data or _ISO_2022.search(data) is None:
        return None
    return next((name for name in _SEVEN_BITS if fits(data, name)), None)


def decode_declared(data: bytes, declared: str | None) -> str:
    """The text of what another file says the encoding of, such as a section of a mail; a wrong word is seen through.

    Raises ExtractionError (encoding) as `decode`.
    """
    name = declared and _decodes(data, declared)
    return clean(_strictly(data, name)) if name else decode(data)


def bom_of(data: bytes) -> str | None:
    """The encoding that the first bytes name, if they do."""
    return next((name for mark, name in BOMS if data.startswith(mark)), None)


def wide_without_bom(data: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark: mostly Latin text, so that every second byte or three of four are NUL."""
    head = data[: _LOOK - _LOOK % 4]
    if len(data) % 4 == 0:
        high, low = head[::4], head[3::4]
        if not any(high) and max(head[1::4], default=99) <= _LAST_PLANE and fits(data, "utf-32-be"):
            return "utf-32-be"
        if not any(low) and max(head[2::4], default=99) <= _LAST_PLANE and fits(data, "utf-32-le"):
            return "utf-32-le"
    even, odd, half = head[::2].count(0), head[1::2].count(0), len(head) // 2
    if len(data) % 2 == 0 and odd * 10 > half * 4 and even * 20 < half:
        return "utf-16-le"
    if len(data) % 2 == 0 and even * 10 > half * 4 and odd * 20 < half:
        return "utf-16-be"
    return None


def _decodes(data: bytes, declared: str) -> str | None:
    """The encoding that a file means by a name, if its bytes fit."""
    try:
        name = codecs.lookup(declared).name
    except LookupError:
        return None
    larger = _LARGER.get(name)
    if name in ("ascii", "iso8859-1") and _CONTROLS.search(data):
        name = "cp1252"
    for encoding in filter(None, (name, larger)):
        with suppress(ValueError):
            if encoding in ON_THE_WEB:
                data.decode(encoding)
                return encoding
    return None


def _strictly(data: bytes, encoding: str) -> str:
    try:
        text = data.decode(encoding)
    except ValueError as error:
        at = f" (byte {error.start})" if isinstance(error, UnicodeDecodeError) else ""
        raise _not_valid(encoding, at) from error
    if not text.isascii() and _SURROGATE.search(text):
        raise _not_valid(encoding, "")  # some codecs give half surrogate pairs, which nothing later can write
    return text


def _not_valid(encoding: str, at: str) -> ExtractionError:
    return ExtractionError(
        DocumentProblem.ENCODING,
        f"The text is not valid {encoding}{at}; correct `encoding` or convert the file.",
    )
