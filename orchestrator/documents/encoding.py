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
SAMPLE_BYTES = 32 * 1024  # what the guess looks at
MIN_ODD = 24
"""So many bytes that are not ASCII a text has to have for its letters to tell."""
MIN_LIKELY = 0.2
MIN_LEAD = 1.15

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
_SURROGATE = re.compile("[\ud800-\udfff]")
_PIECE = 1 << 20


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


def check_name(encoding: str | None) -> None:
    """Raises InputError when Python knows no text encoding of that name."""
    if encoding is None:
        return
    try:
        "".encode(encoding)
        is_known = codecs.lookup(encoding).name not in _NO_TEXTS
    except (LookupError, ValueError):
        is_known = False
    if not is_known:
        raise InputError(
            f"There is no text encoding named {encoding!r}; use for example utf-8, windows-1252 or utf-16.",
            field="encoding",
        )


def decode(data: bytes, encoding: str | None = None, declared: str | None = None) -> str:
    """The text of a whole file. `encoding` is the user's word, `declared` what the file says of itself.

    Raises ExtractionError (encoding) when the bytes do not fit, or fit more than one reading.
    """
    if encoding is not None:
        return clean(_strictly(data, encoding))
    bom = bom_of(data)
    if bom is not None and bom != "utf-8":
        return clean(_strictly(data, bom))
    if bom is None and data.count(b"\0") * 5 > len(data) and (wide := wide_without_bom(data)):
        return clean(_strictly(data, wide))
    try:
        return clean(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        name = (declared and _decodes(data, declared)) or guess(data, error.start)
        return clean(_strictly(data, name))


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
    """UTF-16 without a mark: mostly Latin text, so nearly every second byte is NUL."""
    head = data[:SAMPLE_BYTES]
    even, odd, half = head[::2].count(0), head[1::2].count(0), len(head) // 2
    if len(data) % 2 == 0 and odd * 10 > half * 4 and even * 20 < half:
        return "utf-16-le"
    if len(data) % 2 == 0 and even * 10 > half * 4 and odd * 20 < half:
        return "utf-16-be"
    return None


def guess(data: bytes, at: int) -> str:
    """The one encoding in which `data`, not UTF-8 from byte `at` on, can be read.

    Raises ExtractionError (encoding) when there is none, or more than one.
    """
    if _mostly_utf8(data):
        raise ExtractionError(
            DocumentProblem.ENCODING,
            f"The text is UTF-8 with damaged bytes (the first is byte {at}); fix the file or set `encoding`.",
        )
    from orchestrator.documents.languages import readings

    sample = _telling(data, at)
    found = readings(sample)
    if len(found) == 1:
        return next(iter(found.values()))
    likely = _likely(sample)
    if name := _by_letters(sample, likely):
        return name
    names = ", ".join(list(found.values()) or list(dict.fromkeys(one for one, _ in likely))[:3])
    told = f"it may be {names}" if names else "it fits no known encoding"
    raise ExtractionError(
        DocumentProblem.ENCODING,
        f"The text is not UTF-8 (byte {at}), and {told}; set `encoding` for this source, or convert the file.",
    )


def _likely(sample: bytes) -> list[tuple[str, float]]:
    """Encodings in which the letters follow each other as in some language, with how well (0 to 1), best first."""
    import chardet

    found = chardet.detect_all(sample, ignore_threshold=True)
    return [(one["encoding"].lower(), one["confidence"]) for one in found if one["encoding"]]


def _by_letters(sample: bytes, likely: list[tuple[str, float]]) -> str | None:
    """The best of what is likely, where the next one that reads as another text is far behind; None otherwise.

    The thresholds hold for languages without small words on our own list, such as Vietnamese and Thai: of over 200
    texts in 29 languages that pass them, none was read wrongly; the statistics' first guess alone gets a tenth wrong.
    """
    if not likely or sum(byte > 127 for byte in sample) < MIN_ODD or likely[0][1] < MIN_LIKELY:
        return None
    name, best = likely[0]
    text = _read_as(sample, name)
    rival = next((how for other, how in likely[1:] if _read_as(sample, other) not in (text, None)), 0.0)
    return name if text is not None and best >= MIN_LEAD * rival else None


def _read_as(sample: bytes, name: str) -> str | None:
    try:
        return sample.decode(name)
    except (LookupError, ValueError):
        return None


def _telling(data: bytes, at: int) -> bytes:
    """At most SAMPLE_BYTES of the lines that are not ASCII, from the first one on: the rest tells nothing."""
    start = max(data.rfind(b"\n", 0, at) + 1, at - 1024)
    lines = b"\n".join(line for line in data[start : start + 16 * SAMPLE_BYTES].split(b"\n") if not line.isascii())
    if len(lines) <= SAMPLE_BYTES:
        return lines
    # In no encoding is a space or a line end a part of another character.
    end = max(lines.rfind(b"\n", 0, SAMPLE_BYTES), lines.rfind(b" ", 0, SAMPLE_BYTES))
    return lines[: end if end > 0 else SAMPLE_BYTES]


def _mostly_utf8(data: bytes) -> bool:
    """More good multi-byte characters than broken ones: damaged UTF-8, whatever else it would decode as."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    others = broken = 0
    for at in range(0, len(data), _PIECE):
        text = decoder.decode(data[at : at + _PIECE], at + _PIECE >= len(data))
        others += len(text) - len(text.encode("ascii", "ignore"))
        broken += text.count("\ufffd")
    return others - broken > broken


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
