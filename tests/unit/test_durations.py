"""Lengths of time, in words and spread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.durations import duration, spread

TABLE = {
    "nothing": (0, "0 s"),
    "before it began": (-3, "0 s"),
    "rounded": (0.6, "1 s"),
    "seconds": (59.4, "59 s"),
    "a minute, once rounded": (59.6, "1 min"),
    "a minute and seconds": (61, "1 min 1 s"),
    "a few minutes": (200, "3 min 20 s"),
    "seconds to the last": (599, "9 min 59 s"),
    "from here on no seconds": (659, "10 min"),
    "minutes": (41 * 60 + 59, "41 min"),
    "an hour": (3600, "1 h"),
    "an hour and minutes": (4200, "1 h 10 min"),
    "a window": (86_400, "24 h"),
    "a day and a half": (36 * 3600 + 60, "36 h 1 min"),
    "two days": (48 * 3600, "2 d"),
    "a week and an hour": (7 * 86_400 + 3600 + 59, "7 d 1 h"),
}


@pytest.mark.parametrize(("seconds", "words"), TABLE.values(), ids=TABLE.keys())
def test_a_length_of_time_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@given(st.floats(0, 1e6), st.text(max_size=20))
def test_a_length_of_time_is_spread_by_a_fifth_and_the_same_for_the_same_seed(seconds: float, seed: str) -> None:
    assert seconds * 0.8 - 1e-6 <= spread(seconds, seed) <= seconds * 1.2 + 1e-6
    assert spread(seconds, seed) == spread(seconds, seed)


def test_seeds_spread_over_the_whole_of_it() -> None:
    found = [spread(100, str(number)) for number in range(200)]
    assert min(found) < 84
    assert max(found) > 116
