"""Converts bytes to text. The encoding is UTF-8, given by a byte order mark, set by the user, or the only plausible
guess.

A wrong guess would silently send garbled text to a model. An ambiguous text is therefore an `encoding` problem, which
names the candidates.
"""

from __future__ import annotations

import codecs
from contextlib import suppress

from orchestrator.core.errors import InputError
from orchestrator.core.lazy_patterns import regex
from orchestrator.documents.types import DocumentProblem, ExtractionError

# UTF-32 comes before UTF-16: its little-endian mark starts with UTF-16's mark.
BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
AUTO = "auto"
"""The setting that accepts the most likely encoding, even if it is not certain."""
_ISO_2022 = regex(rb"\x1b\$[@AB)(]|\x1b\([IJ]")
_SEVEN_BITS = ("iso2022_jp", "iso2022_jp_ext", "iso2022_jp_2004", "iso2022_kr")
_UTF_8 = "utf-8"
_ASCII = b"Aa1 +-~{\x1b$B!!"
"""ASCII text that 7-bit, two-byte and mainframe encodings decode to different text."""
_LOOK = 32 * 1024
_LAST_PLANE = 0x10  # of Unicode

# Encodings of web pages. Python knows more names, but some are not for text and some are slow.
ON_THE_WEB = frozenset(
    "utf-8 utf-16 utf-16-le utf-16-be cp866 koi8-r koi8-u mac-roman mac-cyrillic cp874 cp932 cp949 gb2312 gbk "
    "gb18030 big5 big5hkscs euc_jp euc_kr iso2022_jp shift_jis".split()
    + [f"cp125{i}" for i in range(9)]
    + [f"iso8859-{i}" for i in (*range(1, 12), *range(13, 17))]
)
# Supersets that browsers read under these names. Programs often write the superset but declare the subset.
_LARGER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "gb2312": "gb18030", "gbk": "gb18030",
    "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs", "iso8859-11": "cp874", "tis-620": "cp874",
}  # fmt: skip
_CONTROLS = regex(rb"[\x80-\x9f]")
_NO_TEXTS = frozenset(("punycode", "idna", "unicode-escape", "unicode_escape", "raw-unicode-escape", "undefined"))
_NO_CHARACTER = regex("[\ud800-\udfff\ue000-\uf8ff]")
_SURROGATE = regex("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Return the text without byte order mark and NUL (which databases refuse), and with `\\n` line ends."""
    if text.startswith("\ufeff"):
        text = text[1:]
    if "\0" in text:
        text = text.replace("\0", "")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def whole(text: str) -> str:
    """Join pairs of surrogates and replace single surrogates, so that the text can be written as UTF-8.

    Readers of formats that count in UTF-16 produce surrogates, and JSON may contain them.
    """
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def names_of(encoding: str) -> list[str]:
    return [name.strip() for name in encoding.split(",")]


def check_name(encoding: str | None) -> None:
    """Raise InputError if any of the comma-separated names is neither `auto` nor a text encoding that Python
    knows.
    """
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
    """Return the text of a whole file. `encoding` is the user's setting, `declared` the file's own declaration.

    Raises ExtractionError (encoding) if the bytes do not fit, or allow more than one reading.
    """
    if encoding is None and _told_by_bytes(data) is None:
        with suppress(UnicodeDecodeError):
            return clean(data.decode())  # UTF-8 contains no surrogate halves
    return clean(_strictly(data, encoding_of(data, encoding, declared)))


def encoding_of(data: bytes, encoding: str | None = None, declared: str | None = None) -> str:
    """Return the encoding that `decode` uses for a file. Raises ExtractionError (encoding) if `decode` would."""
    if encoding is not None:
        return _chosen(data, encoding)
    if name := _told_by_bytes(data):
        return name
    try:
        data.decode(_UTF_8)
        return _UTF_8
    except UnicodeDecodeError as error:
        from orchestrator.documents.encoding_guess import guess

        return (declared and _declared_encoding(data, declared)) or guess(data, error.start)


def _told_by_bytes(data: bytes) -> str | None:
    """Return the encoding that a byte order mark, NUL bytes or shift sequences show. None if there is no sign, or for
    UTF-8.
    """
    bom = bom_of(data)
    if bom is not None and bom != _UTF_8:
        return bom
    if bom is None and data.count(b"\0") * 5 > len(data) and (wide := wide_without_bom(data)):
        return wide
    return iso_2022_of(data)


def _chosen(data: bytes, encoding: str) -> str:
    """Return the first encoding of the setting that fits, or the first encoding if none fits.

    If the first encoding extends ASCII, a byte order mark and valid UTF-8 take precedence.
    """
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
    return names[0]  # decoding then raises the error


def chosen_encoding(data: bytes, encoding: str | None) -> dict[str, str]:
    """Return a field that names the encoding that `auto` chose; empty for UTF-8, or without `auto`."""
    if encoding is None or AUTO not in names_of(encoding):
        return {}
    name = encoding_of(data, encoding)
    return {} if name == _UTF_8 else {"sent_as": f"text, read as {name}"}


def named(encoding: str | None) -> str | None:
    """Return the first encoding of a setting that is not `auto`, or None. For formats that declare their own
    encoding.
    """
    return None if encoding is None else next((name for name in names_of(encoding) if name != AUTO), None)


def _likeliest(data: bytes) -> str:
    try:
        return encoding_of(data)
    except ExtractionError:
        from orchestrator.documents.encoding_guess import best_guess

        name = best_guess(data)
        if name is None:
            raise
        return name


def extends_ascii(encoding: str) -> bool:
    """True if the first encoding of the setting reads ASCII as ASCII."""
    name = names_of(encoding)[0]
    return name == AUTO or _ASCII.decode(name, "replace") == _ASCII.decode("ascii")


def fits(data: bytes, encoding: str) -> bool:
    """True if all bytes decode, without private-use characters."""
    try:
        return not _NO_CHARACTER.search(data.decode(encoding))
    except ValueError:
        return False


def iso_2022_of(data: bytes) -> str | None:
    """Return the 7-bit encoding whose shift sequences the text has, as in Japanese mail; None if it has none."""
    if b"\x1b" not in data or _ISO_2022.search(data) is None:
        return None
    return next((name for name in _SEVEN_BITS if fits(data, name)), None)


def decode_declared(data: bytes, declared: str | None) -> str:
    """Decode a text whose encoding is declared elsewhere, such as in a mail's header. A wrong declaration is ignored.

    Raises ExtractionError (encoding) as `decode` does.
    """
    name = declared and _declared_encoding(data, declared)
    return clean(_strictly(data, name)) if name else decode(data)


def bom_of(data: bytes) -> str | None:
    return next((name for mark, name in BOMS if data.startswith(mark)), None)


def wide_without_bom(data: bytes) -> str | None:
    """Return UTF-16 or UTF-32 for mostly Latin text without a byte order mark, in which many bytes are NUL. Otherwise
    return None.
    """
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


def _declared_encoding(data: bytes, declared: str) -> str | None:
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
        raise _not_valid(encoding, "")  # some codecs produce surrogate halves, which UTF-8 cannot encode
    return text


def _not_valid(encoding: str, at: str) -> ExtractionError:
    return ExtractionError(
        DocumentProblem.ENCODING,
        f"The text is not valid {encoding}{at}; correct `encoding` or convert the file.",
    )
