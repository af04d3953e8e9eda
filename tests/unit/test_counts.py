"""Counts and amounts in words: one is no plural, and nothing is `0E-12`."""

from __future__ import annotations

from decimal import Decimal

import pytest

from orchestrator.core.counts import number_of, number_that
from orchestrator.core.money import amount, plain


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


@pytest.mark.parametrize(
    ("dollars", "text"),
    [("0E-12", "0"), ("0.000370000000", "0.00037"), ("120.00", "120"), ("1E+2", "100"), ("-0.50", "-0.5")],
)
def test_an_amount_is_plain(dollars: str, text: str) -> None:
    assert str(plain(Decimal(dollars))) == text


@pytest.mark.parametrize(
    ("dollars", "text"),
    [
        ("2.50", "$2.50"),
        ("2.5", "$2.50"),
        ("0.1", "$0.10"),
        ("12.0", "$12.00"),
        ("1", "$1.00"),
        ("1000", "$1,000.00"),
        ("0.025", "$0.025"),
    ],
)
def test_an_amount_has_whole_cents(dollars: str, text: str) -> None:
    assert amount(Decimal(dollars)) == text
