"""What plans are made from: the progress of engines and the finishes of jobs, as both databases give them back."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from orchestrator.core.model import JobId, ProgressSample
from orchestrator.core.shards import ShardState
from orchestrator.store import Store
from tests.support.stored import NOW, added, later, sharded

SEEN = ProgressSample(JobId("contracts-1"), "series", "gpu", NOW, 10, 90, 1000, 200)


def test_progress_comes_back_in_order_and_once(store: Store) -> None:
    added(store)
    ahead = replace(SEEN, at=later(1), done=60, left=40)
    store.observations.note([ahead])
    store.observations.note([SEEN, ahead])
    store.observations.note([])
    assert store.observations.progress("gpu", NOW) == [SEEN, ahead]
    assert store.observations.progress("gpu", later(0.5)) == [ahead]
    assert store.observations.progress("other", NOW) == []


def test_progress_goes_with_its_job(store: Store) -> None:
    job = added(store)
    store.observations.note([SEEN])
    assert store.jobs.discard(job.id)
    assert store.observations.progress("gpu", NOW) == []


def test_how_long_jobs_took_to_finish_after_their_last_batch(store: Store) -> None:
    for name, hours in (("contracts-1", 1.0), ("contracts-2", 2.0), ("contracts-3", 3.0)):
        job = added(store, job_id=name, identity=name)
        over = later(hours)
        store.shards.move(sharded(store, job), ShardState.ENDED, ended_at=over)
        if name != "contracts-3":
            store.jobs.finish(job.id, "there", over + timedelta(seconds=30))
    found = store.observations.finishes("home")
    assert [(last, end - last) for _, last, end in found] == [
        (later(2.0), timedelta(seconds=30)),
        (later(1.0), timedelta(seconds=30)),
    ]
    assert store.observations.finishes("another") == []
    assert len(store.observations.finishes("home", newest=1)) == 1


def test_nothing_is_made_of_answers_where_no_row_waits_for_one(store: Store) -> None:
    job = added(store)
    assert store.observations.unmade(job.id) == 0
    assert store.observations.reasked([job.id]) == []
