"""A job whose tasks name the models of four providers, one of which dies half-way: it ends in one night."""

from __future__ import annotations

import json

import pytest

from tests.support.hostedjob import HOUR, MINUTE, Desk
from tests.support.process import wait_until

FOURS = (("xai", "together", "fireworks", "openrouter"), ("cohere", "gemini", "mistral", "vertex"))
DOCUMENTS = 3
VERBS = ("retrieve", "list", "create", "content", "results", "upload", "create_dataset", "get_dataset", "cancel")


@pytest.mark.parametrize(
    ("dying", "status"),
    [
        ("cohere", 500),
        pytest.param("xai", 503, marks=pytest.mark.long),
        *(
            pytest.param(name, status, marks=pytest.mark.soak)
            for name, status in {"together": 401, "fireworks": 429, "openrouter": 500, "gemini": 429, "mistral": 401,
                                 "vertex": 503}.items()
        ),
    ],
)  # fmt: skip
def test_a_job_over_four_providers_ends_in_one_night_though_one_of_them_dies(
    desk: Desk, dying: str, status: int
) -> None:
    kinds = next(four for four in FOURS if dying in four)
    desk.backends({**{kind: {} for kind in kinds}, "flex": {"service_tier": "default"}})
    folder = desk.folder / "documents"
    folder.mkdir()
    for number in range(DOCUMENTS):
        (folder / f"{number}.txt").write_text(f"Letter {number}.")
    models = {kind: {kind: "m"} for kind in kinds}
    models[dying]["flex"] = "m"
    tasks = [{"id": kind, "model": kind, "prompt": f"Who wrote this ({kind})?", "max_tokens": 50} for kind in kinds]
    file = desk.folder / "job.yaml"
    file.write_text(json.dumps({"name": "four", "documents": "documents", "models": models, "tasks": tasks}))
    desk.provider.settings(turnaround_s=[HOUR / 2, HOUR / 2])
    job = desk.submit(file, deadline="2h")
    desk.settle(job)
    assert sorted(shard["backend"] for shard in desk.detail(job)["shards"]) == sorted(kinds)

    desk.later(HOUR / 4, job)
    match = {"flavour": dying}
    desk.provider.script(
        *({"do": "status", "status": status, "match": {**match, "verb": verb}, "times": None} for verb in VERBS)
    )

    def is_over() -> bool:
        # The rows leave minutes before the deadline, and the other API answers by this machine's clock.
        is_at_work = any(shard["backend"] == "flex" for shard in desk.detail(job)["shards"])
        assert job.deadline_at is not None
        is_far = (job.deadline_at - desk.provider.clock.now()).total_seconds() > HOUR / 2
        desk.later(1.0 if is_at_work else 2 * MINUTE if is_far else MINUTE / 2, job)
        return desk.is_over(job)

    wait_until(is_over, 300)
    current = desk.store.jobs.get(job.id)
    assert current.finished_at is not None
    assert current.deadline_at is not None
    assert current.finished_at < current.deadline_at
    ends = desk.ends(job)
    assert (len(ends), {*ends.values()}) == (DOCUMENTS * len(kinds), {"succeeded"})
    assert {one["task"]: one["provenance"]["backend"] for one in desk.rows(job).values()} == {
        **{kind: kind for kind in kinds}, dying: "flex"
    }  # fmt: skip
    # Its batch ran on and is billed, though nobody can fetch it: nothing else was paid twice.
    assert sum(line["rows"] for line in desk.provider.bill()["lines"]) <= DOCUMENTS * (len(kinds) + 1)
