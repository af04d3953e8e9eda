"""Forecasts are kept as they were made, each once, and get the first figure that came."""

from __future__ import annotations

from msgspec.structs import replace

from orchestrator.core.model import Forecast, JobId
from orchestrator.store import Store
from tests.support.stored import NOW, added, later

JOB = JobId("contracts-1")
COST = Forecast(JOB, "cost", "gpu", "tiny", NOW, 0.1, 3.25, "prior")
OUTPUT = replace(COST, kind="output", task="t", p50=40.0, p95=90.0)
OTHER_TASK = replace(OUTPUT, task="u")
TURN = replace(COST, kind="turnaround", shard_id="contracts-1.001", p50=600.5, p95=7200.0)
ALL = [COST, OUTPUT, OTHER_TASK, TURN]


def test_they_come_back_as_they_were_made_and_in_order(store: Store) -> None:
    added(store)
    late = replace(TURN, shard_id="contracts-1.002", made_at=later(2), actual=3.5, known_at=later(3))
    store.forecasts.made([late])
    store.forecasts.made(ALL)
    store.forecasts.made([])
    assert store.forecasts.since() == [*ALL, late]
    assert store.forecasts.since(later(2)) == [late]
    assert store.forecasts.since(later(2.1)) == []


def test_made_again_the_first_stays(store: Store) -> None:
    added(store)
    store.forecasts.made(ALL)
    store.forecasts.made([replace(one, p50=9.0, p95=10.0, made_at=later(1), source="hindsight") for one in ALL])
    assert store.forecasts.since() == ALL


def test_what_came_is_told_of_that_one_and_the_first_figure_stays(store: Store) -> None:
    added(store)
    store.forecasts.made(ALL)
    store.forecasts.settled(JOB, "cost", 0.2, later(1))
    store.forecasts.settled(JOB, "cost", 0.3, later(2))
    store.forecasts.settled(JOB, "output", 41.5, later(1), task="u")
    store.forecasts.settled(JOB, "turnaround", 601.0, later(1), shard_id="contracts-1.001")
    assert store.forecasts.since() == [
        replace(COST, actual=0.2, known_at=later(1)),
        OUTPUT,
        replace(OTHER_TASK, actual=41.5, known_at=later(1)),
        replace(TURN, actual=601.0, known_at=later(1)),
    ]


def test_what_came_of_something_unforeseen_is_not_kept(store: Store) -> None:
    added(store)
    store.forecasts.made([TURN])
    store.forecasts.settled(JOB, "turnaround", 1.0, later(1), shard_id="contracts-1.002")
    store.forecasts.settled(JobId("other"), "turnaround", 1.0, later(1), shard_id="contracts-1.001")
    store.forecasts.settled(JOB, "turnaround", 1.0, later(1))
    assert store.forecasts.since() == [TURN]


def test_zero_is_a_figure_that_came(store: Store) -> None:
    added(store)
    store.forecasts.made([COST])
    store.forecasts.settled(JOB, "cost", 0.0, later(1))
    store.forecasts.settled(JOB, "cost", 5.0, later(2))
    assert [one.actual for one in store.forecasts.since()] == [0.0]


def test_what_was_cut_short_is_kept_as_that(store: Store) -> None:
    added(store)
    store.forecasts.made([TURN])
    store.forecasts.settled(JOB, "turnaround", 300.0, later(1), shard_id="contracts-1.001", censored=True)
    assert store.forecasts.since() == [replace(TURN, actual=300.0, known_at=later(1), censored=True)]


def test_what_the_newest_finished_runs_cost(store: Store) -> None:
    for number in range(4):
        job = added(store, job_id=f"contracts-{number}", identity=f"contracts-{number}")
        store.forecasts.made([replace(COST, job_id=job.id, made_at=later(number)), replace(OUTPUT, job_id=job.id)])
        if number:
            store.forecasts.settled(job.id, "cost", number / 10, later(number + 1))
    assert store.forecasts.costs("series") == [(0.1, 3.25, 0.3), (0.1, 3.25, 0.2), (0.1, 3.25, 0.1)]
    assert store.forecasts.costs("series", newest=1) == [(0.1, 3.25, 0.3)]
    assert store.forecasts.costs("another") == []
