"""Detects a text's legacy encoding by its language, from frequent small words and letters.

Letter statistics alone are not enough: charset-normalizer reads Polish in windows-1250 as windows-1252, and French
from an old Macintosh as windows-1250. A reading is accepted only if it has the small words of a language and almost
no foreign letters or misplaced symbols. No other encoding may give a similarly good reading. Names, lists of numbers
and texts of a few words have no such reading. Their encoding must be set by the user.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

LATIN = tuple("cp1252 iso8859-15 mac_roman cp850 cp437 cp865 cp1250 iso8859-2 cp852 mac_latin2 cp1254 cp1257".split())
CYRILLIC = ("cp1251", "koi8-r", "koi8-u", "cp866", "iso8859-5", "mac_cyrillic")
GREEK = ("cp1253", "iso8859-7", "mac_greek", "cp737")
HEBREW = ("cp1255", "iso8859-8")
ARABIC = ("cp1256", "iso8859-6")
MIN_WORDS = 3  # small words in a text, of which two must differ
MIN_SHARE = 0.05  # small words among all words
ODD_WORDS, FEW_WORDS = 30, 12
"""A text may have one oddity per `ODD_WORDS` words: a name, a slip or a quirk of the author. From `FEW_WORDS` words
on it may have at least one. More oddities mean another encoding.
"""

_SIGNS = frozenset("“”‘’„–—…•€£§©®°«»¿¡½¼¾²³ºª·×\xa0\xad")
_WORD = re.compile(r"[^\W\d_ªº]+")
_MISPLACED = re.compile(
    "[^\\W\\d_][“”‘„–—…•€£§©®°«»¿¡½¼¾²³ºª·×\xa0](?=[^\\W\\d_])"  # a sign inside a word, where only ’ is normal
    "|[^\\W\\d_][¿¡£§„¼½¾]"  # an opening symbol at the end of a word
    "|\xa0(?=\\s)|\\s\xa0"
    "|\\d[À-ɏ]|[À-ɏ]\\d"  # an accented letter beside a digit
)
_NO_TEXT = re.compile(
    "[\x80-\x9f\ufffd\ue000-\uf8ff]"  # controls, and private-use characters
    "|[^\\W\\d_][^\\w\\s\\x00-\\x7f\u0300-\u036f\u0590-\u0e7f’‘·\xad‐-―…\u3000-\u30ff\uff00-\uffef](?=[^\\W\\d_])"
    "|[^\\W\\d_][ºª](?=[^\\W\\d_])"
    "|[†‡≈≠≤≥∞√∂∆∑∏∫ƒ◊¶¬±µ÷¤¦•](?=[^\\W\\d_])|[^\\W\\d_][†‡≈≠≤≥∞√∂∆∑∏∫◊¶¬±µ÷¤¦]"
    "|[a-zß-ÿ][À-Þ]|[ß-ÿ][A-ZÀ-Þ]|[а-яёђѓєіїјљњќћўџґ][А-ЯЁЂЃЄІЇЈЉЊЋЌЎЏҐ]|[α-ώ][Ά-ΏΑ-Ω]"  # a capital inside a word
    "|[A-Za-zÀ-ɏ][Ѐ-ӿͰ-Ͽ֐-۾]|[Ѐ-ӿͰ-Ͽ֐-۾][A-Za-zÀ-ɏ]"  # letters of two scripts in a word
    "|[Ѐ-ӿ][Ͱ-Ͽ֐-۾]|[Ͱ-Ͽ][Ѐ-ӿ֐-۾]"
)


_RUSSIAN = re.compile("[ыэщъЫЭЩЪ]")
_BALKAN = re.compile("[ЂђЃѓЉљЊњЌќЋћЏџЈјЅѕ]")


def oddities(text: str) -> int:
    """Count places that no real text has: symbols and capitals inside words, controls, words in two scripts."""
    found = sum(1 for _ in _NO_TEXT.finditer(text))
    if _RUSSIAN.search(text):  # such a text has no Serbian or Macedonian letters
        found += sum(1 for _ in _BALKAN.finditer(text))
    return found


class Language(NamedTuple):
    """A language. `alone` are the non-ASCII letters that can be a word."""

    encodings: tuple[str, ...]
    words: frozenset[str]
    letters: frozenset[str]
    alone: frozenset[str]


def _language(words: str, letters: str, alone: str = "", encodings: tuple[str, ...] = LATIN) -> Language:
    return Language(
        encodings, frozenset(words.split()), frozenset(letters + letters.upper().replace("SS", "")), frozenset(alone)
    )


_CYRILLIC = "абвгдежзийклмнопрстуфхцчшщъыьэюяёіїєґ№"
_GREEK = "αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊϋΐΰ"
_HEBREW = "".join(map(chr, range(0x5D0, 0x5EB)))
_ARABIC = "".join(map(chr, range(0x621, 0x64B))) + "،؛؟ـ"

ALPHABETIC = (
    _language("the and of to in is that for with shall this are by be or not", "éáóíöüäçïñ"),
    _language("le la les des et est du une dans pour que qui par sur ou", "àâæçéèêëîïôœùûüÿñö", "àô"),
    _language("der die und das den von zu ist mit des nicht auf ein eine für sind", "äöüßéèàç"),
    _language("el los las que del en por una para con se es", "áéíñóúüç"),
    _language("os que da em uma para com dos das ao por não se sem ser do nas", "áâãàçéêíóôõúü", "àéÀÉ"),
    _language("il che di della per con una del gli dei nel sono non le", "àèéìòùü", "èÈ"),
    _language("de het een van en op dat voor met niet zijn aan", "áéèëïóöü"),
    _language("och att det som en av den med till är för på inte", "åäöéüàáÅ", "åöÅÖ"),
    _language("og at det som en af den med til ikke er på for", "æøåéöüäòóô", "åøÅØ"),
    _language("i w z na nie do jest oraz przez od dla po lub ze są się które", "ąćęłńóśźżüöä"),
    _language("a v na je se z do pro podle nebo od ze po jsou být", "áčďéěíňóřšťúůýžöüä"),
    _language("a v na je sa zo do pre alebo od podľa byť sú so", "áäčďéíĺľňóôŕšťúýž"),
    _language("i u na se je za od da ili koji koja ne su", "čćđšž"),
    _language("ja on ei se että sekä tai kun ovat", "åäö"),
    _language("a az egy hogy nem van meg minden szerint vagy és", "áéíóöőúüűä"),
    _language("de la cu nu pe din sau prin care pentru este în și şi", "ăâîşţșț"),
    _language("ve bir bu ile da için olarak veya olan", "çğıöşüâîûİ"),
    _language("и в на не с по из для что от за между", _CYRILLIC, _CYRILLIC + _CYRILLIC.upper(), CYRILLIC),
    _language("і в на не з та від за що до між", _CYRILLIC, _CYRILLIC + _CYRILLIC.upper(), CYRILLIC),
    _language("και το της του να με σε για των τους από την", _GREEK, "οηΟΗ", GREEK),
    _language("של את על לא עם בין זה או", _HEBREW, encodings=HEBREW),
    _language("في من على إلى أن هذا بين أو التي", _ARABIC, "و", ARABIC),
)
SMALL_WORDS = frozenset(word for language in ALPHABETIC for word in language.words if len(word) > 1)


class Script(NamedTuple):
    """A language judged by its characters, because its words have no spaces between them or take endings.

    At least `share` of a text's characters are `frequent` characters.
    """

    encodings: tuple[str, ...]  # other encodings map the same bytes to the same kana, but to wrong ideographs
    allowed: re.Pattern[str]
    frequent: frozenset[str]
    share: float


def _script(encodings: str, allowed: str, frequent: str, share: float) -> Script:
    wide = "\\u3000-\\u303f\\uff01-\\uff5e"
    return Script(tuple(encodings.split()), re.compile(f"[{wide}{allowed}]*"), frozenset(frequent), share)


_HIRAGANA = "".join(map(chr, range(0x3041, 0x3097)))
SCRIPTS = (
    _script("cp932 euc_jp", "\\u3041-\\u30ff\\u4e00-\\u9fff", _HIRAGANA, 0.15),
    _script("gb18030 big5", "\\u4e00-\\u9fff", "的是在和不有為一之以及或为與", 0.03),
    _script("cp949", "\\uac00-\\ud7a3", "은는이가을를의에다고", 0.1),
)
MIN_CHARACTERS = 12  # non-ASCII characters below which no script is recognised

ENCODINGS = tuple(dict.fromkeys(name for kind in (*ALPHABETIC, *SCRIPTS) for name in kind.encodings))


class Reading(NamedTuple):
    """A possible decoding of the bytes: a text in some language, with its number of oddities."""

    encoding: str
    text: str
    oddities: int


def readings(data: bytes) -> list[Reading]:
    """Return every decoding of `data` that is text in some language; usually none or one."""
    found: dict[str, Reading] = {}
    for encoding in ENCODINGS:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if text not in found and (least := min(_oddities_by_language(text, encoding), default=None)) is not None:
            found[text] = Reading(encoding, text, least)
    return list(found.values())


def small_words(text: str) -> float:
    """Return the highest share of words that are small words of one language.

    A language counts only with at least three different small words, and four in all. Returns 0 if no language
    counts.
    """
    words = Counter(word.lower() for word in _WORD.findall(text))
    shares = [0.0]
    small = SMALL_WORDS.intersection(words)
    for language in ALPHABETIC if len(small) > 2 else ():
        counts = [words[word] for word in small.intersection(language.words)]
        if len(counts) > 2 and sum(counts) > MIN_WORDS:
            shares.append(sum(counts) / words.total())
    return max(shares)


def _oddities_by_language(text: str, encoding: str) -> Iterator[int]:
    foreign = Counter(char for char in text if char > "\x7f")
    yield from (0 for script in SCRIPTS if encoding in script.encodings and _is_script(foreign, script))
    words = Counter(_WORD.findall(text))
    total = words.total()
    languages = [one for one in ALPHABETIC if encoding in one.encodings and _has_words(words, total, one)]
    if not languages:
        return
    accented = {word: number for word, number in words.items() if not word.isascii()}
    odd = sum(1 for _ in _MISPLACED.finditer(text))
    odd += sum(number for word, number in accented.items() if word[1:] != word[1:].lower() and word != word.upper())
    for language in languages:
        strange = sum(number for char, number in foreign.items() if char not in language.letters | _SIGNS)
        strange += sum(n for word, n in accented.items() if len(word) == 1 and word not in language.alone)
        if odd + strange <= max(total // ODD_WORDS, total >= FEW_WORDS):
            yield odd + strange


def _has_words(words: Counter[str], total: int, language: Language) -> bool:
    # Lowercase words that may start a sentence. Single capitals stay: they are initials, or small letters in KOI8.
    found = Counter[str]()
    for word, count in words.items():
        found[word.lower() if word[1:].islower() else word] += count
    counts = [found[word] for word in language.words if word in found]
    return len(counts) > 1 and sum(counts) >= max(MIN_WORDS, MIN_SHARE * total)


def _is_script(foreign: Counter[str], script: Script) -> bool:
    if foreign.total() < MIN_CHARACTERS or not script.allowed.fullmatch("".join(foreign)):
        return False
    return sum(foreign[char] for char in script.frequent) >= script.share * foreign.total()
