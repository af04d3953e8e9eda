"""Bytes to text: what was written comes back, and what cannot be told for certain is said to be so."""

from __future__ import annotations

import codecs
import random
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.core.errors import InputError
from orchestrator.documents import Document, DocumentProblem, UnreadableDocument
from orchestrator.documents.encoding import clean, decode, encoding_of, fits
from orchestrator.documents.encoding_guess import SAMPLE_BYTES, guess
from orchestrator.documents.types import ExtractionError
from orchestrator.settings.job_spec import DocumentSource
from tests.support.documents import read

FRENCH = "Le présent contrat est conclu entre la société Müller et le café de Besançon, où l'été sera déterminé.\n"
GERMAN = "Der Vertrag über Geräte ist gültig für die Öffentlichkeit; Gebühren sind gemäß Absatz drei fällig.\n"
ENGLISH = "The price is £40 — the “final” offer’s terms hold, in plain words with few special characters.\n"
RUSSIAN = "Настоящий договор заключен между сторонами на следующих условиях, действующих с первого января.\n"
POLISH = "Niniejsza umowa została zawarta między stronami, które zgadzają się na warunki: źródło, żółty, ćwierć.\n"
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy, a smluvní strany se dohodly na těchto podmínkách.\n"
JAPANESE = "本契約は、株式会社東京と株式会社大阪との間で締結され、以下の条件に従うものとする。\n"
GREEK = "Η παρούσα σύμβαση συνάπτεται μεταξύ των μερών με τους ακόλουθους όρους.\n"

