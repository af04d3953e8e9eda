"""What is otherwise at Bedrock, through the whole pipeline."""

from __future__ import annotations

import pytest

from tests.emulator.aws_wire import role_of
from tests.integration.test_canary_hosted import job_file, texts
from tests.support.hostedjob import HOUR, KEY, Desk, Json, all_are, cost_of, plain, row, script

SMALL = {"limits": {"min_rows": 1}}


@pytest.fixture(autouse=True)
def bedrock(desk: Desk) -> None:
    desk.provider.settings(min_rows=1)
    desk.backend("bedrock", **SMALL)


def test_trap_j_rows_come_back_under_their_ids_and_no_object_is_left(desk: Desk) -> None:
    ids = ["with spaces", "ünïcode 行", "x" * 100, "a/b?c=d", "x0ff", "plain7"]
    job = desk.run([row(name) for name in ids])
    assert desk.ends(job) == dict.fromkeys(ids, "succeeded")
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert desk.files() == []
    assert desk.provider.refused() == []


def test_trap_j_a_create_that_was_not_answered_is_repeated_with_its_token(desk: Desk) -> None:
    script(desk, "cut_after", verb="create")
    script(desk, "hidden", verb="create", seconds=30_000.0)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.provider.calls("create") == {0: 1, 200: 1}
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_j_a_token_that_is_forgotten_makes_no_second_job_either(desk: Desk) -> None:
    desk.provider.settings(forgets_tokens=True)
    script(desk, "cut_after", verb="create")
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1


def test_trap_j_a_partly_completed_job_keeps_its_answers_and_the_others_are_sent_again(desk: Desk) -> None:
    script(desk, "expires", share=0.5)
    job = desk.run(plain(4))
    assert desk.ends(job) == all_are("succeeded", 4)
    assert [batch["rows"] for batch in desk.batches()] == [4, 2]
    assert desk.states(job) == ["collected (expired)", "collected (completed)"]
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert set(desk.billed().values()) == {1}


def test_trap_j_a_completed_job_all_of_whose_records_failed_is_no_success(desk: Desk) -> None:
    job = desk.submit([row(f"r{number}", "status:400") for number in range(3)])
    desk.settle(job)
    desk.later(HOUR, job)
    assert desk.states(job) == ["collected (completed)"]
    assert "refuses all rows of" in desk.said[-1]
    assert desk.cost(job) == 0


def test_trap_j_errors_stand_among_the_results(desk: Desk) -> None:
    job = desk.run([*plain(2), row("bad", "status:400"), row("late", "status:503:1")])
    assert desk.ends(job) == {**all_are("succeeded", 2), "bad": "failed: http_400", "late": "succeeded"}
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_j_results_that_are_late_in_the_bucket_are_waited_for(desk: Desk) -> None:
    script(desk, "late_output_id", verb="create", seconds=5000.0)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1


def test_trap_j_a_record_whose_id_was_replaced_is_told_and_others_are_kept(desk: Desk) -> None:
    job = desk.run([*plain(3), row("odd", "id_null:1")])
    assert desk.ends(job) == {**all_are("succeeded", 3), "odd": "succeeded"}
    assert desk.billed() == {"r0": 1, "r1": 1, "r2": 1, "odd": 2}


def test_trap_j_a_record_that_comes_twice_is_booked_once(desk: Desk) -> None:
    job = desk.run([row("r0", "duplicate"), *plain(3)[1:]])
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("verb", ["create", "retrieve", "upload", "content"])
def test_trap_j_throttling_is_waited_out(desk: Desk, verb: str) -> None:
    script(desk, "status", verb=verb, status=429, times=3)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1


def test_trap_j_a_full_quota_of_jobs_is_waited_out(desk: Desk) -> None:
    script(desk, "status", verb="create", status=400, code="ServiceQuotaExceededException", times=3)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("verb", "status", "code"),
    [
        ("upload", 403, "AccessDenied"),
        ("content", 403, "AccessDenied"),
        ("upload", 404, "NoSuchBucket"),
        ("upload", 400, "ExpiredToken"),
        ("content", 400, "ExpiredToken"),
        ("retrieve", 403, "ExpiredTokenException"),
        ("create", 403, "ExpiredTokenException"),
        ("create", 403, "AccessDeniedException"),
    ],
)
def test_trap_j_refused_credentials_and_rights_hold_a_job_and_cost_no_row(
    desk: Desk, verb: str, status: int, code: str
) -> None:
    script(desk, "status", verb=verb, status=status, code=code, times=4)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert set(desk.attempts(job).values()) == {1}
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_j_credentials_that_are_renewed_are_taken_without_a_restart(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = desk.submit(plain(3))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "expired")
    desk.start_anew()
    desk.settle(job)
    assert desk.batches() == []
    assert "signature" in desk.held(job)[0]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"secret-of-{KEY}")
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)


