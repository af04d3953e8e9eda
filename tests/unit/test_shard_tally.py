"""Sentences of the event log about a collected shard."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.pipeline.collect.unanswered import ShardTally

SENTENCES = {
    "a row that was asked first": (
        ShardTally(settled=Counter(succeeded=1), again=Counter({"its batch": 0})), "1 succeeded",
    ),
    "one of each": (
        ShardTally(
            released=1, again=Counter(http_500=1), duplicates=1, unknown=1, broken=1,
            reasked=Counter(truncated=1), escalated=Counter(refusal=1), escalated_to="big",
        ),
        "1 continues in another batch, 1 for http_500, 1 second line for a row, 1 line of an unknown custom_id, "
        "1 line that is not a result, 1 is re-asked: 1 truncated, 1 continues with big: 1 refusal",
    ),
    "two of each": (
        ShardTally(
            released=2, again=Counter(http_500=2), duplicates=2, unknown=2, broken=2,
            reasked=Counter(truncated=2), escalated=Counter(refusal=2), escalated_to="big",
        ),
        "2 continue in another batch, 2 for http_500, 2 second lines for a row, 2 lines of unknown custom_ids, "
        "2 lines that are not results, 2 are re-asked: 2 truncated, 2 continue with big: 2 refusal",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tally", "sentence"), SENTENCES.values(), ids=SENTENCES.keys())
def test_a_tally_in_words(tally: ShardTally, sentence: str) -> None:
    assert str(tally) == sentence