# A few sentences of a language, and the encodings in which its old files are found.
LANGUAGES = {
    "pl": (
        "cp1250 iso8859-2 cp852",
        "Niniejsza umowa została zawarta pomiędzy stronami które zgadzają się na następujące "
        "warunki źródło żółty ćwierć oraz będzie obowiązywać przez okres dwóch lat od dnia "
        "podpisania każda ze stron może ją wypowiedzieć na piśmie z zachowaniem trzymiesięcznego "
        "okresu",
    ),
    "cs": (
        "cp1250 iso8859-2",
        "Příliš žluťoučký kůň úpěl ďábelské ódy smluvní strany se dohodly na těchto podmínkách "
        "které nabývají účinnosti dnem podpisu a platí po dobu dvou let každá strana může smlouvu "
        "písemně vypovědět",
    ),
    "hu": (
        "cp1250 iso8859-2 cp852",
        "Árvíztűrő tükörfúrógép a szerződő felek megállapodnak az alábbi feltételekben a "
        "szerződés két évre szól és bármelyik fél írásban felmondhatja három hónapos határidővel "
        "a bérleti díj minden hónap első napján esedékes",
    ),
    "ro": (
        "cp1250 iso8859-16 iso8859-2",
        "Părţile contractante convin asupra următoarelor condiţii în mod liber şi înţeles "
        "contractul intră în vigoare la data semnării şi este valabil doi ani fiecare parte îl "
        "poate denunţa",
    ),
    "tr": (
        "cp1254 iso8859-9",
        "Bağımsız denetçi görüşü şirketin yıllık raporu ve değişiklikler sözleşme iki yıl süreyle "
        "geçerlidir ve taraflardan her biri yazılı olarak feshedebilir kira bedeli her ayın ilk "
        "günü ödenir",
    ),
    "hr": (
        "cp1250 iso8859-2",
        "Ugovorne stranke suglasile su se o sljedećim uvjetima koji stupaju na snagu danom "
        "potpisivanja svaka stranka može raskinuti ugovor pisanim putem uz otkazni rok od tri "
        "mjeseca žalba će biti riješena",
    ),
    "lt": (
        "cp1257 iso8859-13",
        "Šalys susitarė dėl šių sąlygų sutartis įsigalioja pasirašymo dieną ir galioja dvejus "
        "metus kiekviena šalis gali ją nutraukti raštu įspėjusi prieš tris mėnesius",
    ),
    "et": (
        "cp1257 iso8859-15",
        "Pooled leppisid kokku järgmistes tingimustes leping jõustub allakirjutamise päeval ja "
        "kehtib kaks aastat kumbki pool võib lepingu kirjalikult üles öelda kolmekuulise "
        "etteteatamisega õigus",
    ),
    "fr": (
        "cp1252 mac_roman cp850",
        "Le présent contrat est conclu entre la société Müller et le café de Besançon où les "
        "parties conviennent que l’été sera déterminé à l’amiable sous réserve des conditions "
        "générales reçues par écrit",
    ),
    "de": (
        "cp1252 mac_roman cp850 cp437",
        "Der Vertrag über die Lieferung von Geräten ist gültig für die Öffentlichkeit Gebühren "
        "sind fällig am Monatsende gemäß Absatz drei und können schriftlich gekündigt werden",
    ),
    "es": (
        "cp1252 mac_roman cp850",
        "El presente contrato se celebra entre las partes según las condiciones siguientes la "
        "duración será de dos años y cada parte podrá rescindirlo por escrito el señor Núñez "
        "pagará también la fianza",
    ),
    "pt": (
        "cp1252 cp850 mac_roman",
        "As partes acordam nas seguintes condições o contrato não poderá ser rescindido sem aviso "
        "prévio de três meses a prestação é paga no início de cada mês à ordem do senhorio João",
    ),
    "sv": (
        "cp1252 mac_roman cp850",
        "Parterna är överens om följande villkor avtalet gäller från och med undertecknandet och "
        "löper två år hyran betalas den första dagen i varje månad på hyresvärdens konto",
    ),
    "da": (
        "cp1252 cp865",
        "Parterne er enige om følgende vilkår aftalen træder i kraft på datoen for underskrift og "
        "gælder i to år lejen betales den første dag i hver måned på udlejerens konto",
    ),
    "it": (
        "cp1252 mac_roman",
        "Le parti convengono quanto segue il contratto avrà durata di due anni e ciascuna parte "
        "potrà recedere per iscritto perché così è stabilito il canone sarà più alto dell’anno",
    ),
    "is": (
        "cp1252",
        "Aðilar eru sammála um eftirfarandi skilmála samningurinn tekur gildi við undirritun og "
        "gildir í tvö ár þá er leigan greidd fyrsta dag hvers mánaðar",
    ),
    "ru": (
        "cp1251 koi8-r cp866 iso8859-5 mac_cyrillic",
        "Настоящий договор заключен между сторонами на следующих условиях и вступает в силу с "
        "момента подписания каждая из сторон вправе расторгнуть его письменно за три месяца",
    ),
    "uk": (
        "cp1251 koi8-u",
        "Цей договір укладено між сторонами на таких умовах і він набирає чинності з моменту "
        "підписання кожна зі сторін може розірвати його письмово за три місяці",
    ),
    "el": (
        "cp1253 iso8859-7",
        "Η παρούσα σύμβαση συνάπτεται μεταξύ των μερών με τους ακόλουθους όρους και ισχύει για "
        "δύο έτη από την ημέρα υπογραφής",
    ),
    "he": (
        "cp1255 iso8859-8",
        "הסכם זה נערך בין הצדדים בתנאים הבאים ויהיה בתוקף למשך שנתיים מיום חתימתו",
    ),
    "ar": (
        "cp1256 iso8859-6",
        "أبرم هذا العقد بين الطرفين وفق الشروط التالية ويسري لمدة سنتين من تاريخ التوقيع",
    ),
    "ja": (
        "cp932 euc_jp",
        "本契約は 株式会社東京と 株式会社大阪との間で 締結され "
        "以下の条件に 従うものとする 期間は二年とし 各当事者は 書面により 解約できる",
    ),
    "zh": (
        "gb18030 big5",
        "本合同 由双方 根据以下 条件 订立 有效期 为两年 自签字 之日 起生效 任何一方 可以 书面 解除",
    ),
    "ko": (
        "cp949",
        "본 계약은 다음 조건에 따라 당사자 간에 체결되며 서명일로부터 "
        "이 년간 유효하다 각 당사자는 서면으로 해지할 수 있다",
    ),
}

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def normal(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\0", "").replace("\r\n", "\n").replace("\r", "\n")


def read_or_told(data: bytes) -> str | ExtractionError:
    try:
        return decode(data)
    except ExtractionError as error:
        return error


@example("\0")
@given(ANY_TEXT)
def test_utf8_comes_back(text: str) -> None:
    wide = text.count("\0") * 5 > len(text.encode())  # read as UTF-16 without a mark, perhaps
    assert wide or decode(text.encode()) == normal(text)
    assert decode(codecs.BOM_UTF8 + text.encode()) == normal("\ufeff" + text)


@given(ANY_TEXT, st.sampled_from(["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]))
def test_wide_text_with_a_mark_comes_back(text: str, name: str) -> None:
    # FF FE 00 00 is the mark of UTF-32 as well as UTF-16 that begins with NUL; the standard says UTF-32.
    text = text.lstrip("\0")
    assert decode(("\ufeff" + text).encode(name)) == normal("\ufeff" + text)


@given(st.text(st.characters(max_codepoint=255)))
def test_a_declared_encoding_is_taken_at_its_word(text: str) -> None:
    data = text.encode("latin-1")
    assert decode(data, "latin-1") == normal(data.decode() if fits(data, "utf-8") else text)


ODD = (
    ("cp1252", GERMAN + "Die MöbelWelt GmbH, „Käufer“ genannt, liefert.\n"),
    ("cp1252", "El contrato es de dos años y no están. Artículo 3º de la ley, en la página 5ª del libro.\n"),
    ("cp1251", RUSSIAN + "Стороны именуются «Продавец» и «Покупатель» от 2006г. и не более.\n"),
    ("cp932", JAPANESE * 3 + "①株式会社～東京－大阪\n"),
    ("cp1252", "Then he said, “The name is Bond.” It may be to “me”\nor to us – every day — as the others.\n"),
)


ROMANIAN = (
    "Rata şomajului din România este de 12‰ în judeţ şi de 9‰ pe an, pentru că firmele nu au cerut şi alte locuri.\n"
    + 2
    * "Aceasta este o veste bună pentru cei care caută în oraş sau la ţară, pe care o dau şi ziarele din capitală.\n"
)
NEWS = ("חדשות היום", "ראש הממשלה נפגש", "מחירי הדירות עלו", "משחק הכדורגל נדחה")
HEBREW_FEED = "".join(
    f"<item><link>http://news.example.org/read.asp?id={number}</link>{'<a href=x>link</a>' * 10}{title}</item>\n"
    for number, title in enumerate(NEWS * 3)
)


@pytest.mark.parametrize(
    ("name", "text"), [("cp1250", ROMANIAN), ("cp1255", HEBREW_FEED)], ids=["a sign or a control", "markup"]
)
def test_controls_and_markup_do_not_hide_an_encoding(name: str, text: str) -> None:
    assert decode(text.encode(name)) == text


def test_an_encoding_that_python_does_not_know_is_not_read_as_another() -> None:
    """EUC-TW: 臺灣是一個美麗的島，我們在這裡和家人一起生活…"""
    data = bytes.fromhex(
        "ead7fda4d1d2c4a1d4b6d3a1f9decefbd5b5a1a2cabcd4afc7e3ddd5e6d3cccfd5a5c4a9c4a1d8c4c6edd2a4a1a2c4a9d4afeba9ddd5"
        "d1d2deb2c7efcefbc7e2c5c9a1a2c4e2e7b4c4bec8b4c4e2c5b7d9c2f7eed3d1e6d8caeea1a40a"
    )
    for times in (1, 4, 40):
        assert isinstance(read_or_told(data * times), ExtractionError)


def test_a_text_in_euc_tw_without_frequent_signs_is_not_read_as_another() -> None:
    """News of five lines: 會議將於下週三上午十點於總部舉行…"""
    data = bytes.fromhex(
        "e4c4fabed9f2cdf5c4b6e2cec4b5c4b8c5a9c4b2f6b5cdf5f4eadde5f5a8c8e7a1a2eef9c7d6dde5cfdce4eddeace6f1d5e8cbe4"
        "e4edd5ebc5f8d5b9a1a4c6dbc4fcc6b3dca8d0c2cff1ccd6dfe6e2e6c8dcf5d5e2b9c5cad8c4c4a1c8a1a1a2c4a9d2b3e4b4f8ae"
        "d8e6c6c0a1a2eac4d4baeef9d2a5c7d6c7e2e5eeefdad9b8a1a4ebedd3f8fac0dedee0f5c6cca1a2f0d0d5f7d8f4eefba1a2c6e1"
        "dcb8f3dcf3c3deace3a3c5d5ead8d8f1f6fda1a2f5e2c9add0a9cdbbd6c0f9b1a1a4ead7c6a1c6cbcfdbf2d9f5a8e1b8ceaac4fc"
        "c6cca1a2d9dad1c9faddd4b7f2d9c4a9f4bddeb9a1a2e2e4dcc1e7b4e1a3c6cdcccfe2fbc9b3a1a4d7fde6b4dae8c8add1a5e2fc"
        "e5eee1ead4c7a1a3dbc4cfe5a1a3dfc3daeda1a3d8f1f4b5e1abcae3fcf5a1a2c5c9d7e4cff1c7f4a1a4"
    )
    assert isinstance(read_or_told(data), ExtractionError)


@pytest.mark.parametrize(("name", "text"), ODD)
def test_one_odd_word_is_no_reason_to_refuse_a_text(name: str, text: str) -> None:
    assert decode(text.encode(name)) == text


MISTAKEN = (
    (
        "cp1251",
        "ия о согласии украинской стороны на создание международной комиссии экспертов, однако вечером Газпром",
    ),
    ("iso8859-7", "ΝΑΥΤΕΜΠΟΡΙΚΗ - Π. ΑΘΑΝΑΣΙΑΔΗΣ &amp; ΣΙΑ Α.Ε."),
    ("euc_jp", "キムタク！…の弟さんのブランド"),
    ("euc_jp", "パーやしっ！ やし、やし、ガニぃ。お、ガニぃ。おぉ、ガニぃ。やすぃガニぃ。"),
    ("cp1253", "ΝΑΥΤΕΜΠΟΡΙΚΗ) Μεταγραφές - επεκτάσεις http://www.example.org/news/rssredir.asp?id=1137193"),
    ("koi8-r", "ать... Я знаю мир -- он стар и полон дряни,&lt;br /&gt;Я з"),
    ("mac_cyrillic", 'икулы в лагере "Планета мечты. Весна."</title>\n<description>'),
    (
        "cp932",
        "The car for most of the occasions is on view.\n■http://image.example.org/golf.mov ■Car to be or not\n",
    ),
    ("cp1250", "ja odgovorijo, so v svojem delu zagotovo našli pomen, so bolj polni energije in delo pa razumejo"),
)


@pytest.mark.parametrize(("name", "text"), MISTAKEN)
def test_short_pieces_are_read_rightly_or_refused(name: str, text: str) -> None:
    assert isinstance(answer := read_or_told(text.encode(name)), ExtractionError) or answer == text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (JAPANESE, "iso2022_jp"),
        ("계약서", "iso2022_kr"),
        ("ﾃｽﾄ", "iso2022_jp_ext"),
        ("plain \U0001f600 text", "utf-32-be"),
        ("plain \U0001f600 text", "utf-32-le"),
    ],
)
def test_encodings_that_tell_themselves(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode(name))
    [document] = read(DocumentSource(path="a.txt"), tmp_path)
    assert isinstance(document, Document)
    assert document.text == text
    assert decode(b"\x1b[31mred\x1b(B") == "\x1b[31mred\x1b(B"  # what a terminal is told is no shift


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        ("Größe".encode(), "cp1252", "Größe"),
        ("Größe".encode("cp1252"), "cp1252", "Größe"),
        (codecs.BOM_UTF16_LE + "Größe".encode("utf-16-le"), "cp1252", "Größe"),
        ("Größe".encode(), ["cp932", "cp1252"], "Größe"),
        ("大阪".encode("cp932"), ["cp932", "cp1252"], "大阪"),
        ("Größe".encode("cp1252"), ["cp932", "cp1252"], "Größe"),
        ("ab".encode("utf-16-le"), "utf-16-le", "ab"),
        (b"a+AOQ-b", "utf-7", "aäb"),
        (b"a+AOQ-b", "cp1252", "a+AOQ-b"),
        ("Größe".encode("cp1252"), "auto", "Größe"),
        ("Größe".encode("cp1252"), ["cp932", "auto"], "Größe"),
        ((FRENCH * 3).encode("cp850"), "auto", FRENCH * 3),
    ],
)
def test_a_set_encoding_is_for_what_is_not_utf8(tmp_path: Path, data: bytes, encoding: object, text: str) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    source = DocumentSource.model_validate({"path": "a.txt", "encoding": encoding})
    [document] = read(source, tmp_path)
    assert isinstance(document, Document), document
    assert document.text == text
    chose = "auto" in str(encoding) and not fits(data, "utf-8")
    assert document.fields.get("sent_as") == (
        f"text, read as {encoding_of(data, source.encoding)}" if chose else None
    )
    (tmp_path / "t.csv").write_bytes(data if encoding == "utf-7" or b"\0" in data else b"text\n" + data)
    if b"\0" not in data and encoding != "utf-7" and "," not in text:
        table = source.model_copy(update={"path": "t.csv", "text_column": "text"})
        assert next(one.text for one in read(table, tmp_path) if isinstance(one, Document)) == text.split("\n")[0]


