"""Bytes to text: UTF-8, a byte order mark, the named encoding, or a guess that leaves no second reading.

A wrong guess would send garbled text to a model and nobody would see it, so what can be read in two ways is
an `encoding` problem that names the candidates.
"""

from __future__ import annotations

import codecs
import re

from orchestrator.documents.types import DocumentProblem, ExtractionError
from orchestrator.errors import InputError

# UTF-32 first: its little-endian mark begins with that of UTF-16.
BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
SAMPLE_BYTES = 64 * 1024  # what the guess looks at, around the first byte that is not UTF-8

_PUNCTUATION = frozenset("“”‘’„‚–—…•€£§°©®™«»‹›¿¡·½¼¾²³ºª×÷±µ´\xa0\xad")
# Letters of one language each; Icelandic is left out because Turkish in windows-1254 looks like it.
_WESTERN = tuple(
    frozenset(letters + letters.upper().replace("SS", ""))
    for letters in (
        "àâæçéèêëîïôœùûüÿ",
        "äöüßéàè",
        "áéíñóúü",
        "áâãàçéêíóôõúü",
        "àèéìíîòóù",
        "áéëïóöüèê",
        "åäöéüà",
        "æøåéèòóôü",
    )
)
_NON_ASCII = re.compile(r"[^\x00-\x7f]")
_IMPLAUSIBLE = re.compile(  # a capital inside a small word, or an ordinal or power sign inside a word
    r"[a-zà-ÿ][À-ÖØ-Þ](?![A-ZÀ-Þ])|[A-Za-zÀ-ÿ][¿¡£§²³¼½¾ºª¹](?=[A-Za-zÀ-ÿ])"
)


def clean(text: str) -> str:
    """Without byte order mark and NUL (databases refuse it), with lines ended by `\\n`."""
    if text.startswith("\ufeff"):
        text = text[1:]
    if "\0" in text:
        text = text.replace("\0", "")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def check_name(encoding: str | None) -> None:
    """Raises InputError when Python knows no text encoding of that name."""
    if encoding is None:
        return
    try:
        known = codecs.lookup(encoding)
        "".encode(encoding)
    except (LookupError, ValueError):
        known = None
    if known is None:
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
    if data.count(b"\0") * 5 > len(data) and (wide := wide_without_bom(data)):
        return clean(_strictly(data, wide))
    try:
        return clean(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        name = (declared and _decodes(data, declared)) or guess(data, error.start)
        return clean(_strictly(data, name))


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
            f"The text is UTF-8 with damaged bytes (the first is byte {at}); mend the file or set `encoding`.",
        )
    from charset_normalizer import from_bytes

    sample = _around(data, at)
    matches = list(from_bytes(sample, enable_fallback=False))
    if matches:
        best = matches[0]
        rivals = [m for m in matches[1:] if m.chaos <= best.chaos + 0.05 and m.coherence > 0.6 * best.coherence]
        # Nothing but the shape of the bytes speaks for a match without coherence; that is not enough.
        if best.coherence > 0 and all(str(m) == str(best) for m in rivals):
            return str(best.encoding)
        western = _decodes(sample, "cp1252")
        if western and _is_western(sample.decode("cp1252")) and best.chaos <= 0.1:
            return western
    names = ", ".join(m.encoding for m in matches[:3])
    told = f"it may be {names}" if names else "it fits no known encoding"
    raise ExtractionError(
        DocumentProblem.ENCODING,
        f"The text is not UTF-8 (byte {at}), and {told}; set `encoding` for this source, or convert the file.",
    )


def _around(data: bytes, at: int) -> bytes:
    """At most SAMPLE_BYTES with byte `at` in it, cut at line ends so that no character is torn."""
    if len(data) <= SAMPLE_BYTES:
        return data
    low = max(0, at - SAMPLE_BYTES // 4)
    start = data.find(b"\n", low, at) + 1 if low else 0
    sample = data[start or low : (start or low) + SAMPLE_BYTES]
    end = sample.rfind(b"\n", at - (start or low))
    return sample if end < 0 else sample[:end]


def _is_western(text: str) -> bool:
    """Whether windows-1252 gives one Western European language, with its accents where accents go."""
    letters = set(_NON_ASCII.findall(text)) - _PUNCTUATION
    return any(letters <= alphabet for alphabet in _WESTERN) and not _IMPLAUSIBLE.search(text)


def _mostly_utf8(data: bytes) -> bool:
    """More good multi-byte characters than broken ones: damaged UTF-8, whatever else it would decode as."""
    text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    return len(_NON_ASCII.findall(text)) - broken > broken


def _decodes(data: bytes, encoding: str) -> str | None:
    try:
        data.decode(encoding)
    except (UnicodeDecodeError, LookupError, ValueError):
        return None
    return encoding


def _strictly(data: bytes, encoding: str) -> str:
    try:
        text = data.decode(encoding)
        text.encode("utf-8")  # some codecs give half surrogate pairs, which nothing later can write
        return text
    except ValueError as error:
        at = f" (byte {error.start})" if isinstance(error, UnicodeDecodeError) else ""
        raise ExtractionError(
            DocumentProblem.ENCODING,
            f"The text is not valid {encoding}{at}; correct `encoding` or convert the file.",
        ) from error
