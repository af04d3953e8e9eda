"""PDF pages that PDFium reads in part, and text layers that are not what the page shows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.documents import page_images, pdf_text
from orchestrator.documents.garbled import is_garbled
from orchestrator.documents.pdf_lost_text import LostText
from orchestrator.documents.types import DocumentProblem, ExtractionError, Render
from tests.support.pdfs import drawn, japanese, latin, placed

LINES = [
    "吾輩は猫である名前はまだ無い",
    "どこで生れたかとんと見当がつかぬ",
    "何でも薄暗いじめじめした所で",
    "ニャーニャー泣いていた事だけは",
]
LATIN = ["The", "rent", "is", "due", "on", "the", "first"]
PROSE = {
    "en": "The tenant shall pay the rent on the first day of each month, and the deposit is held by the landlord. "
    * 3,
    "de": "Der Mieter zahlt die Miete am ersten Tag des Monats, und die Kaution ist vom Vermieter zu verzinsen. " * 3,
    "fr": "Le locataire paie le loyer par virement le premier jour du mois et la caution est de deux mois. " * 3,
    "pl": "Najemca jest obowiązany do zapłaty czynszu przez przelew na konto i nie może go obniżyć. " * 3,
}
AUTO = Render("auto", 100, 800, 10, True, 10_000_000)


def text(data: bytes) -> str:
    return pdf_text.extract(data, None)[0]


def shifted(prose: str, by: int) -> str:
    return "".join(chr(ord(one) + by) if "?" < one < "\x7f" else one for one in prose)


def test_vertical_lines_are_read_from_the_right() -> None:
    drawn = [(500 - 20 * number, 700, line) for number, line in enumerate(LINES)]
    assert text(japanese(drawn[::-1])) == "\n".join(LINES)


def test_vertical_lines_are_read_tier_by_tier() -> None:
    drawn = [(500, 760, LINES[0]), (500, 380, LINES[2]), (480, 760, LINES[1]), (480, 380, LINES[3])]
    assert text(japanese(drawn)) == "\n".join(LINES)


def test_characters_without_a_width_are_read() -> None:
    drawn = [
        (60 + 13 * column, 760 - 20 * number, character)
        for number, line in enumerate(LINES)
        for column, character in enumerate(line)
    ]
    assert text(japanese(drawn, is_vertical=False, has_width=False)) == "\n".join(LINES)


def test_a_page_of_blanks_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks that are drawn apart from words, and empty paragraphs, have no characters in PDFium either."""
    monkeypatch.setattr(LostText, "page", lambda *about: pytest.fail("read a second time"))
    words = [
        (60 + 40 * at + shift, 760, word) for at, word in enumerate(LATIN) for shift, word in ((0, word), (30, " "))
    ]
    assert text(placed([*words, *((60, 740 - 14 * at, " ") for at in range(9))])).split() == LATIN


def test_a_line_that_is_drawn_twice_is_read_once() -> None:
    drawn = [(60 + shift, 760 - 20 * n, line) for n, line in enumerate(LINES) for shift in (0, 0.3)]
    assert LostText(japanese(drawn, is_vertical=False)).page(0).split() == LINES


@pytest.mark.parametrize("language", PROSE)
@pytest.mark.parametrize("by", [-29, -31, 1, 7, 29])
def test_shifted_letters_are_no_text(language: str, by: int) -> None:
    prose = PROSE[language]
    assert not is_garbled(prose)
    if language != "pl":
        assert is_garbled(shifted(prose, by))


@pytest.mark.parametrize("language", PROSE)
@pytest.mark.parametrize("first", ["!", "A", "a"])
def test_letters_in_the_order_of_their_use_are_no_text(language: str, first: str) -> None:
    """As fonts with only the letters that a page needs number them, blanks too."""
    number = {letter: chr(ord(first) + at) for at, letter in enumerate(dict.fromkeys(PROSE[language]))}
    assert is_garbled("".join(map(number.get, PROSE[language])))


def test_tables_of_characters_are_text() -> None:
    table = "".join(map(chr, range(ord("!"), ord("~"))))
    assert not is_garbled("ABCDEFGHIJKLMNOPQRSTUVWXYZ " + table)
    assert not is_garbled("\n".join(f"{sign} {number}" for number, sign in enumerate(table, 33)))


@pytest.mark.parametrize("language", PROSE)
def test_numbers_of_drawings_whose_blanks_are_lost_are_no_text(language: str) -> None:
    """Stops, commas and digits are control characters then, too few to tell by themselves."""
    prose = PROSE[language].replace("day", "3rd day")
    glyphs = "".join(chr(ord(one) - 29) if " " < one < "\x7f" else one for one in prose if one != " ")
    assert is_garbled(glyphs)
    assert is_garbled(glyphs.replace("\n", "")[:200])
    bullets = "\x0f" + prose.replace(" ", "") + "\x11"
    assert not is_garbled(bullets)
    assert not is_garbled(bullets.upper())
    assert not is_garbled("\x0f" + "1,204.50 AB-12 " * 20)


def test_letters_that_became_signs_are_no_text() -> None:
    codes: dict[str, str] = {}
    assert is_garbled(
        "".join(" " if one == " " else codes.setdefault(one, chr(33 + len(codes))) for one in PROSE["en"])
    )
    assert is_garbled("".join(" " if one == " " else chr(1 + ord(one) % 30) for one in PROSE["en"]))
    assert is_garbled("\ue041\ue042\ue043 " * 20 + "a few letters")