def test_a_table_of_two_encodings_goes_on_in_the_one_that_is_set(tmp_path: Path) -> None:
    rows = b"text\n" + "Größe\n".encode() + "Länge\n".encode("cp1252")
    (tmp_path / "t.csv").write_bytes(rows)
    source = DocumentSource(path="t.csv", encoding="cp1252", text_column="text")
    assert [one.text for one in read(source, tmp_path) if isinstance(one, Document)] != []


@given(st.binary(max_size=400))
def test_no_bytes_do_anything_but_decode_or_be_told(data: bytes) -> None:
    answer = read_or_told(data)
    assert answer.encode("utf-8") is not None if isinstance(answer, str) else answer.code is DocumentProblem.ENCODING


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 30, 3000])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        (FRENCH, "cp1252"),
        (GERMAN, "cp1252"),
        (ENGLISH, "cp1252"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        (JAPANESE, "cp932"),
        (JAPANESE, "euc_jp"),
        (GREEK, "cp1253"),
        (ENGLISH, "utf-16-le"),
        (FRENCH, "utf-16-be"),
    ],
)
def test_what_has_one_reading_is_read(text: str, name: str, times: int) -> None:
    assert decode((text * times).encode(name)) == text * times


@pytest.mark.long
@pytest.mark.thinned(12)
@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_is_ever_garbled_in_silence(language: str) -> None:
    """Any words of the language in any order: the text comes back, or it is said that it cannot be told."""
    names, sentence = LANGUAGES[language]
    words, draw = sentence.split(), random.Random(language)
    for name in names.split():
        right = 0
        for count in (1, 2, 3, 5, 8, 15, 40, 200):
            for _ in range(10):
                text = " ".join(draw.choice(words) for _ in range(count))
                answer = read_or_told(text.encode(name, "ignore"))
                if isinstance(answer, ExtractionError):
                    assert answer.code is DocumentProblem.ENCODING
                    assert "set `encoding`" in answer.message or "damaged" in answer.message
                else:
                    assert answer == text.encode(name, "ignore").decode(name)
                    right += 1
        assert right > 10 or language in ("lt", "et", "is"), "languages without small words on the list are all told"


