"""Detects text layers that do not match their page, because fonts lack a mapping to letters. Pure.

A text is judged by its characters, and letters by their words. A font without a mapping gives shifted letters, or
symbols instead of letters.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from orchestrator.documents.languages import SMALL_WORDS, small_words

MIN_CHARACTERS = 20
"""Minimum number of characters of a text that is judged."""
MAX_BROKEN, MAX_BROKEN_OF_FEW = 0.1, 0.5
"""Share of a text's characters that are controls, replacements or private-use; that of a shorter text."""
MIN_LETTERS = 60
"""With fewer characters, words prove nothing."""
MOST_JUDGED = 800
"""Number of characters that are examined for words."""
_FEW_LETTERS, _MANY_SIGNS = 0.2, 0.45
"""A text with a smaller share of letters and a larger share of symbols has symbols in place of its letters."""
_FEW_WORDS, _MANY_WORDS = 0.05, 0.15
"""Shares of a language's small words in a text of another language, and in one of this language."""
_DIFFERENT = 3
_GLYPHS = 29
"""The distance of a letter's code from the number of its glyph in most fonts without a mapping. The first numbers
are control characters, so that spaces are lost."""
_A_FEW_BROKEN, _SOME_BROKEN = 0.005, 0.02
_LONG, _ONLY_WESTERN = 200, 0.95
"""Number of characters of a text in which words are missed, and the share of its letters that are Western."""
_SCRIPTS, _MIXED = 3, 0.1
"""Scripts in one word that no language mixes, and the share of such words. A script has 256 codes, or a part."""
_SWAPPED = 0.5
_MANY_SCRIPTS = ("\u0370", "\u1e00")
"""The codes of small alphabets, from Greek on; scripts of East Asia, which mix, have others."""
_NUMBERED = 16
"""This many different characters in the order of their codes are not chance."""
_PROSE, _SOME_PROSE, _NO_PROSE = 0.45, 0.25, 0.3
"""The share of the most frequent letters in a European language, in a text with many figures, and in a text
without language."""
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
"""The codes that stand for the most frequent letters."""
_CODES = 1 + max(map(max, _FREQUENT_AT.values()))
_SMALL_WORDS = frozenset(map(str.encode, SMALL_WORDS))


def is_garbled(text: str) -> bool:
    """True if a text cannot be what its page shows; never for lists and code."""
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
    if _is_mixed(text) or _is_swapped(text):
        return True
    return not _has_small_words(text) and (_are_numbered(text) or _is_shifted(_LEADERS.sub(" ", text)))


def is_wordless(text: str) -> bool:
    """True if a text has many Western letters and no small words: a font of another script with codes of its own.

    Lists of names and codes have no small words either.
    """
    letters = list(filter(str.isalpha, text))
    western = sum(letter < "\u0250" for letter in letters)
    return western >= max(_ONLY_WESTERN * len(letters), _LONG / 2) and not _has_small_words(_BROKEN.sub(" ", text))


def _is_mixed(text: str) -> bool:
    """True if words consist of letters of many scripts."""
    first, end = _MANY_SCRIPTS
    if max(text, default="") < first:
        return False
    words = text.split()
    mixed = sum(
        len({ord(one) >> 8 for one in word if first <= one < end and one.isalpha()}) >= _SCRIPTS for word in words
    )
    return 0 < mixed >= _MIXED * len(words)


def _is_swapped(text: str) -> bool:
    """True if most characters are those of UTF-16 with its bytes exchanged, so that `A` is U+4100."""
    solid = "".join(text.split())
    return not text.isascii() and sum(ord(one) & 0xFF == 0 for one in solid) > _SWAPPED * len(solid)


def _are_glyphs(solid: str) -> bool:
    """True if a text without spaces reads as language only when its characters are taken as numbers of glyphs."""
    read, moved = (sum(map(text.count, _FREQUENT)) for text in (solid, solid.translate(_LETTERS_OF_GLYPHS)))
    return read < _NO_PROSE * len(solid) and moved > _PROSE * len(solid)


def _are_numbered(text: str) -> bool:
    """True if each new character has the code after the last new character's: a font numbers its letters by use.

    In a table of characters, these characters follow each other.
    """
    solid = "".join(text.split())
    new = list(dict.fromkeys(solid))[:_NUMBERED]
    in_order = len(new) == _NUMBERED and all(ord(after) == ord(before) + 1 for before, after in pairwise(new))
    return in_order and solid.index(new[-1]) >= len(new) - 1 + _DIFFERENT


def _has_small_words(text: str) -> bool:
    return len(SMALL_WORDS.intersection(text.lower().split())) >= _DIFFERENT


def _is_shifted(text: str) -> bool:
    """True for ASCII whose words are shifted by a fixed number of places, or that consists mostly of symbols."""
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
    # Pages of figures come here too: counting letters takes a tenth of the time of looking for words.
    by_code = [counts.get(chr(code), 0) for code in range(_CODES)]
    likely = (shift for shift, at in _FREQUENT_AT.items() if sum(map(by_code.__getitem__, at)) > _SOME_PROSE * total)
    coded = text.encode("utf-8", "replace")
    moved = (coded.translate(_SHIFTS[shift]) for shift in likely)
    promising = (one for one in moved if len(_SMALL_WORDS.intersection(one.lower().split())) >= _DIFFERENT)
    return any(small_words(one.decode("utf-8", "replace")) >= _MANY_WORDS for one in promising)
