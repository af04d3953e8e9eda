"""Shards: planned with their rows all or nothing, moved by compare-and-set."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.core.errors import OrchError, StateConflict
from orchestrator.core.model import JobId
from orchestrator.core.shards import TRANSITIONS, HoldCode, ShardState
from orchestrator.policy.quota import LearnedLimit
from orchestrator.policy.sharding import Range
from orchestrator.store import Store
from tests.support.stored import CHAT, NOW, added, job, later, ranges, row, settle, shard, sharded, succeeded


def waiting(store: Store, job_id: str = "contracts-1") -> list[int]:
    return [each.seq for each in store.rows.waiting(JobId(job_id))]


def test_a_shard_comes_back_as_it_was_added(store: Store) -> None:
    found = added(store)
    full = shard(
        found, window_seconds=10**9, bytes=5_000_000_000, input_file_id="file-1", batch_id="batch_1",
        provider_status="in_progress", provider_completed=1, provider_failed=2, provider_input_tokens=5_000_000_000,
        provider_output_tokens=4, provider_seconds=1.25, output_file_id="o", error_file_id="e",
        refusal_code="http_413", refusal="too large", held="queued behind quota", held_code=HoldCode.ADMISSION,
        tokens=6_000_000_000, max_output=7,
        intended_at=later(0), account="org:acme", status_at=later(1), started_at=later(1),
        submitted_at=later(1), ended_at=later(2), collected_at=later(3),
    )  # fmt: skip
    store.shards.add(full, ranges(store, found)[0])
    assert store.shards.get(full.id) == full
    assert store.shards.of_job(found.id) == [full]


def test_a_shard_takes_the_rows_of_its_range_and_no_others(store: Store) -> None:
    store.jobs.add(job(), {})
    store.jobs.add(job("other-1"), {})
    rows = [row(0), row(1, model="b"), row(2), row(3, endpoint="/v1/embeddings"), row(4)]
    store.rows.add(JobId("contracts-1"), rows, {}, NOW)
    store.rows.add(JobId("other-1"), rows, {}, NOW)
    new = shard(store.jobs.get("contracts-1"), rows=2)
    store.shards.add(new, Range(CHAT, "m", 0, 3, 2, 200))
    assert [each.seq for each in store.rows.of_shard(new.id)] == [0, 2]
    assert sorted(waiting(store)) == [1, 3, 4]
    assert len(waiting(store, "other-1")) == 5


@pytest.mark.parametrize(
    "why",
    ["already in a shard", "already settled", "fewer than counted", "more than counted"],
)
def test_a_shard_whose_rows_are_not_those_counted_is_not_added_at_all(store: Store, why: str) -> None:
    found = added(store, 3)
    counted = {"fewer than counted": 4, "more than counted": 2}.get(why, 3)
    if why.startswith("already"):
        store.shards.add(shard(found, 1, rows=1), Range(CHAT, "m", 1, 1, 1, 100))
    if why == "already settled":
        settle(store, store.shards.of_job(found.id)[0], succeeded(1))
    before = waiting(store)
    with pytest.raises(StateConflict, match=f"{counted} rows were to go into shard contracts-1.002, but"):
        store.shards.add(shard(found, 2, rows=counted), Range(CHAT, "m", 0, 2, counted, 300))
    assert waiting(store) == before
    assert [each.number for each in store.shards.of_job(found.id)] == ([1] if why.startswith("already") else [])


def test_numbers_go_on_from_the_last(store: Store) -> None:
    found = added(store)
    assert store.shards.next_number(found.id) == 1
    store.shards.add(shard(found, 7, rows=1), Range(CHAT, "m", 0, 0, 1, 1))
    assert store.shards.next_number(found.id) == 8
    assert store.shards.next_number(JobId("other")) == 1


def test_the_same_number_twice_is_refused_and_takes_no_rows(store: Store) -> None:
    found = added(store)
    store.shards.add(shard(found, 1, rows=1), Range(CHAT, "m", 0, 0, 1, 1))
    with pytest.raises(OrchError):
        store.shards.add(replace(shard(found, 1), id="contracts-1.xyz"), Range(CHAT, "m", 1, 2, 2, 1))
    assert waiting(store) == [1, 2]


@pytest.mark.parametrize("from_", ShardState)
def test_a_move_is_made_where_the_table_has_it_and_refused_elsewhere(store: Store, from_: ShardState) -> None:
    for to in ShardState:
        found = added(store, job_id=f"to-{to}")
        new = shard(found, state=from_)
        store.shards.add(new, ranges(store, found)[0])
        if to in TRANSITIONS[from_]:
            store.shards.move(new, to, held="because")
            assert store.shards.get(new.id) == replace(new, state=to, held="because")
        else:
            with pytest.raises(StateConflict, match=f"cannot go from {from_} to {to}"):
                store.shards.move(new, to, held="because")
            assert store.shards.get(new.id) == new


def test_a_move_from_a_state_that_is_over_is_a_conflict(store: Store) -> None:
    old = sharded(store, added(store), state=ShardState.PENDING)
    store.shards.move(old, ShardState.SUBMITTING)
    with pytest.raises(StateConflict, match=r"shard contracts-1.001 is no longer pending"):
        store.shards.move(old, ShardState.CANCELLED)
    with pytest.raises(StateConflict):
        store.shards.note(old, input_file_id="file-1")
    now = store.shards.get(old.id)
    assert (now.state, now.input_file_id) == (ShardState.SUBMITTING, None)


def test_facts_are_noted_without_a_move(store: Store) -> None:
    found = sharded(store, added(store))
    store.shards.note(found, provider_status="finalizing", provider_completed=2)
    assert store.shards.get(found.id) == replace(found, provider_status="finalizing", provider_completed=2)


def test_an_unknown_shard_cannot_be_moved(store: Store) -> None:
    with pytest.raises(StateConflict):
        store.shards.move(shard(job("nowhere-1")), ShardState.SUBMITTING)


def test_of_many_that_move_a_shard_at_once_one_wins(store: Store, store_url: str) -> None:
    found = sharded(store, added(store), state=ShardState.PENDING)
    barrier, ends = threading.Barrier(6), []

    def work() -> None:
        with Store.open(store_url) as own:
            barrier.wait()
            try:
                own.shards.move(found, ShardState.SUBMITTING)
                ends.append("moved")
            except StateConflict:
                ends.append("conflict")

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == ["conflict"] * 5 + ["moved"]


def test_of_two_that_take_the_same_rows_at_once_one_wins(store: Store, store_url: str) -> None:
    found = added(store, 50)
    [rows] = ranges(store, found)
    barrier, ends = threading.Barrier(4), []

    def work(number: int) -> None:
        with Store.open(store_url) as own:
            barrier.wait()
            try:
                own.shards.add(shard(found, number, rows=50), rows)
                ends.append("taken")
            except StateConflict:
                ends.append("conflict")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == ["conflict"] * 3 + ["taken"]
    [winner] = store.shards.of_job(found.id)
    assert len(list(store.rows.of_shard(winner.id))) == 50


def test_a_shard_that_is_given_up_lets_its_rows_wait_again(store: Store) -> None:
    found = added(store, 3)
    planned = sharded(store, found, state=ShardState.PENDING)
    store.shards.dissolve(planned, "planned again in smaller batches")
    assert waiting(store) == [0, 1, 2]
    left = store.shards.get(planned.id)
    assert (left.state, left.held) == (ShardState.CANCELLED, "planned again in smaller batches")
    with pytest.raises(StateConflict):
        store.shards.dissolve(planned, "again")


def test_rows_that_keep_away_from_a_backend_get_shards_of_their_own(store: Store) -> None:
    found = added(store, 3)
    first = sharded(store, found)
    store.rows.free(first, [1], count_attempt=True, avoid=("gpu",))
    store.rows.free(first, [0, 2], count_attempt=False)
    other = shard(found, 2, rows=1, backend="cloud")
    store.shards.add(other, Range(CHAT, "m", 0, 2, 1, 100), ("gpu",))
    assert [each.seq for each in store.rows.of_shard(other.id)] == [1]
    assert waiting(store) == [0, 2]


def test_what_counts_against_a_backend_is_asked_over_all_jobs(store: Store) -> None:
    for name, state in (("a-1", ShardState.SUBMITTED), ("b-1", ShardState.SUBMITTING), ("c-1", ShardState.ENDED)):
        sharded(store, added(store, 1, name), state=state)
    elsewhere = shard(added(store, 1, "d-1"), backend="cloud")
    store.shards.add(elsewhere, ranges(store, store.jobs.get("d-1"))[0])
    assert sorted(each.job_id for each in store.shards.at_backend("gpu")) == ["a-1", "b-1"]
    assert sorted(each.job_id for each in store.shards.of_backend("gpu")) == ["a-1", "b-1", "c-1"]
    mine = store.shards.of_job(JobId("a-1"))[0]
    store.shards.note(mine, intended_at=later(5), batch_id="batch_1")
    assert (store.shards.intended_since("gpu", later(5)), store.shards.intended_since("gpu", later(6))) == (1, 0)
    assert store.shards.asked_at("gpu", "batch_1") == later(5)
    assert store.shards.asked_at("cloud", "batch_1") is None


def test_files_that_a_shard_uses_are_known_by_their_backend(store: Store) -> None:
    one = sharded(store, added(store))
    store.shards.note(one, input_file_id="file-in", output_file_id="file-out")
    assert store.shards.uses_file("gpu", "file-in")
    assert store.shards.uses_file("gpu", "file-out")
    assert not store.shards.uses_file("gpu", "file-other")
    assert not store.shards.uses_file("cloud", "file-in")


def test_what_batches_told_of_themselves_is_asked_of_whole_ones_alone(store: Store) -> None:
    facts: dict[str, Any] = {
        "tokens": 100, "provider_input_tokens": 150, "provider_status": "completed", "provider_completed": 1,
        "submitted_at": later(0), "started_at": later(1), "ended_at": later(3),
    }  # fmt: skip
    for number, more in enumerate([{}, {"provider_completed": 0}, {"provider_status": "expired"}, {"model": "b"}]):
        of = added(store, 1, f"job-{number}")
        store.shards.note(sharded(store, of, state=ShardState.COLLECTED), rows=1, **{**facts, **more})
    assert store.shards.told_tokens("gpu", "m") == (100, 150)
    assert store.shards.told_tokens("gpu", "unknown") == (0, 0)
    first, end = (later(1) - later(0)).total_seconds(), (later(3) - later(0)).total_seconds()
    assert store.shards.durations("gpu") == [(first, end)] * 4


def test_what_was_learned_of_a_backend_is_kept_by_its_model(store: Store) -> None:
    assert store.limits.of("gpu", "m") == LearnedLimit("gpu", "m")
    learned = LearnedLimit("gpu", "m", 900_000, 500, later(1), later(2), 3, "queued behind quota")
    store.limits.put(LearnedLimit("gpu", "m", reason="older"))
    store.limits.put(learned)
    store.limits.put(LearnedLimit("cloud", "m", reason="of another"))
    assert store.limits.of("gpu", "m") == learned
    assert [each.backend for each in store.limits.all()] == ["cloud", "gpu"]
