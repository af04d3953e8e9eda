"""Clean-up of documents: what goes, what stays, and that nothing else changes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.documents.cleanup import clean
from orchestrator.documents.types import Document
from orchestrator.policy.requests import Builder, Built
from orchestrator.settings.job_spec import JobSpec

WHITESPACE = {
    "runs of blanks within a line": ("It  was   agreed.", "It was agreed."),
    "other blanks too": ("It\u00a0\u2003was\t\tagreed.", "It was agreed."),
    "one tab between words": ("It\twas", "It was"),
    "blanks at the end of lines": ("It was  \nagreed.\t\n", "It was\nagreed."),
    "runs of empty lines": ("\n\nIt was\n\n \n\nagreed.\n\n\n", "It was\n\nagreed."),
    "invisible characters": ("\ufeffagree\u00adment\u200b\u2060", "agreement"),
    "a lone gap in a text": ("Dear reader,\nit is   late.\nYours", "Dear reader,\nit is late.\nYours"),
    "an indent stays": ("Rules:\n    one\n\ttwo", "Rules:\n    one\n\ttwo"),
    "columns stay": ("Item    Price\nTea     1.20\n\nAll    paid", "Item    Price\nTea     1.20\n\nAll paid"),
    "columns with tabs stay": ("a\tb\nc\td", "a\tb\nc\td"),
    "code between fences stays": ("x  y\n```\na  =  1  \n\n\n```\nx  y", "x y\n```\na  =  1  \n\n\n```\nx y"),
    "a longer fence holds a shorter one": ("````\n```\na  b\n````\nc  d", "````\n```\na  b\n````\nc d"),
    "a fence that is never closed holds the rest": ("~~~\na  b\n\n\nc", "~~~\na  b\n\n\nc"),
    "joiners that spelling needs stay": ("می\u200cخواهم 👩\u200d👩", "می\u200cخواهم 👩\u200d👩"),
    "page breaks stay": ("one\n\ftwo", "one\n\ftwo"),
    "a text of nothing visible stays": ("\u200b", "\u200b"),
}


@pytest.mark.parametrize(("text", "left"), WHITESPACE.values(), ids=WHITESPACE.keys())
def test_white_space_that_says_nothing_goes(text: str, left: str) -> None:
    assert clean(text, whitespace=True, boilerplate=False) == left
    assert clean(text, whitespace=False, boilerplate=False) == text


TEXTS = st.text(st.sampled_from("ab|-`~ \t\n\f\u00a0\u00ad\u200b\u200c"), max_size=80)


@given(TEXTS)
def test_only_blanks_and_what_cannot_be_seen_go(text: str) -> None:
    def seen(some: str) -> str:
        return re.sub("[\\s\u00ad\u200b]", "", some)

    found = clean(text, whitespace=True, boilerplate=False)
    assert seen(found) == seen(text)
    assert len(found) <= len(text)
    assert found.count("\f") == text.count("\f") or not found.strip()


@given(TEXTS)
def test_what_is_clean_stays_as_it_is(text: str) -> None:
    found = clean(text, whitespace=True, boilerplate=False)
    assert clean(found, whitespace=True, boilerplate=False) == found


def pages(*texts: str) -> str:
    return "\n\f".join(texts)


BODY = ("The parties met.", "They spoke.", "They agreed.", "They left.")
BOILERPLATE = {
    "a header and a footer stay on the first page alone": (
        [f"ACME  Corp.\n{body}\nConfidential" for body in BODY],
        [f"ACME  Corp.\n{BODY[0]}\nConfidential", *BODY[1:]],
    ),
    "page numbers, however they are written": (
        [f"{body}\nPage {number} of 4" for number, body in enumerate(BODY, 1)],
        [f"{BODY[0]}\nPage 1 of 4", *BODY[1:]],
    ),
    "page numbers that begin elsewhere": (
        [f"- {number} -\n{body}" for number, body in enumerate(BODY, 17)],
        [f"- 17 -\n{BODY[0]}", *BODY[1:]],
    ),
    "a page without its footer": (
        [f"{BODY[0]}\nConfidential", BODY[1], f"{BODY[2]}\nConfidential", f"{BODY[3]}\nConfidential"],
        [f"{BODY[0]}\nConfidential", *BODY[1:]],
    ),
    "numbers that are no page's stay": ([f"{BODY[number % 4]}\nTotal {number}" for number in (9, 40, 7, 3)],) * 2,
    "what half of the pages have stays": ([*BODY[:2], f"{BODY[2]}\nx", f"{BODY[3]}\nx"],) * 2,
    "what stands within the page stays": ([f"1\n2\n3\nsame\n4{body}\n5{body}\n6{body}" for body in BODY], None),
    "two pages are too few": ([f"{body}\nConfidential" for body in BODY[:2]],) * 2,
    "what is not at the edge of a page is its own text": (
        [f"{body}\nsame\n{body} {body}" for body in BODY],
    ) * 2,
}  # fmt: skip


@pytest.mark.parametrize(("given_pages", "left"), BOILERPLATE.values(), ids=BOILERPLATE.keys())
def test_headers_and_footers_go_from_every_page_but_the_first(given_pages: list[str], left: list[str] | None) -> None:
    found = clean(pages(*given_pages), whitespace=False, boilerplate=True)
    if left is None:
        assert found.count("same") == len(given_pages)
        return
    assert [page.strip("\n") for page in found.split("\f")] == left


@given(st.lists(st.lists(st.sampled_from(["Head", "Page 1", "Page 2", "text", "", "x 3"]), max_size=6), max_size=8))
def test_no_line_is_lost_of_which_none_is_left_and_pages_stay(lines: list[list[str]]) -> None:
    text = pages(*("\n".join(page) for page in lines))
    found = clean(text, whitespace=False, boilerplate=True)
    assert found.count("\f") == text.count("\f")
    unnumbered = {line for page in lines for line in page if line and not line[-1].isdigit()}
    assert unnumbered <= {line.strip("\f") for line in found.split("\n")}


def built(text: str, **spec: Any) -> Built:
    task = {"id": "t", "prompt": "Who?", "model": "m", **spec.pop("task", {})}
    given_spec = JobSpec.model_validate({"name": "j", "documents": "d", "tasks": [task], **spec})
    [one] = Builder(given_spec).build(Document("d/a.txt", "a.txt", text, "digest", len(text), {}))
    return one


LONG = "It  was agreed.\n\n\n\n" * 50


def test_a_job_that_asks_for_it_sends_clean_documents_and_says_what_that_saved() -> None:
    plain, cleaned = built(LONG), built(LONG, clean={"whitespace": True})
    assert b"It  was" in plain.line
    assert b"It  was" not in cleaned.line
    assert plain.row.trimmed_tokens == 0
    # Of 950 bytes 798 are left, at four a token.
    assert cleaned.row.trimmed_tokens == 238 - 200


def test_each_way_of_cleaning_asks_another_question() -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"whitespace": True},
        {"boilerplate": True},
        {"whitespace": True, "boilerplate": True},
    ]
    rows = [built(LONG, clean=way).row for way in ways]
    assert len({row.fingerprint for row in rows}) == len({row.prompt_version for row in rows}) == 4
    assert rows[0].fingerprint == built(LONG).row.fingerprint


@pytest.mark.parametrize(("limit", "saved"), [(10, False), (10_000, True)], ids=["cut all the same", "not cut"])
def test_what_would_have_been_cut_off_is_not_saved(limit: int, saved: bool) -> None:
    row = built(LONG, clean={"whitespace": True}, task={"max_document_tokens": limit}).row
    assert (row.trimmed_tokens > 0) == saved


def test_a_document_that_only_fits_when_it_is_clean_has_saved_what_would_have_been_sent() -> None:
    text = "a" + " " * 400 + "b"
    row = built(text, clean={"whitespace": True}, task={"max_document_tokens": 20}).row
    assert (row.cut_from_tokens, row.trimmed_tokens) == (None, 19)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        ("a" + " " * 300_000 + "b\n") * 3,
        "\f".join([" ".join(map(str, range(100_000)))] * 4),
        "\f".join(["9 " * 990] * 400),
        pytest.param("\f" * 300_000, marks=pytest.mark.soak),
        "\n" * 300_000 + "x",
        ("\u3000" * 1000 + "x\u00a0\n") * 300,
        "```\n" * 100_000,
    ],
    ids=["gaps", "numbers", "many numbers", "pages", "lines", "wide blanks", "fences"],
)
def test_time_grows_with_the_text_alone(text: str) -> None:
    """Each of them took a minute at least, or memory without end, where time grew with the square."""
    cleaned = clean(text, whitespace=True, boilerplate=True)
    assert len(cleaned) <= len(text)
