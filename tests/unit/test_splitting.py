"""Splitting texts: nothing is lost, no part is too long, borders are natural, and an edit moves few of them."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.documents.splitting import LEAST, Part, size, split
from tests.support.examples import ample

WORDS = "tenant rent month notice period shall pay due party clause breach deposit law court term day year".split()


def paragraphs(count: int, seed: int = 1) -> list[str]:
    """Paragraphs of 10 to 50 words, in sentences of up to 10."""
    chance = random.Random(seed)
    return [
        " ".join(
            " ".join(chance.choices(WORDS, k=chance.randint(4, 10))).capitalize() + "."
            for _ in range(chance.randint(2, 5))
        )
        for _ in range(count)
    ]


def texts_of(text: str, limit: int, overlap: int) -> list[str]:
    return [text[part.start : part.end] for part in split(text, limit, overlap)]


PIECES = st.sampled_from(
    [
        "rent",
        "is",
        "due",
        ". ",
        " ",
        "\n",
        "\n\n",
        "\f",
        "日本語。",
        "é",
        "😀",
        "\u0301",
        "x" * 40,
        "\t",
        "“So?” ",
        "\x00",
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=12), max_size=60).map("".join)


@pytest.mark.slow
@settings(max_examples=ample(150))
@given(TEXTS, st.integers(LEAST, 60).flatmap(lambda limit: st.tuples(st.just(limit), st.integers(0, limit // 2))))
@example("x" * 500, (16, 8))
# These have more tokens than their pieces.
@example(".s😀😀" * 40, (16, 0))
@example(" 1😀\t\t\u0301の's.s's1  .\u0301\t..  é.s's.😀é\u0301\u0301の😀's's\"   .s\t\u0301", (16, 8))
@example("😀" * 100, (16, 0))
@example(" " * 2000, (16, 4))
def test_parts_are_the_whole_text_each_within_its_limit(text: str, sizes: tuple[int, int]) -> None:
    limit, overlap = sizes
    parts = split(text, limit, overlap)
    assert "".join(text[part.own : part.end] for part in parts) == text
    for part in parts:
        assert part.start <= part.own <= part.end
        assert size(text[part.start : part.end]) <= limit
        assert size(text[part.start : part.own]) <= overlap
    assert (len(parts) == 1) == (size(text) <= limit)
    assert all(part.own < part.end for part in parts) or text == ""


def test_a_short_text_is_one_part() -> None:
    assert split("", 100, 10) == [Part(0, 0, 0)]
    assert split("Rent is due.", 100, 10) == [Part(0, 0, 12)]
    assert len(split("word " * 100, 101, 0)) == 1


@pytest.mark.parametrize(
    ("text", "border"),
    [
        ("\n\n".join(paragraphs(60)), r"\n\n\Z"),
        ("\f".join(paragraphs(60)), r"\f\Z"),
        ("\n".join(paragraphs(60)), r"\n\Z"),
        (" ".join(paragraphs(60)), r"\.\Z"),
        (" ".join(random.Random(1).choices(WORDS, k=1500)), r"\w\Z"),
    ],
    ids=["paragraphs", "pages", "lines", "sentences", "words"],
)
def test_parts_end_at_the_most_natural_border_there_is(text: str, border: str) -> None:
    parts = split(text, 200, 40)
    assert len(parts) > 5
    for part in parts[:-1]:
        assert re.search(border, text[: part.end])
        assert not text[part.end - 1 : part.end + 1].isalnum()
        assert not text[part.start - 1 : part.start + 1].isalnum()


def test_paragraphs_are_kept_whole_before_lines_are() -> None:
    block = "\n".join(["A line of the first clause."] * 8)
    assert texts_of("\n\n".join([block] * 6), 140, 0) == [f"{block}\n\n{block}\n\n"] * 2 + [f"{block}\n\n{block}"]


@pytest.mark.parametrize("overlap", [8, 40, 100])
def test_each_part_repeats_about_as_much_as_was_asked_for(overlap: int) -> None:
    text = "\n\n".join(paragraphs(60))
    first, *others = split(text, 200, overlap)
    assert first.start == first.own
    for part in others:
        assert overlap / 2 <= size(text[part.start : part.own]) <= overlap


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.parametrize("edited", [3, 50, 110], ids=["start", "middle", "end"])
@pytest.mark.parametrize("new", [[], ["An added clause, and what it says."] * 3], ids=["deleted", "added"])
def test_an_edit_leaves_most_parts_as_they_were(edited: int, new: list[str]) -> None:
    moved = []
    for seed in range(5):
        before = paragraphs(120, seed)
        known = set(texts_of("\n\n".join(before), 300, 30))
        assert len(known) > 15
        after = "\n\n".join([*before[:edited], *new, *before[edited + (not new) :]])
        moved.append(sum(text not in known for text in texts_of(after, 300, 30)))
    assert min(moved) >= 1
    assert sum(moved) <= 3 * len(moved)


def test_where_repeated_paragraphs_have_no_marks_parts_are_full() -> None:
    sizes = [size(text) for text in texts_of("The same again.\n\n" * 300, 200, 0)]
    assert min(sizes[:-1]) > 180
