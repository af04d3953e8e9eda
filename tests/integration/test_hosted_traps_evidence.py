"""One answer is not proof: batches that are not known for a while, files that come late, grow or break off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import RemoteBatch
from orchestrator.core.model import Job, RequestState
from tests.support.hostedjob import DAY, HOUR, MINUTE, Desk, all_are, cost_of, plain, row, script

AZURE = pytest.param("azure", marks=pytest.mark.soak)
EACH = ["openai", AZURE, "claude"]


def paid_once(desk: Desk, count: int) -> None:
    """Each row was billed once, and the ledger is the bill."""
    assert sorted(desk.billed().values()) == [1] * count


# --- is it gone?


@pytest.mark.long
@pytest.mark.thinned(18)
@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(("after", "seconds"), [(0.0, 45.0), (0.0, 300.0), (200.0, 1200.0)])
def test_trap_g1_a_batch_that_is_not_known_for_a_while_is_not_sent_again(
    desk: Desk, name: str, listed: bool, after: float, seconds: float
) -> None:
    desk.backend(name, poll_seconds=5)
    script(desk, "unknown_for", after=after, seconds=seconds, listed=listed)
    script(desk, "turnaround", seconds=3000.0)
    job = desk.submit(plain(4))
    for _ in range(90):
        desk.later(20, job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 4)
    assert len(desk.batches()) == 1
    paid_once(desk, 4)


def test_trap_g1_one_404_is_told_with_when_it_would_count_as_gone(desk: Desk) -> None:
    desk.backend(poll_seconds=5)
    script(desk, "unknown_for", after=60.0, seconds=600.0, listed=False)
    job = desk.submit(plain(2))
    desk.settle(job)
    desk.later(70, job)
    [held] = desk.held(job)
    assert held.startswith("openai has said since 00:01 UTC that it does not know the batch; it counts as gone")
    assert held.endswith(" at 00:31 UTC unless it reappears")
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 2)


def test_trap_g1_a_batch_that_only_its_list_shows_is_followed_there(desk: Desk) -> None:
    script(desk, "unknown_for", after=0.0, seconds=90 * DAY, listed=True)
    job = desk.submit(plain(3))
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1


@pytest.mark.long
def test_trap_g1_where_its_list_cannot_be_read_a_404_needs_longer_to_be_believed(desk: Desk) -> None:
    desk.backend(poll_seconds=60)
    script(desk, "unknown_for", after=60.0, seconds=5 * HOUR, listed=False)
    script(desk, "status", status=500, verb="list", times=None)
    job = desk.submit(plain(3))
    for _ in range(60):
        desk.later(6 * MINUTE, job)
    desk.provider.clear()
    desk.finish(job)
    assert len(desk.batches()) == 1
    paid_once(desk, 3)


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", EACH)
def test_trap_g1_a_batch_that_comes_back_after_it_was_given_up_is_taken_or_booked(desk: Desk, name: str) -> None:
    desk.backend(name, poll_seconds=5)
    script(desk, "unknown_for", after=60.0, seconds=2 * HOUR, listed=False)
    desk.provider.settings(turnaround_s=[3 * HOUR, 3 * HOUR])
    job = desk.submit(plain(4))
    for _ in range(60):
        desk.later(2 * MINUTE, job)
    assert desk.events(job, "ended")[0].startswith("the batch is considered gone: ")
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 4)
    for _ in range(40):
        desk.later(30 * MINUTE)
    assert len(desk.batches()) == 2
    # It ran for a while before it was asked to end; every row that it answered is booked, wanted or not.
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert len(desk.events(job, "late")) == 1


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", EACH)
def test_trap_g1_a_batch_that_cannot_be_retrieved_is_followed_in_the_list(desk: Desk, name: str) -> None:
    desk.backend(name)
    script(desk, "status", verb="retrieve", status=500, times=None)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1
    paid_once(desk, 3)


# --- late is not lost


@pytest.mark.long
@pytest.mark.thinned(10)
@pytest.mark.parametrize("name", ["openai", AZURE])
@pytest.mark.parametrize(("fault", "facts"), [
    ("late_output_id", {"seconds": 5 * HOUR}),
    ("late_content", {"seconds": 5 * HOUR}),
    ("grows", {"seconds": 3 * HOUR, "told": "whole"}),
    ("grows", {"seconds": 3 * HOUR, "told": "part"}),
    ("grows", {"seconds": 3 * HOUR, "told": "none", "share": 0.0}),
], ids=lambda value: value if isinstance(value, str) else value.get("told", ""))  # fmt: skip
def test_trap_g2_answers_that_exist_are_waited_for_and_paid_once(
    desk: Desk, name: str, fault: str, facts: dict[str, Any]
) -> None:
    desk.backend(name)
    script(desk, fault, **facts)
    job = desk.submit(plain(40))
    for _ in range(60):
        desk.later(6 * MINUTE, job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 40)
    assert len(desk.batches()) == 1
    paid_once(desk, 40)
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", ["late_content", "grows"])
def test_trap_g2_results_of_anthropic_that_come_late_are_waited_for(desk: Desk, fault: str) -> None:
    desk.backend("claude")
    script(desk, fault, seconds=2 * HOUR)
    job = desk.submit(plain(12))
    for _ in range(40):
        desk.later(6 * MINUTE, job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 12)
    paid_once(desk, 12)


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("fault", [{"status": 503}, {"do": "cut_body", "share": 0.3}])
@pytest.mark.parametrize("deadline", [None, "10h"])
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "asleep"])
def test_trap_g2_one_failed_look_behind_a_wait_that_nobody_watched_pays_for_no_row_again(
    desk: Desk, fault: dict[str, Any], deadline: str | None, is_killed: bool
) -> None:
    lasting: dict[str, Any] = {"do": "status", "match": {"verb": "content"}, "times": None}
    desk.provider.script(lasting | fault | {"lasts": 3 * DAY})
    job = desk.submit(plain(3), deadline=deadline)
    for _ in range(12):
        desk.later(2 * MINUTE, job)
    assert desk.states(job) == ["ended (completed)"]
    desk.provider.clock.advance(3 * DAY - 20 * MINUTE)
    if is_killed:
        desk.start_anew()
    for _ in range(60):
        desk.later(30.0, job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1
    paid_once(desk, 3)
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_g2_what_is_waited_for_is_said_with_its_end(desk: Desk) -> None:
    script(desk, "grows", seconds=5 * HOUR, share=0.25, told="whole")
    job = desk.submit(plain(8))
    desk.settle(job)
    desk.later(HOUR, job)
    [held] = desk.held(job)
    assert "its files have " in held
    assert " of 8 rows and " in held
    assert " bytes; waiting until Wed " in held
    assert desk.states(job) == ["ended (completed)"]


def _without_counts(desk: Desk, late: float) -> Job:
    """Submit five rows, due in 70 minutes, whose batch ends at once without counts and names its files so late."""
    script(desk, "no_counts", times=None)
    script(desk, "late_output_id", seconds=late)
    script(desk, "turnaround", seconds=60.0)
    job = desk.submit(plain(5), deadline="70m")
    for _ in range(5):
        desk.later(10 * MINUTE, job)
    return job


@pytest.mark.long
def test_files_that_a_batch_without_counts_names_hours_later_are_taken_then(desk: Desk) -> None:
    job = _without_counts(desk, 3 * HOUR)
    [held] = desk.held(job)
    assert held.startswith("the batch is completed, and names no file with its answers; waiting until Wed ")
    assert "Rows without an answer are then asked again" in held
    for _ in range(18):
        desk.later(10 * MINUTE, job)
    assert desk.states(job) == ["collected (completed)"]
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 5)
    paid_once(desk, 5)


def test_the_wait_for_files_ends_as_status_says(desk: Desk) -> None:
    job = _without_counts(desk, 90 * DAY)
    [held] = desk.held(job)
    assert f"`orch cancel {job.id}`, then `orch retry {job.id}`, asks them sooner" in held
    desk.cancel(job)
    for _ in range(4):
        desk.later(10 * MINUTE, job)
    assert desk.is_over(job)
    assert desk.store.rows.retry(job.id, [RequestState.FAILED, RequestState.CANCELLED]) == 5
    desk.later(MINUTE, job)
    assert len(desk.batches()) == 2


@pytest.mark.thinned(24)
@pytest.mark.parametrize(
    ("do", "facts"),
    [
        ("short_body", {"share": 0.6}),
        ("cut_body", {"share": 0.6}),
        ("short_length", {}),
        ("long_length", {}),
        ("html_page", {}),
        ("empty_body", {}),
        ("error_object", {}),
        ("half_json", {}),
        ("status", {"status": 502}),
        ("status", {"status": 404}),
        ("bare_status", {"status": 404}),
        ("reset_before", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.get("status", "")),
)
@pytest.mark.parametrize("name", ["openai", pytest.param("claude", marks=pytest.mark.soak)])
def test_trap_g2_a_content_that_is_not_whole_for_an_hour_is_read_until_it_is(
    desk: Desk, name: str, do: str, facts: dict[str, Any]
) -> None:
    desk.backend(name)
    verb = "results" if name == "claude" else "content"
    desk.provider.script({"do": do, "match": {"verb": verb}, "lasts": HOUR, **facts})
    job = desk.submit(plain(10))
    for _ in range(40):
        desk.later(5 * MINUTE, job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 10)
    assert len(desk.batches()) == 1
    paid_once(desk, 10)
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["openai", "azure"])
def test_trap_g2_a_batch_that_did_nothing_gives_its_rows_back_within_the_hour(desk_on_each: Desk, name: str) -> None:
    desk = desk_on_each
    desk.backend(name)
    script(desk, "does_nothing")
    script(desk, "turnaround", seconds=60.0)
    job = desk.submit(plain(5))
    desk.later(10 * MINUTE, job)
    desk.later(10 * MINUTE, job)
    [held] = desk.held(job)
    assert held.startswith(f"{name} says that the batch is completed, with 0 of 5 rows, no usage and empty")
    desk.later(30 * MINUTE, job)
    assert len(desk.batches()) == 1, "its files may be late"
    for _ in range(4):
        desk.later(10 * MINUTE, job)
    assert len(desk.batches()) == 2
    assert desk.uncertain(job) > 0
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 5)
    paid_once(desk, 5)
    assert desk.cost(job) - desk.uncertain(job) == cost_of(desk.provider.bill())


@pytest.mark.long
def test_trap_g2_a_batch_that_did_nothing_is_given_up_sooner_where_files_are_never_late(desk: Desk) -> None:
    desk.run(plain(2))
    script(desk, "does_nothing")
    job = desk.submit([row(f"again{number}") for number in range(3)])
    for _ in range(3):
        desk.later(15 * MINUTE, job)
    assert len(desk.batches()) == 3
    desk.finish(job)
    assert desk.ends(job) == {f"again{number}": "succeeded" for number in range(3)}


def test_trap_g2_a_file_whose_length_is_told_wrong_for_ever_is_believed_by_its_rows(desk: Desk) -> None:
    script(desk, "long_length", verb="content", times=None)
    job = desk.run(plain(10))
    assert desk.ends(job) == all_are("succeeded", 10)
    assert len(desk.batches()) == 1


def test_trap_g2_a_later_reading_that_is_shorter_replaces_nothing(desk: Desk) -> None:
    script(desk, "grows", seconds=HOUR, share=0.5)
    job = desk.submit(plain(10))
    desk.settle(job)
    desk.later(12 * MINUTE, job)
    assert desk.states(job) == ["ended (completed)"]
    script(desk, "short_body", verb="content", share=0.1, times=2)
    script(desk, "html_page", verb="content", nth=3, times=2)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 10)
    assert len(desk.batches()) == 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["openai", AZURE])
def test_trap_g2_files_that_come_after_their_rows_were_asked_again_are_booked(desk: Desk, name: str) -> None:
    desk.backend(name)
    script(desk, "late_output_id", seconds=26 * HOUR)
    job = desk.submit(plain(5))
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 5)
    assert len(desk.batches()) == 2
    for _ in range(48):
        desk.later(HOUR)
    assert desk.events(job, "late") == ["5 came too late for their rows, and are booked"]
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert desk.files() == []


@pytest.mark.long
def test_trap_g2_late_answers_are_taken_where_their_rows_still_wait(desk: Desk) -> None:
    script(desk, "late_output_id", seconds=28 * HOUR)
    job = desk.submit(plain(5))
    desk.settle(job)
    desk.later(HOUR, job)
    script(desk, "status", verb="upload", status=500, times=None)
    for _ in range(30):
        desk.later(HOUR, job)
    assert desk.ends(job) == all_are("succeeded", 5)
    assert desk.events(job, "late") == ["5 answers arrived after all"]
    assert len(desk.batches()) == 1
    paid_once(desk, 5)
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.thinned(18)
@pytest.mark.parametrize(
    "fault", ["lagging_counts", "shrinking_counts", "backwards", "swapped", "no_size", "wrong_size"]
)
@pytest.mark.parametrize("name", EACH)
def test_trap_g2_counts_and_sizes_that_are_wrong_cost_nothing(desk: Desk, name: str, fault: str) -> None:
    desk.backend(name)
    script(desk, fault)
    job = desk.run(plain(6))
    assert desk.ends(job) == all_are("succeeded", 6)
    assert len(desk.batches()) == 1
    paid_once(desk, 6)


@pytest.mark.long
def test_trap_g2_rows_are_taken_elsewhere_in_time_while_their_answers_are_waited_for(desk: Desk) -> None:
    """The deadline decides for how long."""
    desk.backends({"openai": {}, "azure": {}})
    desk.provider.script({"do": "late_output_id", "seconds": 30 * DAY, "match": {"flavour": "openai"}})
    job = desk.submit(plain(4), deadline="10h")
    for _ in range(100):
        desk.later(6 * MINUTE, job)
        if desk.is_over(job):
            break
    assert desk.ends(job) == all_are("succeeded", 4)


def test_trap_g2_a_file_of_another_length_than_is_told_is_not_taken_for_whole(desk: Desk) -> None:
    """What is longer than its backend says may grow still, as what is shorter."""
    script(desk, "grows", seconds=2 * HOUR, share=0.4, told="part")
    desk.provider.script({"do": "blank_lines", "match": {"verb": "content"}, "times": None})
    job = desk.submit(plain(10))
    for _ in range(12):
        desk.later(5 * MINUTE, job)
    [held] = desk.held(job)
    assert " of 10 rows, and may grow; waiting until Wed 00:" in held
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 10)
    assert len(desk.batches()) == 1
    paid_once(desk, 10)


@pytest.mark.soak
def test_trap_g2_a_file_that_has_grown_is_not_taken_for_whole_when_it_pauses(desk: Desk) -> None:
    """Its backend told what was written by then as its size: it will again, however long the next row takes."""
    script(desk, "grows", seconds=3 * HOUR, share=0.0, told="part")
    job = desk.submit(plain(4))
    for _ in range(60):
        desk.later(6 * MINUTE, job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 4)
    paid_once(desk, 4)


@pytest.mark.long
@pytest.mark.parametrize(("name", "hours"), [("openai", 30), ("fireworks", 8 * 24)])
def test_trap_g2_files_are_deleted_once_late_answers_are_given_up_though_that_fails_at_first(
    desk: Desk, name: str, hours: int
) -> None:
    """They are kept while answers may still come: at a provider that ends no batch, for a week."""
    desk.backend(name)
    job = desk.run([row("r0", "missing:1"), *plain(3)[1:]])
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.files() != []
    script(desk, "cut_before", verb="delete_file", times=2)
    for _ in range(hours):
        desk.later(HOUR)
    assert desk.files() == []
    assert desk.events(job, "left") == []


@pytest.mark.long
def test_trap_g2_a_failed_look_does_not_end_the_wait_for_late_answers(desk: Desk) -> None:
    """A provider that ends no batch answers a week later, however often it was away meanwhile."""
    desk.backend("fireworks")
    script(desk, "late_output_id", seconds=5 * DAY)
    job = desk.submit(plain(3))
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 2
    desk.later(3 * DAY)
    script(desk, "status", verb="retrieve", status=500, nth=sum(desk.provider.calls("retrieve").values()) + 1)
    for _ in range(5 * 24):
        desk.later(HOUR)
    assert desk.events(job, "late") == ["3 came too late for their rows, and are booked"]
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", EACH)
def test_trap_g2_a_file_that_grows_after_it_was_given_up_is_booked(desk: Desk, name: str) -> None:
    desk.backend(name)
    script(desk, "grows", seconds=40 * HOUR, share=0.4, told="none")
    job = desk.submit(plain(5))
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 5)
    assert len(desk.batches()) == 2
    for _ in range(48):
        desk.later(HOUR)
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert desk.files() == []
    assert desk.inputs(job) == []


def test_trap_g2_a_shard_that_is_given_up_earlier_in_a_round_is_not_sent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As late answers for its rows do it."""
    desk.backend(limits={"max_rows": 4, "batches_per_hour": 1})
    job = desk.submit(plain(8))
    desk.settle(job)
    assert desk.daemon is not None
    api = desk.daemon.open("openai").api
    retrieve = api.retrieve

    def dissolving(batch_id: str) -> RemoteBatch | None:
        shard = desk.store.shards.of_job(job.id)[1]
        if shard.state == "pending":
            desk.store.shards.dissolve(shard, "its rows are answered")
        return retrieve(batch_id)

    monkeypatch.setattr(api, "retrieve", dissolving)
    # Now the first batch is looked at, and the second may be sent.
    desk.later(61 * MINUTE, job)
    desk.finish(job)
    desk.later(2 * MINUTE)
    assert desk.states(job) == ["collected (completed)", "cancelled (None)", "collected (completed)"]
    assert desk.ends(job) == all_are("succeeded", 8)
    assert (desk.files(), desk.inputs(job)) == ([], [])


