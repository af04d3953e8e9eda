"""Quotes of answers, found in the text that was sent: what may differ, and what may not."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.core.quote_marks import Quote, has_marks, marked_quotes, named_quotes, unmarked
from orchestrator.documents.types import Document
from orchestrator.policy import grounding
from orchestrator.policy.grounding import QuoteStatus, SentDocument, SentText
from orchestrator.policy.quote_search import errors_allowed, find_quotes
from orchestrator.policy.requests import Builder
from orchestrator.policy.sent_text import sent_document
from orchestrator.reports.quote_words import total_words
from orchestrator.settings.job_spec import JobSpec
from orchestrator.settings.task_spec import Task
from orchestrator.web.marked_text import MarkedText, abridged, marked_texts
from tests.support.examples import ample

WORDS = st.text("abcdefghijklmnopqrstuvwxyzäöüé", min_size=1, max_size=9)
PLAIN_WORDS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=9)
"""Of letters that count as one character each: a letter and its accent are two."""
SENTENCES = st.lists(WORDS, min_size=6, max_size=40)


def places(text: str, quote: str, *, by_ocr: bool = False) -> list[str]:
    """What stands at each place of a quote."""
    found = find_quotes(text, [quote], by_ocr=by_ocr)
    return [text[place.start : place.end] for place in found.places[quote]]


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("The  fee\n is\tdue at once", "fee is due at once"),
        ("a con-\ntract of this kind", "a contract of this kind"),
        ("a con\u00adtract of this kind", "a contract of this kind"),
        ("the well-\nknown author", "the well-known author"),
        ("he said “no more” – to ‘them’", "he said \"no more\" - to 'them'"),
        ("«Bitte» und „danke“ sagen", '"Bitte" und "danke" sagen'),
        ("the ﬁnal oﬃce ﬂoor", "the final office floor"),
        ("cafe\u0301 and more of it", "café and more of it"),
        ("and so on… to the end", "and so on... to the end"),
        ("from 10–20 units a day", "from 10-20 units a day"),
        ("from 10–\n20 units a day", "from 10-20 units a day"),
        ("一二三四五六七八九十一二三", "二三四五六七八九十一二三"),
        ("ｗｉｄｅ letters of this kind", "wide letters of this kind"),
        ("page one ends\n\x0cin the middle of it", "page one ends in the middle of it"),
        ("a fee of 1 200 EUR is due", "a fee of 1\u00a0200 EUR is due"),
        ("Leaflet | 1,500 | 0.42 |  | 630.00", "Leaflet 1,500 0.42 630.00"),
    ],
)
def test_what_may_differ(text: str, quote: str) -> None:
    (found,) = places(text, quote)
    assert text.endswith(found) or text.startswith(found) or found == text[4:-9]
    assert places(quote, found) == [quote]


HANGUL = "임대료를 매월 말일에 지급한다"


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("שכר הדירה \u2067ישולם\u2069 בכל חודש", "שכר הדירה ישולם בכל חודש"),
        ("\u202bשכר הדירה ישולם בכל חודש\u202c", "שכר הדירה ישולם בכל חודש"),
        ("דו״ח שנתי של ג׳ורג׳ הגדול", "דו\"ח שנתי של ג'ורג' הגדול"),
        ("الإيجار\u061c الشهري هو ألف دينار", "الإيجار الشهري هو ألف دينار"),
        ("we ❤\ufe0f this small product", "we ❤ this small product"),
        ("他说「今天的会议取消了」然后离开", "他说“今天的会议取消了”然后离开"),
        ("合計１，２００円となります", "合計1,200円となります"),
        ("ﾌﾟﾛｸﾞﾗﾑを終了します今日", "プログラムを終了します今日"),
        (unicodedata.normalize("NFD", HANGUL), HANGUL),
        ("de ĳskoude straten van de stad", "de ijskoude straten van de stad"),
        ("a dose of 20 µg per day", "a dose of 20 μg per day"),
        ("a sum of 1\u202f200\u202f000 EUR", "a sum of 1 200\u00a0000 EUR"),
        ("10^(−3) mol of the substance", "10^(-3) mol of the substance"),
    ],
)
def test_scripts_of_the_world_are_compared_as_people_read_them(text: str, quote: str) -> None:
    assert places(f"before, {text} and behind", quote) in ([text], [text.strip("\u202b\u202c")])
    assert places(f"before, {quote} and behind", text) == [quote]


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("임대료를 매월 말일에 지급각 하", "임대료를 매월 말일에 지급가"),
        ("किराया हर महीने दिया जाएगा कि", "किराया हर महीने दिया जाएगा क"),
        *((f"the sum is at least 12{rest} of them", "the sum is at least 12") for rest in (
            "½", "³", "⁻³", "^3", "^(−3)", "e5", "E-5", "⁄25", "٫5", "٬500", "．5", "，500", "_500", "\u200e5",
            "\u2009500", "\u2007500", "\u200a500",
        )),
        *(
            (f"a sum of {first}5½ years, no more", "5½ years, no more")
            for first in ("1", "1.", "~-", "≈−", "1e", "x^(")
        ),
        ("a sum of 1½ years, no more", "½ years, no more"),
        ("a sum of 10³ years, no more", "³ years, no more"),
        ("the sum of 1,200³ EUR is due", "the sum of 1,2003 EUR is due"),
        ("the H₂O level of the river", "the H2O level of the river"),
    ],
)  # fmt: skip
def test_numbers_and_syllables_are_never_cut(text: str, quote: str) -> None:
    assert places(text, quote) == []
    assert places(text, text) == [text]


def test_ocr_may_have_no_raised_digit_and_no_fraction_wrong() -> None:
    for one, other in (("³", "²"), ("½", "¼"), ("1,200³", "1,200")):
        assert (
            places(f"a room of {one} measures in the north", f"a room of {other} measures in the north", by_ocr=True)
            == []
        )


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("a fee of 1 200 EUR is due", "a fee of 1200 EUR is due"),
        ("a fee of 1,200 EUR is due", "a fee of 1.200 EUR is due"),
        ("a fee of 1,200 EUR is due", "a fee of 1, 200 EUR is due"),
        ("a fee of 1,200 EUR is due", "200 EUR is due"),
        ("a fee of 1 200 EUR is due", "200 EUR is due"),
        ("a fee of 1\u202f200 EUR is due", "200 EUR is due"),
        ("the total comes to 1200", "the total comes to 120"),
        ("the total comes to 1.5 today", "the total comes to 1"),
        ("the total comes to 1 200 today", "the total comes to 1"),
        ("growth of -5 % in a year", "5 % in a year"),
        ("on 12/2023 it was paid", "2023 it was paid"),
        ("rows 10 20 30 of the table", "rows 1020 30 of the table"),
        ("a range of 10-\n20 units a day", "a range of 1020 units a day"),
        ("a range of 10 -\n20 units a day", "a range of 10-20 units a day"),
        ("Leaflet | 1 | 500 | 630.00", "Leaflet 1500 630.00"),
        ("1,200³ of all of them", "1,2003 of all of them"),
        ("the fee is due at once", "the fee is not due at once"),
        ("the cafe\u0301 is open", "open is the cafe"),
        ("this is the cafe\u0301", "this is the cafe"),
        ("The Fee Is Due At Once", "the fee is due at once"),
    ],
)
def test_what_must_not(text: str, quote: str) -> None:
    assert places(text, quote) == []
    has_number = any(character.isdecimal() for character in quote)
    assert not has_number or places(text, quote, by_ocr=True) == []


@pytest.mark.parametrize(
    ("text", "quote"),
    [("items 1, 200 EUR each day", "200 EUR each day"), ("in 2023 500 workers came", "500 workers came"),
     ("from page 7 it goes on", "7 it goes on then"[:12])],
)  # fmt: skip
def test_a_number_that_is_whole_may_begin_a_quote(text: str, quote: str) -> None:
    assert places(text, quote) == [quote]


@given(SENTENCES, st.data())
def test_every_piece_of_a_text_is_found_however_it_is_set(words: list[str], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(words) - 3))
    last = data.draw(st.integers(first + 3, len(words)))
    gaps = st.sampled_from([" ", "  ", "\n", "\t", "\u00a0", "\n\n", " \x0c"])
    text = "".join(word + data.draw(gaps) for word in words)
    quote = " ".join(words[first:last])
    found = find_quotes(text, [quote]).places[quote]
    assert any(text[at.start : at.end].split() == words[first:last] for at in found)


ODD = st.text("abé-–— \n\u00ad\u200b\x0c12,.'’“ﬁ…\u0301", max_size=60)


@given(ODD, ODD, ODD)
def test_any_piece_of_a_text_stands_in_it(before: str, inside: str, after: str) -> None:
    quote = f"x{inside} long enough x"
    text = f"{before}{quote}x{after}"
    found = find_quotes(text, [quote])
    assert (len(before), len(before) + len(quote)) in [(at.start, at.end) for at in found.places[quote]]


@given(st.lists(st.sampled_from(["12", "7", "345", "1,200", "9.5", "-3"]), min_size=3, max_size=12), st.data())
def test_numbers_are_found_as_they_are_or_not_at_all(numbers: list[str], data: st.DataObject) -> None:
    text = " and ".join(numbers)
    at = data.draw(st.integers(0, len(numbers) - 1))
    changed = data.draw(st.sampled_from(["13", "1,201", "8", "1200", "95", "120"]))
    quote = " and ".join([*numbers[:at], changed, *numbers[at + 1 :]])
    assume(changed not in numbers)
    assert places(text, quote) == []
    assert places(text, quote, by_ocr=True) == []


@pytest.mark.slow
@settings(max_examples=ample(60))
@given(st.lists(PLAIN_WORDS, min_size=6, max_size=40), st.data())
def test_ocr_may_have_few_characters_wrong(words: list[str], data: st.DataObject) -> None:
    quote = " ".join(words)
    assume(len(quote) >= 24)
    wrong = list(quote)
    for _ in range(data.draw(st.integers(1, max(1, len("".join(words)) // 20)))):
        at = data.draw(st.integers(0, len(wrong) - 1))
        match data.draw(st.sampled_from(["change", "drop", "add"])):
            case "change":
                wrong[at] = "x"
            case "drop":
                wrong[at] = ""
            case _:
                wrong[at] += "x"
    text = f"before it {''.join(wrong)} behind it"
    found = find_quotes(text, [quote], by_ocr=True).places[quote]
    assert found
    assert all(at.distance <= errors_allowed("".join(words)) for at in found)


def test_ocr_is_allowed_no_more_than_that() -> None:
    text = "the tenant shall pay the rent on the first day of each month"
    assert places(text, "the tenent shall pay the rent on the f1rst day", by_ocr=True) == []
    assert places(text, "the landlord shall pay the rent on the first day", by_ocr=True) == []
    assert places(text, "the tenent shall pay tbe rent on the first day", by_ocr=True) == [text[:46]]
    assert places(text, "the tenent shall pay tbe rent on the first day") == []


def test_all_places_are_listed() -> None:
    text = "the fee is due. " * 5
    assert places(text, "the fee is due") == ["the fee is due"] * 5
    assert places(text.replace("due", "dve"), "the fee is due", by_ocr=True) == ["the fee is dve"] * 5


@pytest.mark.thinned(6)
@pytest.mark.slow
@pytest.mark.parametrize("by_ocr", [False, True])
@pytest.mark.parametrize("unit", ["a", "ab", "1 ", "1,", " -", "\u00ad", "ﬁ", "word ", "a-\n"])
def test_repetition_costs_no_more_than_its_length(unit: str, by_ocr: bool) -> None:
    text = unit * 40_000
    quotes = [unit * (12 + number) + "z z z" for number in range(300)]
    found = find_quotes(text, quotes, by_ocr=by_ocr)
    assert found.places.keys() == set(quotes)


SENT = SentDocument((SentText("Rent is due.\n\x0cThe deposit is 1,200 EUR.\n\x0cThe deposit is 1,200 EUR.", 1),))


def grounded(quote: str, sent: SentDocument | None = SENT) -> grounding.Grounding:
    return grounding.check_quotes([Quote("quote", quote)], sent)


def test_places_have_pages() -> None:
    (quote,) = grounded("deposit is 1,200 EUR").quotes
    assert quote.status is QuoteStatus.FOUND
    assert [(at.start, at.end, at.page) for at in quote.places] == [(18, 38, 2), (45, 65, 3)]
    assert grounding.read_quotes(grounded("deposit is 1,200 EUR").to_json()) == (quote,)


def test_a_part_has_the_pages_of_its_document() -> None:
    sent = SentDocument((SentText("and the rent is due\n\x0con the first day", 7, 3),))
    (quote,) = grounded("on the first day", sent).quotes
    assert [(at.page, at.part) for at in quote.places] == [(8, 3)]


@pytest.mark.parametrize(
    ("quote", "code"),
    [("the deposit is 1,300 EUR", "quote_not_found"), ("is due", "quote_too_short"), ("", "quote_too_short"),
     ("- - - - - - - - - -", "quote_too_short"), ("Rent is due", None), ("deposit is 1,200", None)],
)  # fmt: skip
def test_a_quote_that_is_not_there_fails(quote: str, code: str | None) -> None:
    problem = grounded(quote).problem
    assert (problem and problem[0]) == code
    assert problem is None or problem[1].startswith("quote: ")


@pytest.mark.parametrize("sent", [None, SentDocument(()), SentDocument((SentText("nothing of it"),))])
def test_nothing_is_said_of_what_was_sent_as_a_picture(sent: SentDocument | None) -> None:
    if sent is not None:
        sent = SentDocument(sent.texts, has_pictures=True)
    found = grounded("the deposit is 1,300 EUR", sent)
    assert found.problem is None
    assert found.is_unverifiable
    assert found.quotes[0].status is QuoteStatus.UNVERIFIABLE


SCHEMA = {
    "$defs": {"clause": {"type": "object", "properties": {"quote": {"type": "string", "x-quote": True}}}},
    "type": "object",
    "properties": {
        "clauses": {"type": "array", "items": {"$ref": "#/$defs/clause"}},
        "evidence": {"type": "array", "items": {"type": "string"}, "check": "quotes"},
        "best": {"anyOf": [{"type": "string", "x-quote": True}, {"type": "null"}]},
        "x-quote": {"type": "string"},
        "check": {"enum": ["quotes", {"x-quote": True}]},
    },
    "patternProperties": {"^p": {"type": "string", "x-quote": True}},
}


def test_which_texts_are_quotes() -> None:
    answer = {"clauses": [{"quote": "a"}, {"quote": None}, {"quote": "b"}], "evidence": ["c", "d"], "best": "e",
              "x-quote": "f", "check": "quotes", "p1": "g"}  # fmt: skip
    assert [(one.path, one.text) for one in marked_quotes(SCHEMA, answer)] == [
        ("clauses/0/quote", "a"), ("clauses/2/quote", "b"), ("evidence/0", "c"), ("evidence/1", "d"), ("best", "e"),
        ("p1", "g"),
    ]  # fmt: skip
    found = [one.path for one in named_quotes({"a": [{"quote": "x"}, {"quotes": ["y", 1]}], "quote": {"quote": "z"}})]
    assert found == ["a/0/quote", "a/1/quotes/0", "quote/quote"]


def test_marks_are_taken_out_and_nothing_else() -> None:
    told = unmarked(SCHEMA)
    assert told["properties"]["x-quote"] == {"type": "string"}
    assert told["properties"]["check"] == SCHEMA["properties"]["check"]  # type: ignore[index]
    assert told["properties"]["evidence"] == {"type": "array", "items": {"type": "string"}}
    assert not has_marks(told)
    assert has_marks(SCHEMA)


def test_a_schema_that_refers_to_itself_is_walked_once() -> None:
    schema = {"properties": {"quote": {"type": "string", "x-quote": True}, "next": {"$ref": "#"}}, "$ref": "#"}
    answer: dict[str, object] = {"quote": "last"}
    for number in range(400):
        answer = {"quote": f"{number}", "next": answer}
    assert len(marked_quotes(schema, answer)) == 401


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ({"schema": {"properties": {"quote": {"type": "string", "x-quote": "yes"}}}}, "true or false"),
        ({"schema": {"properties": {"total": {"type": "number", "x-quote": True}}}}, "not for number"),
        ({"schema": {"items": {"anyOf": [{"type": ["integer", "null"], "check": "quotes"}]}}}, "not for"),
        ({"check": "quotes"}, "needs a `schema`"),
        ({"check": "quotes", "kind": "classify", "labels": ["a", "b"]}, "is for `kind: chat`"),
    ],
)
def test_a_mark_that_is_never_checked_is_refused(field: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        Task.model_validate({"id": "t", "model": "m", "prompt": "What?", **field})


@pytest.mark.parametrize("kinds", ["string", "array", ["string", "null"], None])
def test_a_mark_of_texts_is_taken(kinds: Any) -> None:
    schema = {"properties": {"quote": {"x-quote": True, **({} if kinds is None else {"type": kinds})}}}
    assert Task.model_validate({"id": "t", "model": "m", "prompt": "What?", "schema": schema}).output_schema == schema


@pytest.mark.parametrize(
    ("fields", "page", "by_ocr"),
    [
        ({}, None, False),
        ({"pages": 2, "sent_as": "text"}, 1, False),
        ({"pages": 2, "sent_as": "page 2 by OCR"}, 1, True),
    ],
)
def test_a_request_tells_where_its_document_stands(fields: dict[str, Any], page: int | None, by_ocr: bool) -> None:
    schema = {"properties": {"quote": {"type": "string", "x-quote": True}}}
    asked = {"id": "t", "model": "m", "prompt": "Which?", "system": "Be brief.", "schema": schema}
    spec = JobSpec.model_validate({"name": "n", "documents": "d", "models": {"m": "m"}, "tasks": [asked]})
    text = "the rent is due\n\x0cthe deposit is 1,200 EUR"
    document = Document("d/a.pdf", "a.pdf", text, "digest", 9, fields)
    [built] = Builder(spec).build(document)
    assert b"x-quote" not in built.line
    assert built.row.text_at is not None
    assert sent_document(built.line, built.row.text_at) == SentDocument((SentText(text, page),), by_ocr=by_ocr)
    [plain] = Builder(spec.model_copy(update={"tasks": (Task.model_validate({**asked, "schema": None}),)})).build(
        document
    )
    assert plain.row.text_at is None


def test_marks_behind_what_a_page_shows_are_shown_with_what_is_around_them() -> None:
    text = "a" * 100 + "b" * 100 + "QUOTE" + "c" * 100 + "MORE" + "d" * 5
    marks = [(40, 60), (200, 205), (305, 309)]
    pieces = abridged(marked_texts(text, marks), 100, 10)
    shown = "".join(f"<{piece.text}>" if piece.is_marked else piece.text for piece in pieces)
    assert shown == (
        f"{'a' * 40}<{'a' * 20}>{'a' * 40}… 90 characters are not shown …{'b' * 10}<QUOTE>{'c' * 10}"
        f"… 80 characters are not shown …{'c' * 10}<MORE>{'d' * 5}"
    )
    assert [piece.begins for piece in pieces if piece.is_marked] == [(0,), (1,), (2,)]
    few = abridged(marked_texts(text, marks), 20, 10)
    assert sum(len(piece.text) for piece in few if piece.text[0] != "…") <= 40
    assert abridged(marked_texts(text, []), 400, 10) == [MarkedText(text)]


def test_a_total_of_quotes_in_words() -> None:
    assert total_words({QuoteStatus.FOUND: 1400, QuoteStatus.UNVERIFIABLE: 2}) == (
        "1,402 quotes: 1,400 proven, 2 unverifiable"
    )
