"""A probability in words: the same everywhere, and never better than it is."""

from __future__ import annotations

import pytest

from orchestrator.core.probability_words import chance_words
from orchestrator.web.figures import FORMS


@pytest.mark.parametrize(
    ("chance", "words"),
    [
        (0.0, "0%"), (0.0004, "0.1%"), (0.0049, "0.4%"), (0.01, "1%"), (0.29, "29%"), (0.465, "46%"), (0.4652, "46%"),
        (0.4699, "46%"), (0.9496, "94%"), (0.95, "95%"), (0.98999, "98%"), (0.99, "99.0%"), (0.9949, "99.4%"),
        (0.9999, "99.9%"), (1.0, "100%"),
    ],
)  # fmt: skip
def test_a_chance_reads_the_same_in_commands_and_on_pages(chance: float, words: str) -> None:
    assert chance_words(chance) == words
    assert FORMS["chance"](chance) == words
