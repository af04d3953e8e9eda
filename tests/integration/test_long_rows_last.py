"""Engines that have done their short rows: what is left is planned by its own length, not by the mean of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.core.model import Job, ProgressSample, Span
from orchestrator.core.shards import Shard, ShardState
from orchestrator.core.tokens import BYTES_PER_TOKEN
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.policy.planner import SynchronousOption
from orchestrator.settings import config
from orchestrator.settings.discovery import Place
from orchestrator.store import Store
from tests.support.databases import new_sqlite
from tests.support.stored import NOW, job, later, ranges, row, shard

TOML = '[backends.gpu]\nupstreams = ["http://127.0.0.1:9/v1"]\nlocation = "local"\nidle = true\n'
ROWS, SPEED = 600, 500.0
"""Rows of a night, and tokens a second that the engine does, whatever their rows."""
LENGTHS = {
    "the longest last": [100 + (9_000 if place >= 0.8 * ROWS else 0) for place in range(ROWS)],
    "longer and longer": [100 + 10 * place for place in range(ROWS)],
    "the shortest last": [6_100 - 10 * place for place in range(ROWS)],
    "all alike": [1_500] * ROWS,
}


class Night:
    """A job at an engine that does its rows in the order of the file, each in the time that its tokens take."""

    def __init__(self, store: Store, number: int, lengths: Sequence[int], begin: datetime) -> None:
        self.store, self.begin, self.rows = store, begin, len(lengths)
        self.work = [length / BYTES_PER_TOKEN for length in lengths]
        self.job: Job = job(f"long-{number}", created_at=begin, deadline_at=begin + timedelta(hours=20))
        store.jobs.add(self.job, {})
        places = [sum(lengths[:seq]) for seq in range(self.rows)]
        rows = [row(seq, span=Span(places[seq], lengths[seq]), max_output=1) for seq in range(self.rows)]
        store.rows.add(self.job.id, rows, {}, begin)
        store.jobs.mark_built(self.job.id, begin)
        [found] = ranges(store, self.job)
        self.sent = shard(self.job, rows=found.rows, bytes=found.bytes)
        store.shards.add(self.sent, found)
        store.shards.move(self.sent, ShardState.SUBMITTING)
        self._move(ShardState.SUBMITTED, submitted_at=begin, first_at=begin, batch_id="b")

    def _move(self, to: ShardState, **facts: object) -> None:
        self.store.shards.move(self.store.shards.get(self.sent.id), to, **facts)

    def seconds(self, done: int) -> float:
        """How long so many rows take."""
        return sum(self.work[:done]) / SPEED

    def until(self, done: int) -> datetime:
        """The night until so many rows are done, looked at every half minute; the time at which that is."""
        samples, rows, at = [], 0, 0.0
        while at < self.seconds(done):
            while rows < done and self.seconds(rows + 1) <= at:
                rows += 1
            fed = int(sum(self.work[:rows]))
            when = self.begin + timedelta(seconds=at)
            samples.append(
                ProgressSample(self.job.id, self.job.series, "gpu", when, rows, self.rows - rows, fed, rows)
            )
            at += 30.0
        self.store.observations.note(samples)
        now = self.begin + timedelta(seconds=self.seconds(done))
        here: Shard = self.store.shards.get(self.sent.id)
        fed = int(sum(self.work[:done]))
        self.store.shards.note(
            here, provider_completed=done, provider_input_tokens=fed, provider_output_tokens=done, seen_at=now
        )
        return now

    def end(self) -> None:
        """All rows are done."""
        self._move(ShardState.ENDED, ended_at=self.until(self.rows))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(new_sqlite(tmp_path / "orch.db")) as opened:
        yield opened


@pytest.mark.thinned(4)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("part", [0.2, 0.6, 0.85])
def test_the_end_of_an_engine_is_foreseen_by_the_tokens_that_are_left(
    store: Store, tmp_path: Path, lengths: Sequence[int], part: float
) -> None:
    (tmp_path / "orch.toml").write_text(TOML)
    settings = config.load(Place(tmp_path / "orch.toml", tmp_path, "sqlite:///x", 1.0))
    for number in (1, 2, 3):
        Night(store, number, lengths, later(-24 * number)).end()
    tonight = Night(store, 9, lengths, NOW)
    done = int(part * ROWS)
    now = tonight.until(done)
    option = Planning(store, settings, tonight.job, now).option("gpu")
    assert isinstance(option, SynchronousOption)
    left = tonight.seconds(ROWS) - tonight.seconds(done)
    assert option.pace.seconds_for(ROWS - done) == pytest.approx(left, rel=0.15)
