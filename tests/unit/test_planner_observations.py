"""What is made of the times that shards carry: cancels, silence, finishes, starts, what other jobs may need."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.engines import EngineHold
from orchestrator.core.model import Job, JobId, JobKind, ProgressSample
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.policy.forecast import Assumed
from orchestrator.policy.planner import observations
from orchestrator.policy.planner.stints import Sight, stints_of
from orchestrator.policy.planner.token_weights import exclusive_work
from tests.unit.test_planner import batch

NOW = datetime(2026, 11, 21, 20, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def shard(job: str = "mine", backend: str = "openai", **facts: object) -> Shard:
    """A batch of a hundred rows that runs."""
    given = {"state": ShardState.SUBMITTED, "submitted_at": NOW - 30 * MINUTE, **facts}
    return Shard(
        ShardId(f"{job}.{id(facts)}"), JobId(job), 1, backend, "/v1", "m", given.pop("state"), "", 100, 0,
        NOW - 31 * MINUTE, **given,
    )  # fmt: skip  # type: ignore[arg-type]


def cancelled(ago: timedelta, took: timedelta, **facts: object) -> Shard:
    begin = NOW - ago
    given = {"submitted_at": begin - MINUTE, **facts}
    return shard(
        state=ShardState.CANCELLED, rerouted_at=begin, ended_at=begin + took,
        provider_status=BatchStatus.CANCELLED, **given,
    )  # fmt: skip


# --- cancels


def test_a_provider_of_which_no_cancel_was_seen_may_take_far_longer() -> None:
    often = [cancelled(timedelta(days=day), 2 * MINUTE) for day in range(1, 20)]
    unknown, known = (observations.slips(seen, NOW, 600.0) for seen in ([], often))
    assert unknown > 0.05 > 0.01 > known


def test_one_long_cancel_is_not_learned_for_good() -> None:
    usual = [cancelled(timedelta(days=day), 2 * MINUTE) for day in range(1, 20)]
    before = observations.cancel_seconds(usual, NOW)
    odd = [*usual, cancelled(timedelta(hours=1), timedelta(hours=5))]
    at_once = observations.cancel_seconds(odd, NOW)
    later = observations.cancel_seconds(odd, NOW + timedelta(days=60))
    assert before < 600
    assert at_once < 1800, "one that stands out is not believed as it is"
    assert later <= at_once


def test_cancels_that_are_always_slow_are_learned() -> None:
    slow = [cancelled(timedelta(days=day), 40 * MINUTE) for day in range(1, 20)]
    assert observations.cancel_seconds(slow, NOW) >= 40 * 60


def test_a_batch_that_was_done_before_it_was_cancelled_says_nothing_of_cancels() -> None:
    done = cancelled(timedelta(hours=2), timedelta(hours=1))
    done = shard(
        state=ShardState.COLLECTED, rerouted_at=done.rerouted_at, ended_at=done.ended_at,
        provider_status=BatchStatus.COMPLETED,
    )  # fmt: skip
    assert observations.cancel_seconds([done] * 20, NOW) == observations.cancel_seconds([], NOW)


def test_half_of_all_cancels_take_no_longer_than_usual() -> None:
    seen = [cancelled(timedelta(days=day), (5 if day % 3 else 40) * MINUTE) for day in range(1, 20)]
    assert observations.median_cancel(seen, NOW) < 15 * 60 < observations.cancel_seconds(seen, NOW)
    assert observations.median_cancel([], NOW) < observations.cancel_seconds([], NOW)
    silent = shard(seen_at=NOW - timedelta(hours=2))
    assert observations.median_cancel([*seen, silent], NOW) == observations.GIVEN_UP


def test_nobody_waits_for_a_cancel_at_a_silent_provider() -> None:
    silent = [shard(seen_at=NOW - timedelta(hours=2))]
    wait = observations.seconds_until_free(silent, NOW)
    assert (
        observations.slips(silent, NOW, wait)
        < 0.01
        < observations.slips([], NOW, observations.seconds_until_free([], NOW))
    )


def test_a_batch_given_up_in_silence_says_nothing_of_cancels_and_may_have_ended() -> None:
    began = NOW - timedelta(days=1)
    given_up = cancelled(timedelta(hours=18), 2 * MINUTE, seen_at=NOW - timedelta(hours=23), submitted_at=began)
    assert observations.cancel_seconds([given_up] * 20, NOW) == observations.cancel_seconds([], NOW)
    running = shard(seen_at=NOW - timedelta(hours=23), submitted_at=began)
    for one in (given_up, running):
        known, unknown = (observations.turnaround(Sight("openai", seen), 100, NOW) for seen in ([one], []))
        assert known.by(6 * 3600.0) > unknown.by(6 * 3600.0) - 0.1, "it was seen to run for an hour, not for longer"


@pytest.mark.parametrize(
    ("facts", "last"),
    [
        ({}, timedelta()),
        ({"state": ShardState.COLLECTED, "ended_at": NOW - timedelta(days=9)}, timedelta(days=9)),
        ({"state": ShardState.CANCELLED, "ended_at": NOW - timedelta(days=2)}, timedelta(days=2)),
    ],
    ids=["it runs", "collected", "cancelled"],
)
def test_when_a_backend_had_rows_last(facts: dict[str, object], last: timedelta) -> None:
    older = shard(state=ShardState.COLLECTED, ended_at=NOW - timedelta(days=30))
    assert observations.last_used(Sight("openai", [older, shard(**facts)]), NOW) == NOW - last
    assert observations.last_used(Sight("openai", []), NOW) is None


def test_batches_that_are_cancelled_together_count_once() -> None:
    one = [cancelled(timedelta(hours=3), 50 * MINUTE)]
    many = [cancelled(timedelta(hours=3), 50 * MINUTE) for _ in range(50)]
    assert observations.cancel_seconds(many, NOW) == observations.cancel_seconds(one, NOW)


# --- silence


def test_a_provider_that_has_not_answered_for_long_is_silent() -> None:
    seen = NOW - timedelta(hours=2)
    assert observations.silence([shard(seen_at=seen)], NOW) == 7200.0


@pytest.mark.parametrize(
    "shards",
    [
        [],
        [shard(seen_at=NOW - MINUTE)],
        [shard(seen_at=NOW - timedelta(hours=2)), shard(seen_at=NOW - MINUTE)],
        [shard(state=ShardState.COLLECTED, seen_at=NOW - timedelta(hours=2))],
    ],
    ids=["nothing is there", "it answers", "it answers for another batch", "nothing is asked of it"],
)
def test_one_that_is_not_asked_or_answers_is_not(shards: list[Shard]) -> None:
    assert observations.silence(shards, NOW) == 0.0


# --- finishes


def test_the_margin_is_learned_from_how_long_jobs_take_to_finish() -> None:
    quick = [
        (1000, NOW - timedelta(days=day), NOW - timedelta(days=day) + timedelta(seconds=3)) for day in range(1, 15)
    ]
    slow = [(1000, last, last + 10 * MINUTE) for _, last, _ in quick]
    unknown = observations.finish_seconds([], 1000, NOW)
    assert observations.finish_seconds(quick, 1000, NOW) <= unknown < observations.finish_seconds(slow, 1000, NOW)
    assert observations.finish_seconds(slow, 1000, NOW) >= 600
    assert observations.finish_seconds([], 1_000_000, NOW) > 5 * unknown, "more rows take longer"


# --- other jobs


def job(name: str, hours: float | None, made: int = 0) -> Job:
    deadline = None if hours is None else NOW + timedelta(hours=hours)
    return Job(JobId(name), "home", name, name, name, JobKind.BATCH, "", {}, {}, NOW + made * MINUTE, deadline)


def test_jobs_that_are_due_no_later_go_first() -> None:
    mine = job("mine", 5)
    others = [job("sooner", 4), job("together", 5), job("later", 6), job("whenever", None)]
    assert observations.goes_first([mine, *others], mine) == {"sooner", "together"}
    idle = job("idle", None, made=5)
    others = [job("older", None), job("newer", None, made=9), job("due", 20), job("due in days", 90), idle]
    assert observations.goes_first(others, idle) == {"older", "due"}
    jobs = [job("late", 5, made=1), job("soon", 31), job("due in days", 90)]
    first = observations.goes_first(jobs, job("whenever", None), NOW + timedelta(hours=30))
    assert first == {"soon"}, "what is late is done in a day, like what has no deadline"


def test_what_others_may_come_to_need_is_claimed_with_its_chance() -> None:
    deadlines = {JobId("other"): NOW + timedelta(hours=1)}
    [claim] = observations.claims(
        {JobId("other"): [shard("other")]}, deadlines, [batch(seconds=7200.0)], frozenset(), NOW
    )
    assert (claim.source, claim.rows) == ("openai", 100)
    assert claim.chance > 0.5
    deadlines = {JobId("other"): NOW + timedelta(hours=20)}
    [claim] = observations.claims(
        {JobId("other"): [shard("other")]}, deadlines, [batch(seconds=600.0)], frozenset(), NOW
    )
    assert claim.chance < 0.1


def test_what_is_over_is_claimed_by_nobody() -> None:
    over = shard("other", state=ShardState.COLLECTED)
    assert observations.claims({JobId("other"): [over]}, {}, [batch()], frozenset(), NOW) == ()


def test_runs_that_cost_more_than_they_were_told_tell_what_the_next_may_cost() -> None:
    fine, dear, dearer = (2.0, 2.2, 2.1), (2.0, 2.2, 2.4), (2.0, 2.2, 3.0)
    assert observations.dearest([]) == observations.dearest([fine] * 9) == 0.0
    assert observations.dearest([fine, dear]) == pytest.approx(1.4), "the one seen is hardly the dearest"
    assert observations.dearest([dear, fine, dearer, fine]) == pytest.approx(1.75)
    assert observations.dearest([(2.0, 3.5, 3.0)]) == 0.0, "it was told"


def test_what_a_run_cost_beyond_what_it_was_told_counts_as_long_as_others_cost_about_as_much() -> None:
    fine, dear, told_of_it = (2.0, 2.2, 2.1), (2.0, 2.2, 2.6), (2.0, 3.2, 2.4)
    assert observations.dearest([*[fine] * 19, dear]) == pytest.approx(1.6)
    assert observations.dearest([*[fine] * 20, dear]) == 0.0
    assert observations.dearest([*[fine] * 19, told_of_it, *[fine] * 20, dear]) == pytest.approx(1.6)


def test_the_share_that_is_asked_once_more_follows_the_newest_runs() -> None:
    unknown = observations.reask_share([])
    often, never = observations.reask_share([(5000, 500)] * 5), observations.reask_share([(5000, 0)] * 5)
    assert never < unknown < often
    assert observations.reask_share([(5000, 0), (5000, 500)]) < observations.reask_share([(5000, 500), (5000, 0)])


# --- paces


def night_of(ago: int, rows: int, seconds: float) -> Shard:
    """A night on which an engine that was idle did so many rows, a minute and a half of which it loaded."""
    sent = NOW - timedelta(days=ago)
    return replace(
        shard(
            f"night-{ago}", "gpu", state=ShardState.COLLECTED, submitted_at=sent,
            first_at=sent + timedelta(seconds=90), ended_at=sent + timedelta(seconds=90 + seconds),
            provider_status=BatchStatus.COMPLETED, provider_completed=rows,
        ),
        rows=rows,
    )  # fmt: skip


def late_on(ago: int) -> Shard:
    """A batch of that night that was cancelled because it took too long."""
    return cancelled(timedelta(days=ago) - MINUTE, 2 * MINUTE)


@pytest.mark.parametrize(
    ("late", "rate", "chance"),
    [
        ((1, 2, 3, 4), 4.0, 4 / 6),
        ((1, 2, 3, 4, 20), 4.0, 4 / 7),
        ((1, 2, 3, 4, 25), 4.0, 4 / 6),
        ((1, 2, 3, 4), 0.2, None),
        ((20, 19), 4.0, None),
        ((), 4.0, None),
    ],
    ids=["slow", "once-as-usual", "once-not-asked", "no-slower-than-now", "as-usual", "never-late"],
)
def test_an_engine_that_was_slow_whenever_batches_were_late(
    late: tuple[int, ...], rate: float, chance: float | None
) -> None:
    nights = [night_of(ago, 2_000, 10_000.0 if ago <= 4 else 500.0) for ago in (*range(1, 5), *range(10, 21))]
    known = observations.speeds(Sight("gpu", nights), "series", NOW)
    nights_late = observations.late_nights([*(late_on(ago) for ago in late), shard()])
    found = observations.slow_with({"openai": nights_late}, known, rate)
    assert found == ({} if chance is None else {"openai": pytest.approx((chance, 0.2 / rate), rel=0.02)})


def test_a_few_rows_that_waited_for_an_engine_to_start_say_nothing_of_its_speed() -> None:
    """Nights on which it is the reroute that is hardly needed: a second stage, what is asked again."""
    shards = [night_of(40 - day, 4_000, 4_000.0) for day in range(5)]
    shards += [night_of(30 - day, 2 + day % 3, 2.0) for day in range(30)]
    found = observations.pace(Sight("gpu", shards), observations.Asker("series"), Assumed(1.0, 0.35), 0.0, NOW)
    assert found.rate == pytest.approx(1.0, rel=0.1)
    assert found.hazard < 0.01


def test_a_job_that_was_over_between_two_looks_tells_a_speed_without_the_start() -> None:
    shards = [night_of(20 - day, 600, 600.0) for day in range(20)]
    found = observations.pace(Sight("gpu", shards), observations.Asker("series"), Assumed(9.0, 0.35), 0.0, NOW)
    assert found.rate == pytest.approx(1.0, rel=0.1)


def test_shards_that_were_done_in_turn_are_one_stretch_and_no_standstill() -> None:
    """Sent at once and done one after the other; of nights so long ago that nothing else is kept of them."""
    shards = []
    for ago in range(15, 3, -1):
        sent = NOW - timedelta(days=ago)
        for place in range(4):
            one = night_of(ago, 2_000, 250.0 * (place + 1))
            shards.append(replace(one, id=ShardId(f"{ago}.{place}"), submitted_at=sent))
    sight = Sight("gpu", shards)
    found = observations.pace(sight, observations.Asker("series"), Assumed(1.0, 0.35), 0.0, NOW)
    assert found.rate == pytest.approx(8.0, rel=0.1)
    assert found.hazard < 0.02


# --- pauses


def two_waves(day: int, pause: timedelta, rate: float = 2.0) -> tuple[list[Shard], list[ProgressSample]]:
    """A night on which a job has rows at an engine twice, for half an hour each, and is looked at once a minute."""
    begin, shards, samples, before = NOW - timedelta(days=day, hours=4), [], [], 0
    for wave in range(2):
        sent = begin + wave * (30 * MINUTE + pause)
        rows = int(rate * 1_790)
        one = night_of(day, rows, 0.0)
        shards.append(
            replace(
                one, id=ShardId(f"{day}.{wave}"), submitted_at=sent, first_at=sent,
                ended_at=sent + timedelta(seconds=rows / rate),
            )
        )  # fmt: skip
        for minute in range(30):
            done = before + int(rate * 60 * minute)
            left = before + rows - done
            samples.append(ProgressSample(one.job_id, "s", "gpu", sent + minute * MINUTE, done, left))
        before += rows
    return shards, samples


@pytest.mark.parametrize("pause", [timedelta(minutes=minutes) for minutes in (1, 5, 14, 90)], ids=str)
def test_the_pause_between_two_waves_is_neither_an_outage_nor_a_slow_hour(pause: timedelta) -> None:
    nights = [two_waves(day, pause) for day in range(12, 0, -1)]
    sight = Sight("gpu", [one for found, _ in nights for one in found], [one for _, found in nights for one in found])
    speeds = observations.speeds(sight, "s", NOW)
    assert speeds.outages == 0
    assert set(speeds.hours) == {1.0}
    found = observations.pace(sight, observations.Asker("s"), Assumed(1.0, 0.35), 0.0, NOW, speeds)
    assert found.rate == pytest.approx(2.0, rel=0.05)
    [fed] = {round(one.seconds) for one in exclusive_work(sight)}
    assert fed <= 58 * 60, "and its seconds are no work of it"


def test_a_standstill_while_rows_are_there_is_an_outage() -> None:
    """The same looks, of rows that were there all the time."""
    nights = [two_waves(day, timedelta(minutes=14)) for day in range(12, 0, -1)]
    shards = [replace(first, ended_at=second.ended_at) for (first, second), _ in nights]
    sight = Sight("gpu", shards, [one for _, found in nights for one in found])
    assert observations.speeds(sight, "s", NOW).outages > 0


# --- fleets whose engines come and go


def test_a_night_on_few_engines_says_how_fast_each_is() -> None:
    begin = NOW - timedelta(days=1)

    def held(engine: str, minutes: float, since: float = 0.0) -> EngineHold:
        warm = begin + since * MINUTE
        until = warm + minutes * MINUTE
        return EngineHold("", "c", engine, "m", 1, warm - MINUTE, until, warm, True, Decimal(1))

    night = shard(
        backend="c", state=ShardState.COLLECTED, submitted_at=begin, first_at=begin, ended_at=begin + 60 * MINUTE,
        provider_status=BatchStatus.COMPLETED, provider_completed=600,
    )  # fmt: skip

    def rows(*holds: EngineHold, most: int = 8) -> float:
        (stint,) = stints_of(Sight("c", [night], (), holds, most), "s", 0.0, NOW)
        return stint.rows

    assert rows(most=0) == 600  # of other backends nothing is known of engines
    assert rows(held("a", 60)) == pytest.approx(8 * 600)
    assert rows(held("a", 60), held("b", 60)) == pytest.approx(4 * 600)
    assert rows(held("a", 60), held("b", 30, since=30)) == pytest.approx(8 / 1.5 * 600)
    # What was held beside the stretch, or is not known, makes none faster than all of them were.
    assert rows(held("a", 60), held("b", 60, since=600)) == pytest.approx(8 * 600)
    assert rows(*(held(str(number), 60) for number in range(20))) == pytest.approx(600)


def test_what_goes_on_to_a_stronger_model_is_learned_within_a_night() -> None:
    unknown, one, many = (observations.reached_share(runs, 2000) for runs in ([], [(2000, 300)], [(2000, 300)] * 9))
    assert unknown[0] == 0.01, "assumed"
    assert 0.14 < one[0] < one[1] < 0.18
    assert abs(many[0] - 0.15) < 0.001
    assert observations.reached_share([(2000, 100), (2000, 600)], 2000)[1] >= 0.3, "a bad night is among what may be"
    assert observations.reached_share([(0, 0)], 1) == (0.01, min(1.0, observations.reached_share([], 1)[1]))


def test_what_rows_wait_at_an_engine_that_stands_still_is_no_start() -> None:
    """Its rows were taken back, and a few were sent again: their first answer comes when it works again."""

    def start(taken_back: timedelta | None) -> float:
        begin = NOW - 300 * MINUTE
        before = shard(
            backend="gpu", submitted_at=begin, first_at=begin + MINUTE, ended_at=begin + 60 * MINUTE,
            rerouted_at=taken_back and begin + taken_back,
        )  # fmt: skip
        again = shard(backend="gpu", submitted_at=begin + 61 * MINUTE, first_at=begin + 121 * MINUTE)
        return observations.start_seconds(Sight("gpu", [before, again]), NOW)

    assert start(60 * MINUTE) == 60.0
    assert start(None) > 60.0
