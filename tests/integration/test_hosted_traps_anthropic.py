"""What is otherwise at Anthropic, through the whole pipeline."""

from __future__ import annotations

import pytest

from tests.support.hostedjob import DAY, HOUR, MINUTE, Desk, all_are, cost_of, foreign_batch, plain, row, script


@pytest.fixture(autouse=True)
def claude(desk: Desk) -> None:
    desk.backend("claude")


def test_trap_c_a_custom_id_that_anthropic_would_refuse_comes_back_as_it_was(desk: Desk) -> None:
    ids = ["with spaces", "ünïcode 行", "x" * 100, "a/b?c=d"]
    job = desk.run([row(name) for name in ids])
    assert desk.ends(job) == dict.fromkeys(ids, "succeeded")
    assert desk.provider.calls("create") == {200: 1}


def test_trap_c_a_field_without_counterpart_is_named_and_its_row_costs_nothing(desk: Desk) -> None:
    job = desk.run([*plain(2), row("odd", logit_bias={"5": 1}), row("odder", n=2)])
    assert desk.ends(job) == {
        **all_are("succeeded", 2),
        "odd": "failed: unsupported_parameter",
        "odder": "failed: unsupported_parameter",
    }
    assert "logit_bias" in desk.rows(job)["odd"]["error"]["message"]
    assert "n:" in desk.rows(job)["odder"]["error"]["message"]
    assert [batch["rows"] for batch in desk.batches()] == [2]


def test_trap_c_a_row_that_cannot_be_meant_there_goes_to_a_backend_that_knows_it(desk: Desk) -> None:
    desk.backends({"claude": {}, "openai": {}})
    job = desk.run([*plain(2), row("odd", logit_bias={"5": 1})])
    assert set(desk.ends(job).values()) == {"succeeded"}
    backends = {name: found["provenance"]["backend"] for name, found in desk.rows(job).items()}
    assert backends == {"r0": "claude", "r1": "claude", "odd": "openai"}


@pytest.mark.soak
def test_trap_c_a_job_of_refused_rows_alone_makes_no_batch(desk: Desk) -> None:
    job = desk.run([row("r0", seed=1), row("r1", seed=1)], deadline="6h")
    assert desk.ends(job) == all_are("failed: unsupported_parameter", 2)
    assert desk.batches() == []
    assert desk.cost(job) == 0


def test_trap_c_a_row_that_names_no_max_tokens_gets_the_backends(desk: Desk) -> None:
    desk.backend("claude", max_tokens=7)
    line = row("r0")
    del line["body"]["max_tokens"]
    job = desk.run([line])
    assert desk.ends(job) == {"r0": "succeeded"}
    assert desk.rows(job)["r0"]["provenance"]["tokens"]["output"] <= 7


def test_trap_c_everything_ends_as_ended_and_is_told_in_our_words(desk: Desk) -> None:
    good = desk.run(plain(2))
    bad = desk.run([row("r0", "status:400"), row("r1", "status:413")])
    assert desk.states(good) == desk.states(bad) == ["collected (completed)"]
    assert desk.ends(bad) == {"r0": "failed: invalid_request_error", "r1": "failed: request_too_large"}


@pytest.mark.long
def test_trap_c_an_expired_batch_keeps_its_rows_and_only_the_leftovers_are_sent_again(desk: Desk) -> None:
    script(desk, "expires", share=0.5)
    job = desk.run(plain(10))
    assert desk.ends(job) == all_are("succeeded", 10)
    assert [batch["rows"] for batch in desk.batches()] == [10, 5]
    assert desk.states(job) == ["collected (expired)", "collected (completed)"]
    assert set(desk.attempts(job).values()) == {1}
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_c_a_cancelled_job_keeps_what_had_run(desk: Desk) -> None:
    job = desk.submit(plain(10))
    desk.settle(job)
    desk.later(300, job)
    desk.cancel(job)
    desk.finish(job)
    ends = list(desk.ends(job).values())
    assert (ends.count("succeeded"), ends.count("cancelled: cancelled")) == (5, 5)
    assert desk.cost(job) == cost_of(desk.provider.bill()) > 0


def test_trap_c_counters_stay_at_zero_until_the_end_and_that_is_no_stall(desk: Desk) -> None:
    script(desk, "turnaround", seconds=5 * HOUR)
    job = desk.submit(plain(4))
    desk.settle(job)
    for _ in range(4):
        desk.later(HOUR, job)
    assert desk.detail(job)["requests"]["done"] == 0
    assert desk.held(job) == []
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 4)