@pytest.mark.parametrize("short", ["\x14\x15", "\ufffd\ufffd 1", "3D\\PHQW\x03LV\x03GXH\x03RQ\x03WKH\x03ILUVW"])
def test_short_texts_of_numbers_of_drawings_are_no_text(short: str) -> None:
    assert is_garbled(short)


@pytest.mark.parametrize(
    "short", ["Lot 12 \uf0b7", "201\x1a", "\x0c3", "Rent\x03due", "\uf0b7 AB-12\n\uf0b7 CD-34 X"]
)
def test_short_texts_with_few_signs_of_their_own_are_text(short: str) -> None:
    assert not is_garbled(short)


def test_letters_of_a_font_with_codes_of_its_own_are_no_text() -> None:
    """Such as Arabic fonts from before Unicode: the letters are Western, with some controls, and no word is one."""
    coded = "".join(map(dict(zip("abcdefghijklmnopqrstuvwxyz", "ozUÞŠWë×ôvKŽ«—u¦sJÐ²½dÊØR\x16", strict=True)).get,
                        "thequickwisefoxjumpsovertwolazydogs" * 12))  # fmt: skip
    words = " ".join(coded[at : at + 5] for at in range(0, len(coded), 5)) + " \x16\x1c" * 6
    assert is_garbled(words)
    assert not is_garbled(PROSE["en"] + words)
    assert not is_garbled(words.replace("\x16", "").replace("\x1c", ""))


@pytest.mark.parametrize("mixed", ["ҘҹЧ࿋ఀҀғ ෨ཌආҊ˺ ݰႺംࢥ༢", "Ԕ ϸЇԵΰ ߙΨ́Ћ ҮĶӻ\u0b96ΘƇ\u0a50ව"])
def test_words_of_many_scripts_are_no_text(mixed: str) -> None:
    assert is_garbled(mixed)
    assert not is_garbled(PROSE["en"] + mixed)
    assert not is_garbled("English Ελληνικά Русский עברית العربية हिन्दी বাংলা தமிழ் తెలుగు ไทย ქართული αβ")


def test_letters_whose_bytes_are_exchanged_are_no_text() -> None:
    swapped = "Black 100 %".encode("utf-16-be").decode("utf-16-le")
    assert is_garbled(swapped)
    assert not is_garbled("一 Black 中 100 %")


def test_the_second_engine_is_believed_if_it_reads_what_the_first_did() -> None:
    """It knows no letters of the font Symbol."""
    signs = b"BT /S 11 Tf 60 780 Td " + b"(abgdez) Tj 0 -14 Td " * 4 + b"ET "
    lost = [(500 - 20 * number, 700, line[:4]) for number, line in enumerate(LINES)]
    data = japanese(lost).replace(b"BT /F 12", signs + b"BT /F 12").replace(
        b"<</F 5 0 R", b"<</S<</Type/Font/Subtype/Type1/BaseFont/Symbol>>/F 5 0 R"
    )  # fmt: skip
    assert text(data).split("\n")[:4] == ["αβγδεζ"] * 4


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(
        st.from_regex(r"\A(?:[A-Z]{2,4}-?\d{1,6}|\d{1,3},\d{3}\.\d\d|\d{2}/\d{2}/\d{4}|[A-Z][a-z]{2,9})\Z"),
        max_size=80,
    )
)
def test_lists_of_codes_names_and_figures_are_text(cells: list[str]) -> None:
    assert not is_garbled(" ".join(cells))


@pytest.mark.parametrize(
    "plain",
    ["一二三四五六七八九十" * 20, "Это договор аренды. " * 10, "x = {'a': [1, 2], 'b': f(x, y)}\n" * 10,
     "Total ........ 12.00\nTax .......... 2.40\n" * 10,
        "Contents . . . . . . . . . . . . . . . . . . . . 9\n" * 10, "🙂👍 " * 40, ""],
)  # fmt: skip
def test_other_scripts_code_and_leaders_are_text(plain: str) -> None:
    assert not is_garbled(plain)


def test_letters_that_only_their_drawings_names_tell_are_read() -> None:
    lines = [PROSE["en"].replace(".", "").replace(",", "")[at : at + 80].strip() for at in range(0, 300, 80)]
    assert text(drawn(lines)).split() == " ".join(lines).split()


def test_an_unusable_text_layer_is_refused_and_goes_as_a_picture() -> None:
    data = latin([shifted(PROSE["en"], -29)[at : at + 80] for at in range(0, 300, 80)])
    with pytest.raises(ExtractionError) as refused:
        text(data)
    assert refused.value.code is DocumentProblem.UNUSABLE_TEXT
    found, fields, pictures = page_images.extract(data, "pdf", AUTO, 10_000)
    assert (found, fields["sent_as"], len(pictures)) == ("", "page 1 as image", 1)
    assert page_images.extract(data, "pdf", AUTO._replace(how="both"), 10_000)[0] == ""
    kept = latin([PROSE["en"][at : at + 80] for at in range(0, 300, 80)])
    assert page_images.extract(kept, "pdf", AUTO, 10_000)[1]["sent_as"] == "text"