def test_trap_g2_a_shard_that_is_given_up_while_it_is_uploaded_leaves_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are made beside the daemon: its rows may have got their answers meanwhile."""
    assert desk.daemon is not None
    job = desk.submit(plain(3))
    api = desk.daemon.open("openai").api
    upload = api.upload

    def dissolved(path: Path, name: str) -> str:
        file_id = upload(path, name)
        shard, *others = desk.store.shards.of_job(job.id)
        if not others and shard.state == "pending":
            desk.store.shards.dissolve(shard, "its rows are answered")
        return file_id

    monkeypatch.setattr(api, "upload", dissolved)
    desk.finish(job)
    desk.later(2 * MINUTE)
    assert desk.states(job) == ["cancelled (None)", "collected (completed)"]
    assert desk.ends(job) == all_are("succeeded", 3)
    assert (desk.files(), desk.inputs(job)) == ([], [])


# --- nothing to wait for


@pytest.mark.parametrize("name", ["openai", AZURE])
def test_trap_g3_a_batch_that_is_cancelled_before_it_began_is_collected_at_once(desk: Desk, name: str) -> None:
    desk.backend(name, poll_seconds=1)
    script(desk, "stuck_validating")
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.later(MINUTE, job)
    desk.cancel(job)
    desk.settle(job)
    assert desk.provider.calls("cancel") == {200: 1}
    desk.later(61, job)
    assert desk.ends(job) == all_are("cancelled: cancelled", 3)
    assert desk.states(job) == ["collected (cancelled)"]


def test_trap_g3_a_batch_that_began_and_counts_nothing_is_looked_at_once_more(desk: Desk) -> None:
    desk.backend(poll_seconds=1)
    desk.provider.settings(turnaround_s=[DAY, DAY])
    job = desk.submit(plain(3))
    desk.settle(job)
    for _ in range(5):
        desk.later(30, job)
    assert desk.states(job) == ["submitted (in_progress)"]
    desk.cancel(job)
    desk.settle(job)
    for _ in range(6):
        desk.later(30, job)
    assert desk.states(job) == ["collected (cancelled)"]
