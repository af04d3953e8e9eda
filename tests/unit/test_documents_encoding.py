"""Bytes to text: what was written comes back, and what cannot be told for certain is said to be so."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.documents import Document, DocumentProblem, UnreadableDocument, read
from orchestrator.documents.encoding import SAMPLE_BYTES, clean, decode
from orchestrator.documents.types import ExtractionError
from orchestrator.errors import InputError
from orchestrator.jobspec import DocumentSource

FRENCH = "Le présent contrat est conclu entre la société Müller et le café de Besançon, où l'été sera déterminé.\n"
GERMAN = "Der Vertrag über Geräte ist gültig für die Öffentlichkeit; Gebühren sind gemäß Absatz drei fällig.\n"
ENGLISH = "The price is £40 — the “final” offer’s terms hold, in plain words with few special characters.\n"
RUSSIAN = "Настоящий договор заключен между сторонами на следующих условиях, действующих с первого января.\n"
POLISH = "Niniejsza umowa została zawarta między stronami, które zgadzają się na warunki: źródło, żółty, ćwierć.\n"
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy, a smluvní strany se dohodly na těchto podmínkách.\n"
JAPANESE = "本契約は、株式会社東京と株式会社大阪との間で締結され、以下の条件に従うものとする。\n"
GREEK = "Η παρούσα σύμβαση συνάπτεται μεταξύ των μερών με τους ακόλουθους όρους.\n"

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def normal(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\0", "").replace("\r\n", "\n").replace("\r", "\n")


def read_or_told(data: bytes) -> str | ExtractionError:
    try:
        return decode(data)
    except ExtractionError as error:
        return error


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
    assert decode(text.encode("latin-1"), "latin-1") == normal(text)


@given(st.binary(max_size=400))
def test_no_bytes_do_anything_but_decode_or_be_told(data: bytes) -> None:
    answer = read_or_told(data)
    assert answer.encode("utf-8") is not None if isinstance(answer, str) else answer.code is DocumentProblem.ENCODING


@pytest.mark.parametrize("times", [1, 30, 3000])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        (FRENCH, "cp1252"),
        (GERMAN, "cp1252"),
        (ENGLISH, "cp1252"),
        ("Müller AG, Straße 5, café.\n", "cp1252"),
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


@pytest.mark.parametrize("times", [1, 30])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((POLISH, n) for n in ("cp1250", "iso8859-2", "cp852")),
        *((CZECH, n) for n in ("cp1250", "iso8859-2", "mac_latin2")),
        *((FRENCH, n) for n in ("mac_roman", "cp850", "cp437")),
        *((GERMAN, n) for n in ("mac_roman", "cp850")),
        (RUSSIAN, "cp866"),
        (RUSSIAN, "mac_cyrillic"),
        (JAPANESE, "cp932"),
        ("Bağımsız denetçi görüşü, şirketin yıllık raporu ve ılımlı değişiklikler.\n", "cp1254"),
        ("Árvíztűrő tükörfúrógép: a szerződő felek megállapodnak az alábbi feltételekben.\n", "cp1250"),
        ("Părţile contractante convin asupra următoarelor condiţii, în mod liber şi înţeles.\n", "cp1250"),
    ],
)
def test_nothing_is_ever_garbled_in_silence(text: str, name: str, times: int) -> None:
    data = (text * times).encode(name)
    answer = read_or_told(data)
    if isinstance(answer, ExtractionError):
        assert answer.code is DocumentProblem.ENCODING
        assert "set `encoding`" in answer.message
    else:
        assert answer == text * times
    assert decode(data, name) == text * times


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
