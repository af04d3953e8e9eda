"""What strangers wrote cannot act on a terminal, and JSON stays the JSON that it was."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.sanitize import escape_controls, one_line, shortened

ANYTHING = st.text(st.characters(exclude_categories=[]) | st.sampled_from("\x1b\x9b\x07\r\n\t\u202e\u2066\udc80\x7f"))


def acts(char: str) -> bool:
    """Whether a terminal may obey it, or read a line otherwise for it."""
    bidi = unicodedata.bidirectional(char) in ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
    marks = char in "\u200e\u200f\u061c\u2028\u2029"
    return unicodedata.category(char) in ("Cc", "Cs") or bidi or marks


@given(ANYTHING)
def test_nothing_acts(text: str) -> None:
    safe = escape_controls(text)
    assert not [char for char in safe.replace("\r\n", "\n") if acts(char) and char not in "\t\n"]
    assert not [char for char in one_line(text) if acts(char)]
    assert escape_controls(safe) == safe
    safe.encode()


@pytest.mark.slow
@given(st.recursive(st.none() | ANYTHING, lambda inner: st.lists(inner) | st.dictionaries(ANYTHING, inner)))
def test_json_stays_the_same_json(value: object) -> None:
    assert json.loads(escape_controls(json.dumps(value, ensure_ascii=False))) == value


def test_what_is_harmless_stays() -> None:
    for text in ("naïve — 契約書 ✓ 👍🏽", "a\tb\nc\r\nd", "שלום مرحبا", "a\u200db"):
        assert escape_controls(text) == text
    assert escape_controls("\x1b[31mred\x1b]0;x\x07") == "\\u001b[31mred\\u001b]0;x\\u0007"
    assert one_line(" a\r\n b\t\tc ") == "a b c"
    assert shortened("a" * 10, 5) == "aaaa…"
