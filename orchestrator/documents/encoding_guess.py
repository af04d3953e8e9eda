"""Detects a legacy encoding by the text: words of a language, sequences of letters, and impossible characters.

A wrong guess would silently send garbled text to a model. An ambiguous text is therefore an `encoding` problem, which
names the candidates.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from operator import ne

from orchestrator.documents.languages import ODD_WORDS, Reading, oddities, readings
from orchestrator.documents.types import DocumentProblem, ExtractionError

SAMPLE_BYTES = 32 * 1024
MIN_ODD, MIN_ODD_WIDE = 24, 100
"""Minimum numbers of non-ASCII bytes for letter statistics to be conclusive: for one-byte and two-byte encodings.

Two-byte encodings need more, because they turn any bytes into rare characters.
"""
_WIDE = frozenset(
    "big5 big5hkscs cp949 euc-kr gb18030 johab cp932 euc_jp euc-jp euc_jis_2004 euc_jisx0213 shift_jis_2004".split()
)
MIN_LIKELY = 0.2
MIN_LEAD = 1.15
MANY_ODD, FAR_LEAD = 100, 1.5
"""With at least `MANY_ODD` non-ASCII bytes, a likelihood `FAR_LEAD` times that of the next encoding is conclusive.

This holds even if markup lowers the likelihoods.
"""
MIN_MORE_ODD = 3
MIN_WITNESS = 0.1
MOST_ODD = 10
"""An encoding with more than one oddity per this many non-ASCII bytes is wrong, however likely its letters are."""
_PIECE = 1 << 20
_TAG = re.compile(rb"<[!-;=?-~\s]*+>")
"""Matches markup, which is left out because tag names belong to no language."""
_SINGLE = re.compile(rb"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])")
_NO_MARKS = re.compile("[^\x00-\x7f\u2190-\u303f]")
_CONTROL = re.compile("[\x80-\x9f]")
_CLOSE = 0.5
"""Minimum likelihood of a rival, relative to the best encoding. Rivals are compared by oddities."""
# Character sets and their supersets. Programs often write the superset but declare the subset.
_LARGER = {
    "shift_jis": "cp932", "euc-kr": "cp949", "gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs",
    "iso-8859-1": "cp1252", "iso-8859-9": "cp1254", "iso-8859-8": "cp1255", "tis-620": "cp874", "iso8859-11": "cp874",
    "cp1125": "cp866", "cp858": "cp850", "shift_jis_2004": "cp932", "shift_jisx0213": "cp932",
    "euc_jis_2004": "euc_jp", "euc_jisx0213": "euc_jp", "johab": "johab",
}  # fmt: skip
_PAIR, _FAR_PAIR = re.compile(rb"[\xa1-\xfe]{2}"), re.compile(rb"\x8e[\xa1-\xb0][\xa1-\xfe]{2}")
_FEWEST_PAIRS, _EMPTY_ROWS, _FIRST_SIGN = 12, range(0xA9, 0xC2), 0xC4
"""Signs of EUC-TW, which Python cannot decode: it has no characters in rows that are full in similar encodings."""
_RARE = frozenset(
    "iso8859-3 iso8859-4 iso8859-10 iso8859-14 iso8859-16 kz1048 ptcp154 cp720 cp775 cp864 cp869 macturkish koi8-t "
    "cp1006".split()
)
"""Encodings that are too rare in files to count as rivals."""
_COMMON = ("cp1252", "windows-1252", "cp1251", "windows-1251", "cp1250", "windows-1250", "latin-1")
_FEW_LIKELY = 8
_NOT_FILES = ("cp037", "cp273", "cp424", "cp500", "cp875", "cp1026", "cp1140", "hp-roman8", "utf-")
"""Encodings of mainframes and terminals. They do not occur in files, but statistics would often favour them."""


def guess(data: bytes, at: int) -> str:
    """Return the only encoding in which `data` is readable. `data` is not valid UTF-8 from byte `at` on.

    Raises ExtractionError (encoding) if no encoding fits, or more than one.
    """
    if _is_damaged_utf8(data):
        raise ExtractionError(
            DocumentProblem.ENCODING,
            f"The text is UTF-8 with damaged bytes (the first is byte {at}); fix the file or set `encoding`.",
        )
    sample = _non_ascii_sample(data, at)
    found = _without_controls(readings(sample))
    likely = _likely(_TAG.sub(b" ", sample))
    name = _clearly_best(found, likely, sample) or _by_letters(sample, likely)
    is_foreign = name in _WIDE and _is_euc_tw(sample)
    if name is not None and not is_foreign and _decodes(data, name):
        return name
    names = (
        []
        if is_foreign
        else _without_aliases([one.encoding for one in found] or [one for one, _ in likely][:_FEW_LIKELY])
    )
    reason = f"it may be {', '.join(names[:3])}" if names else "it fits no known encoding"
    raise ExtractionError(
        DocumentProblem.ENCODING,
        f"The text is not UTF-8 (byte {at}), and {reason}; set `encoding` for this source, or convert the file.",
    )


def _is_euc_tw(sample: bytes) -> bool:
    near = _FAR_PAIR.sub(b"", sample)
    rows = [pair[0] for pair in _PAIR.findall(near)]
    is_of_pairs = len(rows) >= _FEWEST_PAIRS and 20 * len(rows) >= 9 * sum(byte > 127 for byte in near)
    signs = sum(row >= _FIRST_SIGN for row in rows)
    return is_of_pairs and 2 * signs > len(rows) and not any(row in _EMPTY_ROWS for row in rows)


def _without_controls(found: list[Reading]) -> list[Reading]:
    return [one for one in found if _CONTROL.search(one.text) is None] or found


def _without_aliases(names: list[str]) -> list[str]:
    found: dict[str, str] = {}
    for name in names:
        with suppress(LookupError):
            found.setdefault(codecs.lookup(name).name, name)
    return list(found.values())


def best_guess(data: bytes) -> str | None:
    """Return the most likely encoding even if others are close. None if no encoding can decode the bytes."""
    at = next((at for at, byte in enumerate(data) if byte > 127), 0)
    sample = _non_ascii_sample(data, at)
    found = sorted(readings(sample), key=lambda one: one.oddities)
    likely = [name for name, _ in _likely(sample)[:_FEW_LIKELY]]
    likely.sort(key=lambda name: (oddities(_decodes(sample, name) or "\ufffd" * len(sample)), name not in _COMMON))
    names = [*(one.encoding for one in found), *likely, *_COMMON]
    return next((name for name in names if _decodes(data, name) is not None), None)


def _clearly_best(found: list[Reading], likely: list[tuple[str, float]], sample: bytes) -> str | None:
    """Return the encoding of the reading with the fewest oddities, if every other reading has far more. Otherwise
    return None.

    If the reading has oddities or its encoding is two-byte, the statistics of letters must not contradict it.
    """
    best, *others = sorted(found, key=lambda one: one.oddities) or (None,)
    if (
        best is not None
        and len(sample) - len(best.text.encode("ascii", "ignore")) < MIN_ODD
        and _may_be_marks(sample)
    ):
        return None
    if best is None or (others and others[0].oddities <= 2 * best.oddities + (1 if best.oddities else 0)):
        return None
    if best.oddities or best.encoding in _WIDE:
        witness = next((name for name, confidence in likely if confidence >= MIN_WITNESS), None)
        if witness is not None and _decodes(sample, witness) != best.text:
            return None
    return best.encoding


def _may_be_marks(sample: bytes) -> bool:
    """True if all non-ASCII bytes can be Japanese marks such as ■, which occur in texts of any language."""
    text = None if _SINGLE.search(sample) else _decodes(sample, "cp932")
    return text is not None and _NO_MARKS.search(text) is None


def _likely(sample: bytes) -> list[tuple[str, float]]:
    """Return encodings whose letter sequences fit a language, each with its confidence (0 to 1), best first."""
    import chardet

    found: dict[str, float] = {}
    for one in chardet.detect_all(sample, ignore_threshold=True):
        name = (one["encoding"] or "utf-").lower()
        larger = _LARGER.get(name)
        name = larger if larger and _decodes(sample, larger) else name
        if not name.startswith(_NOT_FILES):
            found.setdefault(name, one["confidence"])
    return list(found.items())


def _by_letters(sample: bytes, likely: list[tuple[str, float]]) -> str | None:
    """Return the most likely encoding if no other encoding is nearly as likely, or if its rivals have more oddities.

    The thresholds suit languages that are missing from our lists of small words, such as Vietnamese and Thai.
    """
    odd_bytes = sum(byte > 127 for byte in sample)
    if not likely or odd_bytes < (MIN_ODD_WIDE if likely[0][0] in _WIDE else MIN_ODD):
        return None
    texts: dict[str, tuple[str, float]] = {}
    for name, confidence in likely:
        is_rival = confidence >= _CLOSE * likely[0][1] and (not texts or name not in _RARE)
        if is_rival and (text := _decodes(sample, name)) is not None:
            texts.setdefault(text, (name, confidence))
    if not texts:
        return None
    (name, best), *rivals = texts.values()
    odd, *others = map(oddities, texts)
    if odd * MOST_ODD > odd_bytes:
        return None
    lead = best / max((confidence for _, confidence in rivals), default=best * _CLOSE)
    if (best >= MIN_LIKELY and lead >= MIN_LEAD and odd <= min(others, default=odd)) or (
        odd_bytes >= MANY_ODD and lead >= FAR_LEAD
    ):
        return name
    if best < MIN_LIKELY and odd_bytes < MANY_ODD:
        return None
    return _least_odd([(text, name) for text, (name, _) in texts.items()])


def _least_odd(texts: list[tuple[str, str]]) -> str | None:
    """Return the encoding of the text with the fewest oddities if every other text has clearly more; otherwise None.

    If two texts differ in only a few characters, one more oddity is enough.
    """
    counts = sorted((oddities(text), name, text) for text, name in texts)
    (least, name, text), *others = counts
    if least * ODD_WORDS > len(text.split()):
        return None
    for count, _, other in others:
        differing = sum(map(ne, text, other)) if len(text) == len(other) else len(text)
        if count - least < max(1, min(differing // 2, max(MIN_MORE_ODD, least))):
            return None
    return name


def _decodes(sample: bytes, name: str) -> str | None:
    try:
        return sample.decode(name)
    except (LookupError, ValueError):
        return None


def _non_ascii_sample(data: bytes, at: int) -> bytes:
    start = max(data.rfind(b"\n", 0, at) + 1, at - 1024)
    lines = b"\n".join(line for line in data[start : start + 16 * SAMPLE_BYTES].split(b"\n") if not line.isascii())
    if len(lines) <= SAMPLE_BYTES:
        return lines
    # Cutting at a space or line end is safe: no encoding uses these bytes inside another character.
    end = max(lines.rfind(b"\n", 0, SAMPLE_BYTES), lines.rfind(b" ", 0, SAMPLE_BYTES))
    return lines[: end if end > 0 else SAMPLE_BYTES]


def _is_damaged_utf8(data: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    others = broken = 0
    for at in range(0, len(data), _PIECE):
        text = decoder.decode(data[at : at + _PIECE], at + _PIECE >= len(data))
        others += len(text) - len(text.encode("ascii", "ignore"))
        broken += text.count("\ufffd")
    return others - broken > broken
