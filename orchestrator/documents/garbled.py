"""Detects text layers that do not match their page because fonts lack a mapping to letters. Pure.

A text is judged by its characters and by its words. A font without a mapping yields shifted letters, or symbols in
place of letters.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from orchestrator.documents.languages import SMALL_WORDS, small_words

MIN_CHARACTERS = 20
"""Minimum number of non-space characters needed to judge a text."""
MAX_BROKEN, MAX_BROKEN_OF_FEW = 0.1, 0.5
"""Maximum share of control, replacement and private-use characters: in a text, and in a text shorter than
`MIN_CHARACTERS`.
"""
MIN_LETTERS = 60
"""Minimum number of characters needed to judge a text by its letters and words."""
MOST_JUDGED = 800
"""Number of leading characters that are checked for letters and words."""
_FEW_LETTERS, _MANY_SIGNS = 0.2, 0.45
"""Maximum share of letters and minimum share of symbols in a text whose letters became symbols."""
_FEW_WORDS, _MANY_WORDS = 0.05, 0.15
"""Minimum share of small words in readable text, and in text decoded with the right shift."""
_DIFFERENT = 3
_GLYPHS = 29
"""Distance from a glyph number to its letter's code in most fonts without a mapping. The first glyphs map to control
characters, so spaces are lost.
"""
_A_FEW_BROKEN, _SOME_BROKEN = 0.005, 0.02
_LONG, _ONLY_WESTERN = 200, 0.95
"""Length in characters from which a text is expected to contain words, and the share of its letters that count as
only Western.
"""
_SCRIPTS, _MIXED = 3, 0.1
"""Number of scripts that no language mixes in one word, and minimum share of such words in a garbled text.

A script is a block of 256 codes.
"""
_SWAPPED = 0.5
_MANY_SCRIPTS = ("\u0370", "\u1e00")
"""Range of codes that is checked for mixed scripts: small alphabets, from Greek on.

East Asian scripts, which do mix, lie outside.
"""
_NUMBERED = 16
"""Number of distinct characters in code order that shows that the font numbers its letters."""
_PROSE, _SOME_PROSE, _NO_PROSE = 0.45, 0.25, 0.3
"""Share of the most frequent letters: minimum in prose, minimum in a text full of figures, maximum in a garbled
text.
"""
_FREQUENT = "aeinorst"
_LETTERS_OF_GLYPHS = str.maketrans({code: code + _GLYPHS for code in range(3, 0x7F - _GLYPHS)})
_BROKEN = re.compile("[\0-\x08\x0e-\x1f\x7f-\x9f\ufffd\ue000-\uf8ff]")
_LEADERS = re.compile(r"([.\-_·…=*—–|•])(?:\s?\1){2,}")
_SOLID = "".join(map(chr, range(ord("!"), ord("~") + 1)))
_SHIFTS = {
    shift: bytes.maketrans(_SOLID.encode(), bytes(code + shift for code in map(ord, _SOLID)))
    for shift in range(-31, 32)
    if shift
}
_FREQUENT_AT = {shift: [ord(one) - shift for one in _FREQUENT + _FREQUENT.upper()] for shift in _SHIFTS}
"""Codes of the most frequent letters in a shifted text, by shift."""
_CODES = 1 + max(map(max, _FREQUENT_AT.values()))
_SMALL_WORDS = frozenset(map(str.encode, SMALL_WORDS))


def is_garbled(text: str) -> bool:
    """Return True if a text cannot be what its page shows. Never True for lists and code."""
    if _BROKEN.search(text) is not None:
        solid = "".join(text.split())
        broken = len(_BROKEN.findall(text))
        if broken > MAX_BROKEN * len(solid):
            return len(solid) >= MIN_CHARACTERS or broken > MAX_BROKEN_OF_FEW * len(solid)
        if broken > _A_FEW_BROKEN * len(solid) and len(solid) >= MIN_CHARACTERS and _are_glyphs(solid):
            return True
        if broken > _SOME_BROKEN * len(solid) and len(solid) >= _LONG and is_wordless(text):
            return True
    text = text[:MOST_JUDGED]
    if _mixes_scripts(text) or _is_swapped(text):
        return True
    return not _has_small_words(text) and (_are_numbered(text) or _is_shifted(_LEADERS.sub(" ", text)))


def is_wordless(text: str) -> bool:
    """Return True if a text has many Western letters but no small words.

    A font of another script with its own codes yields this. Lists of names and codes have no small words either.
    """
    letters = list(filter(str.isalpha, text))
    western = sum(letter < "\u0250" for letter in letters)
    return western >= max(_ONLY_WESTERN * len(letters), _LONG / 2) and not _has_small_words(_BROKEN.sub(" ", text))


def _mixes_scripts(text: str) -> bool:
    first, end = _MANY_SCRIPTS
    if max(text, default="") < first:
        return False
    words = text.split()
    mixed = sum(
        len({ord(one) >> 8 for one in word if first <= one < end and one.isalpha()}) >= _SCRIPTS for word in words
    )
    return 0 < mixed >= _MIXED * len(words)


def _is_swapped(text: str) -> bool:
    """Return True if most characters look like UTF-16 with swapped bytes, in which `A` is U+4100."""
    solid = "".join(text.split())
    return not text.isascii() and sum(ord(one) & 0xFF == 0 for one in solid) > _SWAPPED * len(solid)


def _are_glyphs(solid: str) -> bool:
    """Return True if a text reads as language only when its characters are taken for glyph numbers."""
    read, moved = (sum(map(text.count, _FREQUENT)) for text in (solid, solid.translate(_LETTERS_OF_GLYPHS)))
    return read < _NO_PROSE * len(solid) and moved > _PROSE * len(solid)


def _are_numbered(text: str) -> bool:
    """Return True if the font numbers its letters by first use.

    Each new character then has the code after the previous new character. A table of characters, which all follow
    each other directly, does not count.
    """
    solid = "".join(text.split())
    new = list(dict.fromkeys(solid))[:_NUMBERED]
    in_order = len(new) == _NUMBERED and all(ord(after) == ord(before) + 1 for before, after in pairwise(new))
    return in_order and solid.index(new[-1]) >= len(new) - 1 + _DIFFERENT


def _has_small_words(text: str) -> bool:
    return len(SMALL_WORDS.intersection(text.lower().split())) >= _DIFFERENT


def _is_shifted(text: str) -> bool:
    """Return True for ASCII text whose letters are shifted by a fixed offset, or that is mostly symbols."""
    counts = Counter("".join(text.split()))
    total = counts.total()
    known = [(character, number) for character, number in counts.items() if character in _SOLID]
    if total < MIN_LETTERS or 10 * sum(number for _, number in known) < 9 * total:
        return False
    letters = sum(number for character, number in known if character.isalpha())
    signs = sum(number for character, number in known if not character.isalnum())
    if letters < _FEW_LETTERS * total and signs > _MANY_SIGNS * total:
        return True
    if small_words(text) >= _FEW_WORDS:
        return False
    # Pages of figures get this far. Counting letters takes a tenth of the time of searching for words.
    by_code = [counts.get(chr(code), 0) for code in range(_CODES)]
    likely = (shift for shift, at in _FREQUENT_AT.items() if sum(map(by_code.__getitem__, at)) > _SOME_PROSE * total)
    coded = text.encode("utf-8", "replace")
    moved = (coded.translate(_SHIFTS[shift]) for shift in likely)
    promising = (one for one in moved if len(_SMALL_WORDS.intersection(one.lower().split())) >= _DIFFERENT)
    return any(small_words(one.decode("utf-8", "replace")) >= _MANY_WORDS for one in promising)