@pytest.mark.parametrize("text", ["Müller AG, Straße 5, café", "40 €", "Łódź; Kraków; Gdańsk", "Россия"])
def test_a_few_words_are_left_to_the_user(text: str) -> None:
    for name in ("cp1252", "cp1250", "cp1251", "cp850"):
        data = text.encode(name, "ignore")
        if not data.isascii():
            assert isinstance(read_or_told(data), ExtractionError)
            assert decode(data, name) == data.decode(name)


def test_damaged_utf8_is_not_taken_for_something_else() -> None:
    data = (FRENCH + GERMAN).encode()
    with pytest.raises(ExtractionError, match="damaged bytes"):
        decode(data[:40] + b"\xff" + data[40:])
    with pytest.raises(ExtractionError, match="damaged bytes"):
        decode("déjà vu, café".encode()[:-1])


def test_a_late_accent_in_a_large_file_is_found() -> None:
    plain = "Only ASCII for a long while, line after line.\n" * 5000
    assert len(plain) > 3 * SAMPLE_BYTES
    assert decode((plain + FRENCH * 20).encode("cp1252")) == plain + FRENCH * 20
    one_line = plain.replace("\n", " ") + FRENCH * 20
    assert decode(one_line.encode("cp1252")) == one_line


def test_the_files_own_declaration_counts_when_it_fits() -> None:
    assert decode(POLISH.encode("iso8859-2"), declared="iso8859-2") == POLISH
    assert decode(POLISH.encode(), declared="iso8859-2") == POLISH
    assert decode(FRENCH.encode("cp1252"), declared="no-such-thing") == FRENCH


