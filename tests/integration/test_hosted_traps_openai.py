"""What befalls a batch at OpenAI, through the whole pipeline: each trap by its name, and what a user sees of it."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from tests.emulator.clock import ClockFile
from tests.support.hostedjob import DAY, HOUR, KEY, MINUTE, Desk, all_are, cost_of, plain, row, script

# --- ends of a batch


@pytest.mark.long
def test_trap_a5_an_expired_batch_keeps_its_paid_rows_and_only_the_leftovers_are_sent_again(desk: Desk) -> None:
    script(desk, "expires", share=0.5)
    job = desk.run(plain(10))
    assert desk.ends(job) == all_are("succeeded", 10)
    assert [batch["rows"] for batch in desk.batches()] == [10, 5]
    assert desk.billed() == dict.fromkeys(all_are("", 10), 1)
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert set(desk.attempts(job).values()) == {1}, "no row is to blame for a batch that expired"
    assert desk.events(job, "ended") == ["the batch is expired", "the batch is completed"]
    assert desk.events(job, "collected")[0] == "5 succeeded, 5 continue in another batch"


@pytest.mark.soak
def test_trap_1_14_a_batch_that_expires_again_and_again_is_sent_again_and_again(desk: Desk) -> None:
    script(desk, "expires", share=0.1, times=4)
    job = desk.run(plain(10))
    assert desk.ends(job) == all_are("succeeded", 10)
    assert len(desk.batches()) == 5
    assert desk.billed() == dict.fromkeys(all_are("", 10), 1)


@pytest.mark.long
def test_trap_a5_a_batch_whose_rows_all_failed_is_completed_without_an_output_file(desk: Desk) -> None:
    job = desk.run([row(f"r{number}", "content_filter") for number in range(3)])
    assert desk.ends(job) == all_are("failed: content_filter", 3)
    assert desk.states(job) == ["collected (completed)"]
    assert [file["name"] for file in desk.provider.state()["files"]][1:] == [f"{desk.batches()[0]['id']}_error.jsonl"]
    assert desk.cost(job) == 0


def test_trap_1_37_a_batch_that_is_completed_before_its_files_are_named_is_waited_for(desk: Desk) -> None:
    script(desk, "late_output_id", seconds=500.0)
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.later(900, job)
    assert desk.states(job) == ["submitted (completed)"]
    [held] = desk.held(job)
    assert held.startswith("the batch is completed and counts 3 answers; its output file is not named yet; waiting")
    assert " until Wed 00:15 UTC. Rows without an answer are then asked again" in held
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.cost(job) == cost_of(desk.provider.bill()) > 0


@pytest.mark.long
def test_trap_1_37_files_that_are_never_named_are_missing_at_last_and_the_rows_go_on(desk: Desk) -> None:
    script(desk, "late_output_id", seconds=90 * DAY)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 2
    assert set(desk.attempts(job).values()) == {2}


def test_trap_a5_a_cancelled_job_keeps_what_its_batch_had_done(desk: Desk) -> None:
    job = desk.submit(plain(10))
    desk.settle(job)
    desk.later(330, job)
    desk.cancel(job)
    desk.finish(job)
    ends = list(desk.ends(job).values())
    assert (ends.count("succeeded"), ends.count("cancelled: cancelled")) == (5, 5)
    assert desk.cost(job) == cost_of(desk.provider.bill()) > 0
    assert desk.detail(job)["state"] == "cancelled"


def test_trap_a5_the_cancel_race_rows_that_were_billed_and_are_in_no_file_are_not_guessed_at(desk: Desk) -> None:
    script(desk, "cancel_race", drop=1, billed=True)
    job = desk.submit(plain(10))
    desk.settle(job)
    desk.later(330, job)
    desk.cancel(job)
    desk.finish(job)
    ends = list(desk.ends(job).values())
    assert (ends.count("succeeded"), ends.count("cancelled: cancelled")) == (4, 6)
    assert sum(desk.billed().values()) == 5, "one that only the provider knows of"
    assert 0 < desk.cost(job) < cost_of(desk.provider.bill())


def test_trap_a5_a_batch_that_was_completed_before_the_cancel_came_is_collected(desk: Desk) -> None:
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.provider.clock.advance(HOUR)
    desk.cancel(job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.states(job) == ["collected (completed)"]


def test_trap_a5_a_batch_that_ends_between_the_look_and_the_cancel_is_collected(desk: Desk) -> None:
    message = "Cannot cancel a batch with status 'completed'."
    script(desk, "status", status=409, verb="cancel", message=message, times=None)
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.cancel(job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.states(job) == ["collected (completed)"]


def test_trap_a5_a_provider_that_is_slow_to_say_cancelling_is_not_asked_without_a_pause(desk: Desk) -> None:
    script(desk, "status", status=409, verb="cancel", message="It is busy ending.", times=None)
    job = desk.submit(plain(3))
    desk.settle(job)
    polls = desk.provider.calls("retrieve")[200]
    desk.cancel(job)
    for _ in range(10):
        desk.settle(job)
    assert desk.provider.calls("cancel") == {409: 1}
    assert desk.provider.calls("retrieve") == {200: polls + 1}


def test_trap_a5_a_batch_that_stays_cancelling_is_told_and_still_collected(desk: Desk) -> None:
    desk.backend(poll_seconds=1)
    script(desk, "slow_cancel", seconds=2 * HOUR)
    job = desk.submit(plain(10))
    desk.settle(job)
    desk.later(330, job)
    desk.cancel(job)
    desk.settle(job)
    desk.later(MINUTE, job)
    assert desk.detail(job)["state"] == "cancelling"
    desk.later(40 * MINUTE, job)
    assert desk.held(job) == ["cancelling for 40 min; usual p90 10 min (assumed)"]
    desk.finish(job)
    assert list(desk.ends(job).values()).count("succeeded") == 5
    assert set(desk.provider.calls("cancel")) == {200}


@pytest.mark.long
def test_trap_a2_a_batch_that_has_vanished_goes_on_in_another_one(desk: Desk) -> None:
    script(desk, "vanishes", seconds=300.0)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert [batch["status"] for batch in desk.batches()] == ["gone", "completed"]
    assert "3 continue in another batch" in desk.events(job, "collected")[0]
    assert set(desk.attempts(job).values()) == {2}


@pytest.mark.long
def test_trap_a2_batches_that_vanish_every_time_are_given_up(desk: Desk) -> None:
    script(desk, "vanishes", seconds=300.0, times=None)
    job = desk.run(plain(2))
    assert desk.ends(job) == all_are("failed: missing_result", 2)
    assert len(desk.batches()) == 3
    assert desk.rows(job)["r0"]["error"]["message"] == "3 batches came back without a result for this row"


# --- states that a person understands


def usual_batches(desk: Desk, number: int = 5) -> None:
    """A history: validated in three minutes, over in an hour."""
    desk.provider.settings(validating_s=[180, 180], turnaround_s=[3400, 3400], finalizing_s=[10, 10])
    jobs = [desk.submit(plain(1)) for _ in range(number)]
    for job in jobs:
        desk.settle(job)
    for seconds in (180, 3420):
        desk.later(seconds, *jobs)
    desk.finish(*jobs)


@pytest.mark.long
def test_trap_1_16_a_batch_stuck_in_validating_is_told_beside_what_is_usual(desk: Desk) -> None:
    desk.backend(poll_seconds=1)
    usual_batches(desk)
    script(desk, "stuck_validating")
    job = desk.submit(plain(2))
    desk.settle(job)
    desk.later(5 * MINUTE, job)
    assert desk.held(job) == []
    desk.later(36 * MINUTE, job)
    assert desk.held(job) == ["validating for 41 min; usual p90 3 min"]
    assert [one["held_code"] for one in desk.detail(job)["shards"]] == ["slow"]
    assert desk.events(job, "held") == ["validating for 41 min; usual p90 3 min"]
    assert desk.states(job) == ["submitted (validating)"]


@pytest.mark.soak
def test_trap_1_17_a_batch_that_hangs_is_told_from_one_that_gets_on(desk: Desk) -> None:
    desk.backend(poll_seconds=1)
    usual_batches(desk)
    script(desk, "stuck_in_progress", share=0.5)
    job = desk.submit(plain(4))
    desk.settle(job)
    for _ in range(40):
        desk.later(2 * MINUTE, job)
    assert desk.detail(job)["requests"]["done"] == 2
    [held] = desk.held(job)
    assert re.fullmatch(
        r"in progress for 1 h 1\d min with no further row for 4\d min; usual p90 of the whole 1 h", held
    )


@pytest.mark.long
def test_trap_1_14_a_batch_that_hangs_for_its_whole_window_expires_and_is_salvaged(desk: Desk) -> None:
    script(desk, "stuck_in_progress", share=0.5)
    job = desk.run(plain(4))
    assert desk.ends(job) == all_are("succeeded", 4)
    assert [batch["status"] for batch in desk.batches()] == ["expired", "completed"]
    assert desk.billed() == dict.fromkeys(all_are("", 4), 1)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_trap_a0_a_provider_that_is_away_is_told_and_asked_with_pauses(desk: Desk, status: int) -> None:
    job = desk.submit(plain(3))
    desk.settle(job)
    script(desk, "status", status=status, verb="retrieve", times=4)
    desk.provider.clock.advance(5 * MINUTE)
    for _ in range(10):
        desk.settle(job)
    assert desk.provider.calls("retrieve")[status] == 1
    assert desk.held(job)[0].startswith("openai: cannot retrieve batch_")
    assert [one["held_code"] for one in desk.detail(job)["shards"]] == ["unreachable" if status == 500 else "busy"]
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.events(job, "held")) == 1


def test_trap_1_36_a_batch_whose_results_cannot_be_read_keeps_no_other_waiting(desk: Desk) -> None:
    desk.backend(limits={"max_rows": 2})
    job = desk.submit(plain(4))
    desk.settle(job)
    script(desk, "status", status=500, verb="content", nth=1, times=8)
    for _ in range(3):
        desk.later(10 * MINUTE, job)
    assert desk.provider.calls("content")[500] < 8
    assert len(desk.held(job)) == 2, "each of them is tried, and says what it waits for"
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 4)


# --- paid once


@pytest.mark.thinned(2)
@pytest.mark.parametrize("do", ["cut_after", "hang_after"])
def test_trap_a0_a_create_without_an_answer_is_not_made_twice(desk: Desk, do: str) -> None:
    desk.backend(request_timeout=3.0)
    script(desk, do, verb="create")
    job = desk.submit(plain(3))
    desk.settle(job)
    assert desk.states(job) == ["submitting (None)"]
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1
    assert desk.events(job, "recovered") == [f"batch {desk.batches()[0]['id']} belongs to this shard: adopted"]


def test_trap_1_7_an_orphan_that_a_listing_does_not_show_yet_is_waited_for(desk: Desk) -> None:
    script(desk, "hidden", seconds=300.0)
    script(desk, "cut_after", verb="create")
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.settle(job)  # the first look
    desk.later(MINUTE, job)
    [held] = desk.held(job)
    assert held == "it was created without a confirmation; by 00:10 UTC it shows whether the batch exists"
    desk.finish(job)
    assert len(desk.batches()) == 1
    assert desk.billed() == dict.fromkeys(all_are("", 3), 1)


@pytest.mark.parametrize(
    ("off", "is_killed"), [(-2 * HOUR, True), (-2 * HOUR, False), (-3 * DAY, True), (3 * DAY, True)]
)
def test_trap_1_7_a_listing_is_waited_for_though_this_machines_clock_was_wrong(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, off: float, is_killed: bool
) -> None:
    desk.backend(poll_seconds=10)
    wrong = ClockFile(desk.folder / "wrong-clock.json", desk.provider.clock.now() + timedelta(seconds=off))
    script(desk, "hidden", seconds=440.0)
    script(desk, "no_metadata", verb="list", times=None)
    script(desk, "cut_after", verb="create")
    with monkeypatch.context() as here:
        here.setenv("ORCH_CLOCK", str(wrong.path))
        job = desk.submit(plain(3))
        desk.settle(job)
    assert desk.states(job) == ["submitting (None)"]
    if is_killed:
        desk.start_anew()
    for _ in range(20):
        desk.later(30.0, job)
    desk.finish(job)
    assert len(desk.batches()) == 1
    assert desk.billed() == dict.fromkeys(all_are("", 3), 1)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", ["cut_before", "status"])
def test_trap_a0_a_create_that_a_gateway_lost_is_sent_again_once_no_orphan_can_show(desk: Desk, fault: str) -> None:
    script(desk, fault, verb="create", **({"status": 502} if fault == "status" else {}))
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.later(5 * MINUTE, job)
    assert desk.states(job) == ["submitting (None)"]
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.events(job, "recovered") == ["no batch belongs to this shard: it is submitted again"]
    assert len(desk.batches()) == 1


def test_trap_1_5_a_batch_carries_the_id_of_its_shard_within_what_metadata_may_hold(desk: Desk) -> None:
    job = desk.run(plain(1))
    [batch] = desk.batches()
    assert batch["metadata"] == {"orch_shard": f"{job.id}.001", "orch_home": job.home}
    assert len(batch["metadata"]["orch_shard"]) <= 512


def test_trap_1_8_a_batch_is_not_asked_for_with_the_key_of_another_account(desk: Desk) -> None:
    job = desk.submit(plain(3))
    desk.settle(job)
    account = desk.detail(job)["shards"][0]["account"]
    looked = desk.provider.calls("retrieve")
    desk.key("openai", "sk-somebody-elses")
    desk.start_anew()
    desk.later(HOUR, job)
    assert desk.states(job) == ["submitted (validating)"]
    assert desk.said[-1].startswith(f"batch {desk.batches()[0]['id']} was made by the account {account} of openai; ")
    assert "which cannot see it" in desk.said[-1]
    assert "sk-somebody-elses" not in desk.said[-1]
    assert desk.provider.calls("retrieve") == looked
    desk.key("openai", KEY)
    desk.start_anew()
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1


def test_trap_1_8_an_orphan_is_not_looked_for_with_the_key_of_another_account(desk: Desk) -> None:
    """Which would not see it, and would send its rows once more."""
    script(desk, "cut_after", verb="create")
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.key("openai", "sk-somebody-elses")
    desk.start_anew()
    desk.later(HOUR, job)
    assert desk.said[-1].startswith(f"the batch of {job.id}.001 was made by the account org:")
    assert len(desk.batches()) == 1
    desk.key("openai", KEY)
    desk.start_anew()
    desk.finish(job)
    assert desk.billed() == dict.fromkeys(all_are("", 3), 1)
