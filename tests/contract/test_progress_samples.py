"""What is noted of a job's progress at our own servers, by what these say of their rows."""

from __future__ import annotations

from typing import Any

from orchestrator.pipeline.plan.progress_samples import Samples
from orchestrator.store import Store
from tests.support.stored import NOW, added, later, sharded


def test_rows_in_back_off_are_not_left_to_work_on(store: Store) -> None:
    job = added(store, 30)
    shard = sharded(store, job)
    store.shards.note(shard, batch_id="batch_1", provider_completed=10)
    told: dict[str, Any] = {"upstreams": [{"in_flight": 9, "retrying": []}]}
    samples = Samples(store, lambda name: told if name == "gpu" else None)
    refused = {"batch": "batch_1", "rows": 4}
    for minutes, groups in ((0, []), (0.1, [refused]), (0.2, [{**refused, "rows": 9}])):
        told["upstreams"][0]["retrying"] = groups
        samples.take(job, store.shards.of_job(job.id), lambda _: True, later(minutes))
    noted = [(one.done, one.left) for one in store.observations.progress("gpu", since=NOW)]
    assert noted == [(10, 20), (10, 16), (10, 0)], "with nothing else in flight, the others wait behind these"