def test_cleaning_is_what_it_says() -> None:
    assert clean("\ufeffa\r\nb\rc\n\0d\ufeff") == "a\nb\nc\nd\ufeff"


@pytest.mark.parametrize("name", ["no-such", "hex", "rot13", "a\0b", ""])
def test_an_unknown_encoding_is_told_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError) as told:
        read(DocumentSource(path="a.txt", encoding=name), tmp_path)
    assert told.value.field == "encoding"


@pytest.mark.parametrize(
    ("data", "encoding", "code"),
    [
        (b"", None, DocumentProblem.EMPTY),
        (b" \r\n\t\x00\n", None, DocumentProblem.EMPTY),
        (codecs.BOM_UTF8, None, DocumentProblem.EMPTY),
        (codecs.BOM_UTF16_LE, None, DocumentProblem.EMPTY),
        (b"ab\xff", "utf-8", DocumentProblem.ENCODING),
        (b"\x81\x8d", "cp1252", DocumentProblem.ENCODING),
        (codecs.BOM_UTF16_LE + b"a", None, DocumentProblem.ENCODING),
        (b"+2AA-", "utf-7", DocumentProblem.ENCODING),
        (b"x" * 101, None, DocumentProblem.TOO_LARGE),
        (b"x" * 100, None, None),
    ],
)
def test_text_files_and_their_problems(
    tmp_path: Path, data: bytes, encoding: str | None, code: DocumentProblem | None
) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    (document,) = read(DocumentSource(path="a.txt", encoding=encoding, max_bytes=100), tmp_path)
    assert document.key == "a.txt"
    assert document.size == len(data)
    if code is None:
        assert isinstance(document, Document)
    else:
        assert isinstance(document, UnreadableDocument)
        assert document.code is code
        assert document.message.endswith(".")


def test_a_refusal_names_each_encoding_once() -> None:
    text = "Die schöne Frau lächelte für 15,50 €. L'été était très chaud, à 3 €. La señora comió ñoquis."
    with pytest.raises(ExtractionError) as refused:
        guess(text.encode("cp1252"), 6)
    named = refused.value.message.partition("it may be ")[2].partition(";")[0].split(", ")
    assert len({codecs.lookup(name).name for name in named}) == len(named) > 1