def test_trap_j_a_role_of_another_account_sends_nothing(desk: Desk) -> None:
    desk.backend("bedrock", role_arn=role_of("AKIAOTHER"), **SMALL)
    job = desk.submit(plain(3))
    desk.settle(job)
    assert desk.batches() == []
    assert "the credentials belong to account" in desk.held(job)[0]
    assert desk.files() == []


def test_trap_j_fewer_rows_than_a_job_takes_are_refused_before_anything_is_sent(desk: Desk) -> None:
    desk.backend("bedrock")
    job = desk.submit(plain(3))
    desk.settle(job)
    told = " ".join(desk.said)
    assert "its batches take at least 100 rows of one model, and there are only 3" in told
    assert desk.provider.calls("upload") == {}


def test_trap_j_fewer_rows_than_a_job_takes_go_to_another_backend(desk: Desk) -> None:
    desk.backends({"bedrock": {}, "openai": {}})
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert {batch["flavour"] for batch in desk.batches()} == {"openai"}


def test_trap_j_rows_that_are_left_go_to_another_backend(desk: Desk) -> None:
    desk.provider.settings(min_rows=100)
    desk.backends({"bedrock": {}, "openai": {}})
    lines = [*plain(119), row("late", "status:503:1")]
    job = desk.run(lines, backend=None)
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_j_rows_that_are_left_and_have_no_other_backend_say_so(desk: Desk) -> None:
    desk.provider.settings(min_rows=100)
    desk.backend("bedrock")
    job = desk.run([*plain(119), row("late", "status:503:1")])
    assert desk.ends(job) == {**all_are("succeeded", 119), "late": "failed: too_few_rows"}
    assert "at least 100 rows" in desk.rows(job)["late"]["error"]["message"]


def test_trap_j_no_batch_of_several_is_too_small(desk: Desk) -> None:
    desk.provider.settings(min_rows=100)
    desk.backend("bedrock", limits={"max_rows": 200})
    job = desk.run(plain(250))
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert sorted(batch["rows"] for batch in desk.batches()) == [100, 150]


def test_trap_j_a_field_without_counterpart_is_named_and_its_row_costs_nothing(desk: Desk) -> None:
    far = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]
    job = desk.run([*plain(2), row("odd", logit_bias={"5": 1}), row("far", messages=far)])
    assert desk.ends(job) == {
        **all_are("succeeded", 2),
        "odd": "failed: unsupported_parameter",
        "far": "failed: unsupported_parameter",
    }
    assert [batch["rows"] for batch in desk.batches()] == [2]


def test_trap_j_caches_and_thoughts_are_counted_as_they_are_billed(desk: Desk) -> None:
    job = desk.run([row("r0", "cached"), row("r1", "cache_write"), row("r2", "reasoning")])
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_j_one_row_is_asked_first_at_converse(desk: Desk) -> None:
    desk.backend("bedrock", preflight=True, **SMALL)
    job = desk.run(plain(30))
    assert desk.ends(job) == all_are("succeeded", 30)
    assert desk.provider.calls("chat") == {200: 1}


def mixed() -> list[Json]:
    """Eight rows, and four that cannot be sent."""
    return [*plain(8), *(row(f"odd{number}", logit_bias={"5": 1}) for number in range(4))]


def test_trap_j_rows_that_are_not_sent_do_not_count_for_the_least(desk: Desk) -> None:
    desk.provider.settings(min_rows=10)
    desk.backends({"bedrock": {"limits": {"min_rows": 10}}, "openai": {}})
    job = desk.run(mixed(), backend=None)
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert {batch["flavour"] for batch in desk.batches()} == {"openai"}
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_j_rows_that_are_too_few_without_those_that_are_not_sent_wait_and_say_so(desk: Desk) -> None:
    desk.backend("bedrock", limits={"min_rows": 10})
    job = desk.submit(mixed())
    desk.settle(job)
    assert "its batches take at least 10 rows of one model, and there are only 8" in " ".join(desk.said)
    assert desk.provider.calls("upload") == {}


@pytest.mark.long
def test_trap_j_a_canary_of_too_few_rows_goes_to_another_backend_or_nowhere(desk: Desk) -> None:
    desk.backend("bedrock", limits={"min_rows": 10})
    alone = desk.submit(job_file(desk, texts(12), canary={"rows": 3}))
    desk.settle(alone)
    assert "at least 10 rows of one model, and there are only 3" in " ".join(desk.said)
    assert desk.batches() == []

    desk.backends({"bedrock": {"limits": {"min_rows": 10}}, "openai": {}})
    job = desk.run(job_file(desk, texts(13), canary={"rows": 3}, name="another"))
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.batches()[0]["flavour"] == "openai"


def test_trap_j_a_schema_stands_in_the_prompt(desk: Desk) -> None:
    job = desk.run(job_file(desk, texts(3)))
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.provider.refused() == []
    assert desk.cost(job) == cost_of(desk.provider.bill())
