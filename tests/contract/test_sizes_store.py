"""The lengths that forecasts learn from: a sample of all answers, not those that settled last."""

from __future__ import annotations

import pytest

from orchestrator.core.model import Span, Usage
from orchestrator.store import Store
from tests.support.stored import NOW, job, later, row, settle, sharded, succeeded

ROWS, MANY = 600, 100


@pytest.mark.parametrize("reverse", [False, True], ids=["the longest last", "the longest first"])
@pytest.mark.parametrize("at_once", [True, False], ids=["settled together", "settled in their order"])
def test_lengths_of_answers_are_those_of_all_rows(store: Store, at_once: bool, reverse: bool) -> None:
    new = job("long-last-1")
    store.jobs.add(new, {})
    store.rows.add(new.id, [row(seq) for seq in range(ROWS)], {}, NOW)
    batch = sharded(store, new)
    lengths = {seq: ROWS - seq if reverse else 1 + seq for seq in range(ROWS)}
    for begin in range(0, ROWS, MANY):
        outcomes = [succeeded(seq, usage=Usage(100, 40, lengths[seq])) for seq in range(begin, begin + MANY)]
        settle(store, batch, *outcomes, now=NOW if at_once else later(begin))
    found = store.sizes.output_lengths([new.id], "t", "v", most=MANY)
    assert sum(found.values()) == MANY
    mean = sum(tokens * rows for tokens, rows in found.items()) / MANY
    assert mean == pytest.approx(ROWS / 2, rel=0.1)
    assert sum(rows for tokens, rows in found.items() if tokens > 0.8 * ROWS) == pytest.approx(0.2 * MANY, abs=5)


def test_the_last_rows_of_a_shard_are_those_at_the_end_of_the_file_without_an_outcome(store: Store) -> None:
    new = job()
    store.jobs.add(new, {})
    store.rows.add(new.id, [row(seq, span=Span(100 * seq, 1 + seq), max_output=seq) for seq in range(10)], {}, NOW)
    batch = sharded(store, new)
    [last] = store.sizes.last_work(batch.id, 3)
    assert (last.shard_id, last.rows, last.bytes, last.max_output) == (batch.id, 3, 8 + 9 + 10, 7 + 8 + 9)
    settle(store, batch, *[succeeded(seq) for seq in (8, 9)], now=NOW)
    [last] = store.sizes.last_work(batch.id, 3)
    assert (last.rows, last.bytes) == (3, 6 + 7 + 8)
    assert store.sizes.last_work(batch.id, 0) == []
    assert store.sizes.last_work(batch.id, 100) == store.sizes.open_work(new.id)
