"""What to do about rows that failed: something of its own for each code, and never to wait for what is over."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.documents.types import DocumentProblem
from orchestrator.policy.advice import ADVICE, added_advice, advice_for
from orchestrator.policy.answer_ends import cut_at
from orchestrator.policy.row_errors import BAD_ANSWERS, RULES

OURS = (
    "template", "answers_too_long", "part_failed", "cancelled", "budget_exhausted", "batch_expired", "missing_result",
)  # fmt: skip
CODES = [*map(str, DocumentProblem), *(rule.code for rule in RULES), *BAD_ANSWERS, *OURS]


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_advice_of_its_own(code: str) -> None:
    assert Counter(ADVICE.values())[advice_for(code)] == 1
    assert "the rows wait" not in advice_for(code), "the job is over: nothing waits any more"


@pytest.mark.parametrize(
    ("code", "like"),
    [("http_401", "bad_key"), ("invalid_api_key", "bad_key"), ("http_429", "rate_limited"), ("http_502", "http_5xx"),
     ("http_418", "http_4xx"), ("odd", "http_5xx"), ("insufficient_quota", "no_credit"),
     ("http_404", "model_not_found")],
)  # fmt: skip
def test_words_of_providers_are_known_by_what_they_mean(code: str, like: str) -> None:
    assert advice_for(code) == ADVICE[like]


def test_a_document_has_one_cure() -> None:
    """Messages about documents name it, and it was told twice."""
    assert {added_advice(problem) for problem in DocumentProblem} == {None}
    assert {added_advice(cut_at(text, "began")[0]) for text in ("", " " * 1000)} == {None}
    assert added_advice("schema_mismatch") == advice_for("schema_mismatch")
