"""Limits, quotas and accounts of hosted backends, through the whole pipeline: capacity is not a failure."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from orchestrator.core.model import Job
from orchestrator.daemon.loop import Daemon
from tests.emulator.driving import chat_line
from tests.support.hostedjob import HOUR, MINUTE, Desk, all_are, cost_of, plain, row, script

EMBEDDINGS = "/v1/embeddings"


def long_row(custom_id: str, tokens: int) -> dict[str, object]:
    """A row of about so many prompt tokens."""
    return row(custom_id, messages=[{"role": "user", "content": f"{custom_id} " + "word " * int(tokens * 0.8)}])


def of_n(custom_id: str) -> dict[str, object]:
    return chat_line(custom_id, f"what of {custom_id}?", "n")


# --- sizes of a batch


def test_trap_a8_a_job_is_cut_by_rows_and_no_row_is_lost_between_batches(desk: Desk) -> None:
    desk.backend(limits={"max_rows": 3})
    job = desk.run(plain(8))
    assert [batch["rows"] for batch in desk.batches()] == [3, 3, 2]
    assert desk.ends(job) == all_are("succeeded", 8)
    assert list(desk.rows(job)) == [f"r{number}" for number in range(8)], "in input order"


def test_trap_a8_a_job_is_cut_by_bytes(desk: Desk) -> None:
    desk.backend(limits={"max_bytes": 2000})
    job = desk.run(plain(8))
    assert len(desk.batches()) > 1
    assert max(file["bytes"] for file in desk.provider.state()["files"] if file["purpose"] == "batch") <= 2000
    assert desk.ends(job) == all_are("succeeded", 8)


def test_trap_a8_embeddings_are_cut_by_inputs_not_by_rows(desk: Desk) -> None:
    desk.backend(limits={"max_inputs": 10})
    lines = [
        {"custom_id": f"r{n}", "method": "POST", "url": EMBEDDINGS, "body": {"model": "m", "input": [f"no {n}"] * 4}}
        for n in range(5)
    ]
    job = desk.run(lines)
    assert [batch["rows"] for batch in desk.batches()] == [2, 2, 1]
    assert desk.ends(job) == all_are("succeeded", 5)
    assert desk.cost(job) == cost_of(desk.provider.bill()) > 0


def test_trap_a6_one_model_and_one_endpoint_a_file(desk: Desk) -> None:
    prices = "[prices.n]\ninput = 1\noutput = 1\nbatch = {input = 1, output = 1}\n"
    desk.backends({"openai": {}}, prices)
    job = desk.run([row("a"), of_n("b"), row("c"), of_n("d")])
    assert sorted((batch["model"], batch["rows"]) for batch in desk.batches()) == [("m", 2), ("n", 2)]
    assert set(desk.ends(job).values()) == {"succeeded"}


# --- enqueued tokens


@pytest.mark.long
def test_trap_a8_what_does_not_fit_the_enqueued_tokens_waits_here_and_says_so(desk: Desk) -> None:
    desk.backend(limits={"max_rows": 1, "enqueued_tokens": 2500})
    desk.provider.settings(enqueued_tokens={"m": 2600})
    job = desk.submit([long_row(f"r{number}", 1000) for number in range(4)])
    desk.settle(job)
    assert len(desk.batches()) == 2
    assert len(desk.held(job)) == 2
    assert re.fullmatch(
        r"queued behind quota: [\d.]+k of 2\.5k tokens of m are enqueued, [\d.]+k more do not fit", desk.held(job)[0]
    )
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 4)
    assert {batch["status"] for batch in desk.batches()} == {"completed"}, "none was refused"
    assert set(desk.attempts(job).values()) == {1}


@pytest.mark.long
def test_trap_1_20_the_quota_counts_the_whole_queue_so_jobs_share_it(desk: Desk) -> None:
    desk.backend(limits={"enqueued_tokens": 2500})
    desk.provider.settings(enqueued_tokens={"m": 2600})
    first, second = (desk.submit([long_row(f"{name}{n}", 900) for n in range(2)]) for name in "ab")
    desk.settle(first, second)
    assert len(desk.batches()) == 1
    assert desk.held(second)[0].startswith("queued behind quota: ")
    desk.finish(first, second)
    assert {batch["status"] for batch in desk.batches()} == {"completed"}


@pytest.mark.long
def test_trap_1_19_token_limit_exceeded_is_waited_out_and_burns_no_attempt(desk: Desk) -> None:
    script(desk, "token_limit_exceeded", limit=2_000_000, times=3)
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.later(2 * MINUTE, job)
    [held] = desk.held(job)
    assert re.fullmatch(
        r"queued behind quota: the backend has no room for more of this model now \(nothing enqueued by us\); "
        r"retried after 00:\d\d UTC",
        held,
    )
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert [batch["status"] for batch in desk.batches()] == ["failed"] * 3 + ["completed"]
    assert set(desk.attempts(job).values()) == {1}
    assert desk.files() == [], "a batch that failed leaves no file to fill the quota"


@pytest.mark.soak
def test_trap_1_20_a_limit_that_a_refusal_names_is_kept_to_afterwards(desk: Desk) -> None:
    desk.backend(limits={"max_rows": 1})
    desk.provider.settings(enqueued_tokens={"m": 2500})
    job = desk.submit([long_row(f"r{number}", 1000) for number in range(6)])
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 6)
    assert set(desk.attempts(job).values()) == {1}
    refused = [batch for batch in desk.batches() if batch["status"] == "failed"]
    assert len(refused) == 4, "those sent before the first refusal told the limit, and no others"


@pytest.mark.long
def test_trap_a6_the_enqueued_request_limit_is_capacity_too(desk: Desk) -> None:
    message = "Enqueued request limit reached for m in organization o. Limit: 1,000,000 enqueued requests."
    script(desk, "fails", code="request_limit_exceeded", message=message)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert set(desk.attempts(job).values()) == {1}


@pytest.mark.long
def test_trap_1_20_a_row_larger_than_all_that_may_be_enqueued_fails_by_itself(desk: Desk) -> None:
    desk.provider.settings(enqueued_tokens={"m": 500})
    job = desk.run([row("small"), long_row("large", 3000)])
    assert desk.ends(job) == {"small": "succeeded", "large": "failed: token_limit_exceeded"}
    assert "Limit: 500 enqueued tokens" in desk.rows(job)["large"]["error"]["message"]


# --- batches an hour, rates


@pytest.mark.soak
def test_trap_a8_batches_an_hour_are_counted_before_the_provider_says_no(desk: Desk) -> None:
    desk.backend(limits={"max_rows": 1, "batches_per_hour": 2})
    desk.provider.settings(batches_per_hour=2)
    job = desk.submit(plain(5))
    desk.settle(job)
    assert len(desk.batches()) == 2
    assert desk.held(job) == ["queued behind quota: hourly limit of 2 batches reached"] * 3
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 5)
    assert desk.provider.calls("create") == {200: 5}


@pytest.mark.long
def test_trap_a8_more_batches_than_the_provider_lets_be_made_wait_for_the_hour_to_pass(desk: Desk) -> None:
    desk.backend(limits={"max_rows": 1})
    desk.provider.settings(batches_per_hour=2)
    job = desk.submit(plain(3))
    desk.settle(job)
    assert [text.partition(";")[0] for text in desk.held(job)] == [
        "openai: cannot create a batch: Rate limit reached for requests."
    ]
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert set(desk.attempts(job).values()) == {1}
    assert len(desk.batches()) == 3


def test_trap_a0_retry_after_is_kept_to_however_long_it_is(desk: Desk) -> None:
    script(desk, "status", verb="create", status=429, retry_after=7200)
    job = desk.submit(plain(2))
    desk.settle(job)
    desk.later(1.9 * HOUR, job)
    assert desk.batches() == []
    desk.later(0.2 * HOUR, job)
    assert len(desk.batches()) == 1


@pytest.mark.thinned(3)
@pytest.mark.parametrize("verb", ["upload", "retrieve", "content"])
def test_trap_a0_a_rate_limit_of_any_call_is_waited_out(desk: Desk, verb: str) -> None:
    script(desk, "status", verb=verb, status=429, times=3)
    job = desk.run(plain(2))
    assert desk.ends(job) == all_are("succeeded", 2)
    assert set(desk.attempts(job).values()) == {1}
    assert len(desk.batches()) == 1


# --- the account


def refused(desk: Desk, *jobs: Job) -> None:
    """Until the account has been refused for so long that it is told as an error."""
    for _ in range(100):
        desk.later(10, *jobs)
        if desk.said:
            return
    raise AssertionError(f"nobody said so: {[desk.held(job) for job in jobs]}")


@pytest.mark.long
def test_trap_a3_a_key_that_is_refused_is_told_at_once_and_as_an_error_once_it_does_not_pass(desk: Desk) -> None:
    desk.provider.settings(accounts={"sk-the-right-one": "org-1"})
    desk.backend(limits={"max_rows": 1})
    job = desk.submit(plain(3))
    desk.settle(job)
    assert desk.said == []
    assert len(set(desk.held(job))) == 1
    assert desk.held(job)[0].endswith("Incorrect API key provided.; tried again at 00:00:15 UTC")
    tried = {verb: calls for verb in ("list", "upload") if (calls := desk.provider.calls(verb))}
    assert list(tried.values()) == [{401: 1}], "the others were not tried with a key that is bad"
    [verb] = tried
    refused(desk, job)
    assert len({text.partition("\n")[0] for text in desk.said}) == 1
    assert "Incorrect API key provided." in desk.said[0]
    assert "`orch doctor` tests openai again" in desk.said[0]
    assert 4 <= desk.provider.calls(verb)[401] <= 5, "in four minutes"
    desk.key("openai", "sk-the-right-one")
    desk.start_anew()
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)


@pytest.mark.long
@pytest.mark.thinned(14)
@pytest.mark.parametrize("status", [401, pytest.param(403, marks=pytest.mark.soak)])
@pytest.mark.parametrize("verb", ["upload", "create", "retrieve", "content", "list", "models", "cancel"])
def test_trap_a3_an_account_that_is_refused_for_a_minute_stops_nothing(desk: Desk, verb: str, status: int) -> None:
    desk.backend(poll_seconds=1)
    if verb == "list":
        script(desk, "cut_after", verb="create")
    desk.provider.script({"do": "status", "status": status, "match": {"verb": verb}, "lasts": 60.0})
    job = desk.submit(plain(4))
    for _ in range(200):
        desk.later(20, job)
        if verb == "cancel" and desk.states(job) == ["submitted (in_progress)"]:
            desk.cancel(job)
    assert desk.is_over(job)
    assert not [text for text in desk.said if "API key" in text or "not allowed" in text]
    assert set(desk.ends(job).values()) <= {"succeeded", "cancelled: cancelled"}
    assert len(desk.batches()) == 1
    refusals = desk.provider.calls(verb).get(status, 0)
    assert refusals >= (2 if verb not in ("models", "cancel", "list") else 1)


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("verb", ["upload", "create"])
def test_trap_1_32_an_account_without_credit_stops_everything_until_there_is_some(desk: Desk, verb: str) -> None:
    desk.backend(limits={"max_rows": 1})
    script(desk, "status", verb=verb, status=429, code="insufficient_quota", times=6)
    first, second = desk.submit(plain(2)), desk.submit([row("other")])
    desk.settle(first, second)
    assert desk.provider.calls(verb) == {429: 1}, "one refusal speaks for the whole account"
    assert all("You exceeded your current quota" in held for job in (first, second) for held in desk.held(job))
    refused(desk, first, second)
    assert "You exceeded your current quota" in desk.said[0]
    desk.finish(first, second)
    assert set(desk.ends(first).values()) == set(desk.ends(second).values()) == {"succeeded"}
    assert set(desk.attempts(first).values()) == {1}


@pytest.mark.long
def test_trap_a3_a_key_that_is_refused_while_batches_run_is_asked_about_once_and_then_with_pauses(desk: Desk) -> None:
    desk.backend(limits={"max_rows": 1}, poll_seconds=1)
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.provider.settings(turnaround_s=[9000, 9000])
    script(desk, "status", verb="retrieve", status=401, code="invalid_api_key", times=None)
    for _ in range(10):
        desk.later(10, job)
    assert desk.provider.calls("retrieve")[401] == 3, "one refusal speaks for all of its batches, at 10, 30 and 60 s"
    refused(desk, job)
    assert "`orch doctor` tests openai again" in desk.said[0]
    desk.provider.clear()
    desk.later(400, job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 3


def test_trap_a3_an_account_that_is_refused_before_and_after_a_machine_slept_is_tried_again(desk: Desk) -> None:
    """Time in which nobody tried says nothing about the account."""
    desk.backend(poll_seconds=1)
    job = desk.submit(plain(3))
    desk.settle(job)
    script(desk, "status", verb="retrieve", status=403, times=2)
    desk.later(10, job)
    desk.later(HOUR, job)
    assert desk.provider.calls("retrieve")[403] == 2
    assert desk.said == []
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)


def test_trap_a3_refusals_of_polls_that_were_under_way_together_are_one(desk: Desk) -> None:
    desk.backend(limits={"max_rows": 1})
    job = desk.submit(plain(12))
    desk.settle(job)
    script(desk, "status", verb="retrieve", status=403, times=12)
    desk.provider.clock.advance(HOUR)
    with Daemon(desk.config, desk.store) as daemon:
        # Raises what a person has to look at.
        daemon.run(lambda: desk.provider.calls("retrieve").get(403, 0) > 0 and bool(desk.held(job)), mine=job)
        assert all("tried again at" in held for held in desk.held(job))
        desk.provider.clock.set(speed=600.0)
        daemon.run(lambda: desk.is_over(job), mine=job)
    assert desk.ends(job) == all_are("succeeded", 12)


def test_trap_1_32_credit_that_runs_out_within_a_batch_fails_no_row(desk: Desk) -> None:
    desk.backend(limits={"max_rows": 3})
    job = desk.submit([row(f"r{number}", "insufficient_quota:1") for number in range(3)])
    desk.settle(job)
    desk.later(HOUR, job)
    assert desk.detail(job)["requests"]["failed"] == 0
    [held] = desk.held(job)
    assert held.startswith(
        "openai: the account has no credit left, or has reached its spending limit; tried again at"
    )
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert set(desk.attempts(job).values()) == {1}


# --- budgets


def test_trap_1_38_a_budget_bounds_what_is_in_flight_at_a_hosted_backend(desk: Desk) -> None:
    desk.backend(limits={"max_rows": 5})
    job = desk.submit(plain(10, max_tokens=50), budget=Decimal("0.005"))
    desk.settle(job)
    [held] = desk.held(job)
    assert len(desk.batches()) == 1
    assert re.fullmatch(
        r"this batch may cost up to \$0\.00\d\d, and \$0 of the budget of \$0\.005 is spent, up to "
        r"\$0\.00\d\d more in flight",
        held,
    )
    desk.finish(job)
    assert desk.cost(job) == cost_of(desk.provider.bill()) <= Decimal("0.005")
