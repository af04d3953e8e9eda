"""Counts in words: one is no plural."""

from __future__ import annotations

import pytest

from orchestrator.core.counts import number_of, number_that


@pytest.mark.parametrize(
    ("number", "noun", "verb", "words"),
    [
        (1, "row", "wait", "1 row waits"),
        (0, "row", "wait", "0 rows wait"),
        (2000, "row", "are", "2,000 rows are"),
        (1, "batch", "are", "1 batch is"),
        (3, "unfinished batch", "have", "3 unfinished batches have"),
    ],
)
def test_nouns_and_verbs_agree_with_their_number(number: int, noun: str, verb: str, words: str) -> None:
    assert number_that(number, noun, verb) == words
    assert words.startswith(number_of(number, noun))