def test_trap_c_results_that_are_not_kept_any_longer_are_asked_for_anew(desk: Desk) -> None:
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.provider.clock.advance(40 * DAY)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert [batch["rows"] for batch in desk.batches()] == [3, 3]
    assert desk.events(job, "collected")[0] == "3 continue in another batch, 3 for no result"


# --- what carries no metadata


def test_trap_c_an_orphan_waits_until_its_rows_tell_whose_it_is_and_is_adopted(desk: Desk) -> None:
    script(desk, "cut_after", verb="create")
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.later(2 * MINUTE, job)
    [batch] = desk.batches()
    assert desk.states(job) == ["submitting (None)"]
    assert desk.held(job) == [f"batch {batch['id']} matches in rows and time; its results will show if it is ours"]
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.events(job, "recovered") == [f"batch {batch['id']} belongs to this shard: adopted"]
    assert len(desk.batches()) == 1


def test_trap_c_somebody_elses_batch_of_the_same_size_and_time_is_not_adopted(desk: Desk) -> None:
    script(desk, "cut_before", verb="create")
    job = desk.submit(plain(3))
    desk.settle(job)
    theirs = foreign_batch(desk, 3)
    desk.later(5 * MINUTE, job)
    assert theirs in desk.held(job)[0]
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.events(job, "recovered") == ["no batch belongs to this shard: it is submitted again"]
    assert len(desk.batches()) == 2
    assert {name for name, number in desk.billed().items() if not name.startswith("theirs")} != set()


def test_trap_c_two_orphans_of_one_size_are_each_given_to_their_own_shard(desk: Desk) -> None:
    desk.backend("claude", limits={"max_rows": 2})
    script(desk, "cut_after", verb="create", times=2)
    job = desk.run(plain(4))
    assert desk.ends(job) == all_are("succeeded", 4)
    assert len(desk.batches()) == 2
    assert len(desk.events(job, "recovered")) == 2


# --- errors and prices


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", ["status:429", "status:529"])
def test_trap_c_an_overload_of_rows_waits_and_burns_no_attempt(desk: Desk, fault: str) -> None:
    job = desk.run([row(f"r{number}", f"{fault}:4") for number in range(3)])
    assert desk.ends(job) == all_are("succeeded", 3)
    assert set(desk.attempts(job).values()) == {1}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("fault", ["status:401", "status:402", "status:403"])
def test_trap_c_an_account_that_is_refused_row_by_row_fails_no_row(desk: Desk, fault: str) -> None:
    job = desk.submit([row(f"r{number}", f"{fault}:1") for number in range(3)])
    desk.settle(job)
    desk.later(HOUR, job)
    [held] = desk.held(job)
    assert held.startswith("claude: ")
    assert "tried again at " in held
    assert desk.detail(job)["requests"]["failed"] == 0
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)


def test_trap_c_an_empty_account_is_told_as_a_bad_request_and_stops_all_the_same(desk: Desk) -> None:
    message = "Your credit balance is too low to access the Anthropic API."
    script(desk, "status", verb="create", status=400, message=message)
    job = desk.submit(plain(2))
    desk.settle(job)
    assert message in desk.held(job)[0]
    assert desk.detail(job)["requests"]["failed"] == 0
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 2)


def test_trap_c_a_batch_that_is_too_large_for_one_request_is_cut(desk: Desk) -> None:
    script(desk, "status", verb="create", status=413)
    job = desk.run(plain(6))
    assert desk.ends(job) == all_are("succeeded", 6)
    assert [batch["rows"] for batch in desk.batches()] == [3, 3]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("faults", [[], ["cached"], ["cache_write"], ["cached", "cache_write", "reasoning"]], ids=str)
def test_trap_c_what_the_cache_gave_and_took_is_paid_as_it_is_billed(desk: Desk, faults: list[str]) -> None:
    job = desk.run([row("r0", *faults), row("bad", "status:400")])
    [line] = desk.provider.bill()["lines"]
    tokens = desk.rows(job)["r0"]["provenance"]["tokens"]
    assert tokens == {name: line[name] for name in ("input", "cached", "cache_write", "output", "reasoning")}
    assert desk.cost(job) == cost_of(desk.provider.bill()) > 0
    assert desk.rows(job)["r0"]["provenance"]["tier"] == "batch"
