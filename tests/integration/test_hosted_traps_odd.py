"""Answers, lists, results and headers of shapes that nobody has documented: nothing hangs, is lost or paid twice."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.core.clock import now
from tests.support.hostedjob import DAY, HOUR, KEY, MINUTE, Desk, all_are, cost_of, plain, row, script

AZURE = pytest.param("azure", marks=pytest.mark.soak)
CLAUDE = pytest.param("claude", marks=pytest.mark.soak)
EACH = ["openai", AZURE, CLAUDE]
"""What is otherwise at Azure and Anthropic has its own tests, and the long form takes all of these."""
COUNTS = (
    "text_counts float_counts null_counts zero_counts negative_counts huge_counts nan_counts no_counts counts_as_list"
).split()
STATUSES = ["loud_status", "new_status", "status_object", "no_status", "earlier_status"]
OTHERS = (
    "no_id number_id other_id odd_times huge_times no_times no_metadata odd_metadata odd_letters odd_usage".split()
)


def paid_once(desk: Desk, count: int) -> None:
    assert len(desk.batches()) == 1
    assert sorted(desk.billed().values()) == [1] * count


# --- what is told of a batch


ALWAYS = [*COUNTS, "loud_status", "status_object", "no_metadata", "odd_metadata", "odd_usage"]


@pytest.mark.long
@pytest.mark.parametrize("name", EACH)
def test_trap_g4_what_is_told_of_a_batch_in_another_shape_all_the_time_costs_nothing(desk: Desk, name: str) -> None:
    desk.backend(name)
    for number, fault in enumerate(ALWAYS):
        desk.provider.script({"do": fault, "match": {"verb": "retrieve"}, "times": None})
        job = desk.run([row(f"{fault} {one}") for one in range(3)])
        assert set(desk.ends(job).values()) == {"succeeded"}, fault
        assert len(desk.batches()) == number + 1, fault
        desk.provider.clear()
    assert set(desk.billed().values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("name", EACH)
def test_trap_g4_what_is_told_of_a_batch_in_another_shape_for_a_while_costs_nothing(desk: Desk, name: str) -> None:
    desk.backend(name, poll_seconds=60)
    desk.provider.settings(turnaround_s=[4 * HOUR, 4 * HOUR])
    job = desk.submit(plain(4))
    desk.settle(job)
    for fault in (*STATUSES, *OTHERS):
        for verb in ("retrieve", "list"):
            desk.provider.script({"do": fault, "match": {"verb": verb}, "times": None})
        for _ in range(3):
            desk.later(5 * MINUTE, job)
        desk.provider.clear()
        assert desk.states(job)[0].startswith("submitted"), fault
    desk.provider.script({"do": "earlier_status", "match": {"verb": "retrieve"}, "lasts": 2 * HOUR})
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 4)
    paid_once(desk, 4)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("verb", ["create", "retrieve", "upload", "list", "models"])
def test_trap_g4_200s_that_are_no_answer_cost_nothing(desk: Desk, name: str, verb: str) -> None:
    desk.backend(name)
    if verb == "list":
        script(desk, "cut_after", verb="create")
    faults = ["empty_body", "html_page", "error_object", "json_null", "half_json"]
    for number, fault in enumerate(faults[: 2 if verb == "create" else 5], 1):
        desk.provider.script({"do": fault, "match": {"verb": verb, "nth": number}})
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    paid_once(desk, 3)


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("fault", ["plain_type", "gzip"])
def test_trap_g4_json_that_is_called_text_or_is_packed_is_json(desk: Desk, name: str, fault: str) -> None:
    desk.backend(name)
    desk.provider.script({"do": fault, "match": {}, "times": None})
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    paid_once(desk, 3)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "fault", ["errors_as_list", "errors_as_texts", "errors_as_text", "errors_as_map", "errors_nested"]
)
def test_trap_g4_a_refusal_in_another_shape_ends_its_rows_with_its_word(desk: Desk, fault: str) -> None:
    script(desk, "fails", code="invalid_request", message="Messages parameter is required.", lines=[2])
    desk.provider.script({"do": fault, "match": {"verb": "retrieve"}, "times": None})
    job = desk.run(plain(3))
    found = desk.rows(job)["r1"]["error"]
    assert "Messages parameter is required." in str(found) or "invalid_request" in str(found) or found is None
    assert desk.is_over(job)
    if fault in ("errors_as_list", "errors_nested"):
        assert desk.ends(job) == {**all_are("succeeded", 3), "r1": "failed: invalid_request"}


@pytest.mark.long
def test_trap_g4_a_row_that_fails_in_batches_told_as_expired_fails_after_three(desk: Desk) -> None:
    """Counts that cannot be make a batch look expired, which blames no row; one that ran and failed is to blame."""
    desk.backend("claude")
    desk.provider.script({"do": "huge_counts", "match": {"verb": "retrieve"}, "times": None})
    job = desk.run([row("r0", "status:500"), *plain(3)[1:]])
    assert desk.ends(job)["r1"] == desk.ends(job)["r2"] == "succeeded"
    assert desk.ends(job)["r0"].startswith("failed: ")
    assert len(desk.batches()) == 3


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", ["huge_counts", "text_counts"])
def test_trap_g4_a_line_of_nobody_beside_odd_counts_is_not_booked_as_another_jobs(desk: Desk, fault: str) -> None:
    desk.provider.script({"do": fault, "match": {"verb": "retrieve"}, "times": None})
    job = desk.run([row("beside", "unknown_id"), row("alone")])
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_g4_a_line_of_nobody_is_not_booked_as_another_jobs_if_the_input_file_is_gone(desk: Desk) -> None:
    """A kill between the deletion of a shard's input file and its last move lets it be collected again."""
    job = desk.submit([row("beside", "unknown_id"), row("alone")])
    desk.settle(job)
    for shard in desk.store.shards.of_job(job.id):
        desk.home.shard_input(shard.id).unlink()
    desk.finish(job)
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.cost(job) == cost_of(desk.provider.bill())


# --- orphans in odd lists


LISTS = (
    "no_has_more unpaged_list endless_list reversed_list doubled_list bare_list list_of_items null_in_list".split()
)


@pytest.mark.long
@pytest.mark.parametrize("name", EACH)
def test_trap_g5_an_orphan_is_found_in_a_list_of_any_shape(desk: Desk, name: str) -> None:
    desk.backend(name)
    for number, fault in enumerate(LISTS):
        script(desk, "cut_after", verb="create")
        desk.provider.script({"do": fault, "match": {"verb": "list"}, "times": None})
        job = desk.run([row(f"orphan {fault}")])
        assert set(desk.ends(job).values()) == {"succeeded"}, fault
        assert len(desk.events(job, "recovered")) == 1, fault
        assert len(desk.batches()) == number + 1, fault
        desk.provider.clear()
    assert set(desk.billed().values()) == {1}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", ["no_metadata", "odd_metadata"])
@pytest.mark.parametrize("verbs", [["list"], ["list", "retrieve"]])
def test_trap_g5_an_orphan_whose_metadata_is_not_told_is_found_by_its_upload(
    desk: Desk, fault: str, verbs: list[str]
) -> None:
    before = desk.run([row(f"before {number}") for number in range(3)])
    script(desk, "cut_after", verb="create")
    for verb in verbs:
        desk.provider.script({"do": fault, "match": {"verb": verb}, "times": None})
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert set(desk.ends(before).values()) == {"succeeded"}
    assert len(desk.batches()) == 2
    assert set(desk.billed().values()) == {1}
    assert len(desk.events(job, "recovered")) == 1


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("ahead", [-HOUR, pytest.param(9 * HOUR, marks=pytest.mark.soak)])
def test_trap_g5_a_clock_that_is_off_hides_no_orphan(desk: Desk, name: str, ahead: float) -> None:
    desk.backend(name)
    desk.provider.settings(clock_offset_s=ahead)
    script(desk, "cut_after", verb="create")
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    paid_once(desk, 3)
    assert len(desk.events(job, "recovered")) == 1


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", ["number_id", "other_id"])
def test_trap_g5_a_batch_that_is_listed_under_another_id_is_waited_for(desk: Desk, fault: str) -> None:
    script(desk, "cut_after", verb="create")
    desk.provider.script({"do": fault, "match": {"verb": "list"}, "times": None, "lasts": 30 * MINUTE})
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    paid_once(desk, 3)


@pytest.mark.parametrize(("name", "status"), [("openai", 429), ("together", 429), ("xai", 500), ("mistral", 500)])
def test_trap_g5_another_id_in_a_list_is_not_believed_while_it_cannot_be_asked(
    desk: Desk, name: str, status: int
) -> None:
    desk.backend(name)
    desk.provider.settings(turnaround_s=[4 * HOUR, 4 * HOUR])
    script(desk, "cut_after", verb="create")
    script(desk, "status", verb="retrieve", status=status, code="insufficient_quota")
    desk.provider.script({"do": "number_id", "match": {"verb": "list"}, "times": None, "lasts": 20 * MINUTE})
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    paid_once(desk, 3)


@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("place", [1, 2, 3])
def test_trap_g5_batches_that_are_all_listed_under_one_id_are_told_apart(desk: Desk, name: str, place: int) -> None:
    desk.backend(name, limits={"max_rows": 2})
    script(desk, "cut_after", verb="create", nth=place)
    desk.provider.script({"do": "number_id", "match": {"verb": "list"}, "times": None, "lasts": 30 * MINUTE})
    job = desk.run(plain(6))
    assert desk.ends(job) == all_are("succeeded", 6)
    assert len(desk.batches()) == 3
    assert sorted(desk.billed().values()) == [1] * 6


@pytest.mark.parametrize("name", EACH)
def test_trap_g5_of_two_batches_of_one_create_the_second_is_ended_and_told(desk: Desk, name: str) -> None:
    desk.backend(name)
    desk.provider.settings(turnaround_s=[3 * HOUR, 3 * HOUR])
    script(desk, "cut_after", verb="create")
    script(desk, "twice")
    job = desk.run(plain(4))
    assert desk.ends(job) == all_are("succeeded", 4)
    [told] = desk.events(job, "double")
    assert "made batch " in told
    assert len(desk.batches()) == 2


@pytest.mark.parametrize("name", EACH)
def test_trap_g5_lists_that_are_empty_a_few_times_hide_no_orphan(desk: Desk, name: str) -> None:
    desk.backend(name)
    script(desk, "cut_after", verb="create")
    script(desk, "empty_list", verb="list", times=3)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    paid_once(desk, 3)


@pytest.mark.long
@pytest.mark.parametrize("name", EACH)
def test_trap_g5_a_list_that_lacks_every_batch_we_know_of_proves_nothing(desk: Desk, name: str) -> None:
    desk.backend(name)
    desk.run([row("known")])
    script(desk, "cut_after", verb="create")
    desk.provider.script({"do": "empty_list", "match": {"verb": "list"}, "times": None, "lasts": 3 * HOUR})
    job = desk.submit([row("orphan")])
    desk.settle(job)
    desk.later(30 * MINUTE, job)
    desk.later(30 * MINUTE, job)
    [held] = desk.held(job)
    assert " lists no batch at all, though " in held
    desk.finish(job)
    assert desk.ends(job) == {"orphan": "succeeded"}
    assert list(desk.billed().values()) == [1, 1]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("fault", ["empty_body", "html_page", "half_json"])
def test_trap_g5_an_orphan_at_anthropic_is_known_though_its_results_come_late(desk: Desk, fault: str) -> None:
    """Its results are all that says whose it is."""
    desk.backend("claude")
    script(desk, "cut_after", verb="create")
    desk.provider.script({"do": fault, "match": {"verb": "results"}, "times": None, "lasts": 2 * HOUR})
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    paid_once(desk, 3)


@pytest.mark.long
def test_trap_g5_a_create_that_gives_an_older_batch_of_ours_adopts_nothing(desk: Desk) -> None:
    """Its rows would be taken for answered by other rows' answers."""
    first = desk.submit([row("first")])
    desk.settle(first)
    script(desk, "older_batch", verb="create", times=2)
    second = desk.submit([row("second")])
    desk.settle(second)
    assert desk.states(second) == ["submitting (None)"]
    desk.finish(first, second)
    assert (desk.ends(first), desk.ends(second)) == ({"first": "succeeded"}, {"second": "succeeded"})
    assert desk.billed() == {"first": 1, "second": 1}


def test_trap_g5_an_upload_that_is_answered_with_another_file_is_not_used(desk: Desk) -> None:
    script(desk, "other_file", verb="upload")
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    paid_once(desk, 3)


def uploads(desk: Desk) -> int:
    asked = desk.provider.state()["requests"]
    return sum(int(one["count"]) for one in asked if one["verb"] == "upload")


@pytest.mark.parametrize("fault", ["renamed_file", "other_file"])
def test_trap_g5_uploads_that_are_always_answered_with_another_file_are_given_up(desk: Desk, fault: str) -> None:
    script(desk, fault, verb="upload", times=None)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("failed: stray_uploads", 3)
    told = desk.rows(job)["r0"]["error"]["message"]
    assert "was answered with another file" in told
    assert "given up after 3 uploads" in told
    assert uploads(desk) == 3
    assert desk.batches() == []
    assert len(desk.files()) == (0 if fault == "renamed_file" else 3), "a new file is ours, somebody else's is not"


@pytest.mark.long
def test_trap_g5_an_older_file_is_never_deleted_for_an_upload_that_is_answered_with_it(desk: Desk) -> None:
    desk.provider.settings(turnaround_s=[9 * HOUR, 9 * HOUR])
    first = desk.submit([row("first")])
    desk.settle(first)
    [older] = desk.files()
    desk.later(HOUR, first)
    desk.provider.script({"do": "older_file", "match": {"verb": "upload"}, "times": None})
    second = desk.run([row("second")])
    assert desk.ends(second) == {"second": "failed: stray_uploads"}
    assert older["id"] in {one["id"] for one in desk.files()}
    desk.provider.clear()
    desk.finish(first)
    assert desk.ends(first) == {"first": "succeeded"}


def test_trap_g5_rows_whose_uploads_are_answered_with_other_files_go_to_another_backend(desk: Desk) -> None:
    desk.backends({"openai": {}, "azure": {}})
    desk.provider.script({"do": "renamed_file", "match": {"verb": "upload", "flavour": "openai"}, "times": None})
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert sorted(desk.billed().values()) == [1] * 3


@pytest.mark.parametrize("fault", ["no_bytes", "nameless_file"])
def test_trap_g5_an_upload_of_which_little_is_told_is_used(desk: Desk, fault: str) -> None:
    script(desk, fault, verb="upload", times=None)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)


@pytest.mark.long
@pytest.mark.thinned(9)
@pytest.mark.parametrize("told", ["create", "validation", "status"])
@pytest.mark.parametrize("seconds", [30.0, pytest.param(400.0, marks=pytest.mark.soak), 1500.0])
def test_trap_g5_an_upload_that_needs_a_while_is_waited_for(desk: Desk, told: str, seconds: float) -> None:
    script(desk, "late_upload", seconds=seconds, told=told, times=None)
    job = desk.submit(plain(3))
    for _ in range(90):
        desk.later(MINUTE, job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert set(desk.attempts(job).values()) == {1}
    assert sorted(desk.billed().values()) == [1, 1, 1]


# --- ids


@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("fault", ["id_upper", "id_lower", "id_blanks"])
def test_trap_g6_ids_in_another_case_or_with_blanks_are_recognised(desk: Desk, name: str, fault: str) -> None:
    desk.backend(name)
    ids = ["Contract-1", "contract-2 ", "CONTRACT/3"]
    job = desk.run([row(custom_id, fault) for custom_id in ids])
    assert desk.ends(job) == dict.fromkeys(ids, "succeeded")
    paid_once(desk, 3)


@pytest.mark.long
def test_trap_g6_ids_that_come_back_as_numbers_are_recognised(desk: Desk) -> None:
    job = desk.run([row(custom_id, "id_number") for custom_id in ("7", "007", "12")])
    assert desk.ends(job)["12"] == "succeeded"
    job = desk.run([row(custom_id, "id_number") for custom_id in ("0042", "43")])
    assert desk.ends(job) == {"0042": "succeeded", "43": "succeeded"}


def test_trap_g6_rows_whose_ids_cannot_be_told_apart_are_not_guessed_at_and_not_asked_again(desk: Desk) -> None:
    job = desk.run([row("a", "id_upper"), row("A", "id_upper"), row("other", "id_upper")])
    ends = desk.ends(job)
    assert ends == {"a": "failed: ambiguous_id", "A": "failed: ambiguous_id", "other": "succeeded"}
    assert "nothing was guessed" in desk.rows(job)["a"]["error"]["message"]
    paid_once(desk, 3)
    assert desk.cost(job) == cost_of(desk.provider.bill()), "what was paid is booked all the same"


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", ["id_list", "id_null"])
def test_trap_g6_ids_that_are_lists_are_read_and_null_is_nobodys(desk: Desk, fault: str) -> None:
    job = desk.run([row("a", fault), row("b")])
    assert desk.ends(job)["b"] == "succeeded"
    assert desk.ends(job)["a"] == ("succeeded" if fault == "id_list" else "failed: missing_result")


@pytest.mark.long
def test_trap_g6_a_batch_that_comes_back_with_other_ids_alone_is_told_and_not_paid_again(desk: Desk) -> None:
    script(desk, "rows", row="missing", share=1.0)
    script(desk, "rows", row="unknown_id", share=1.0)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("failed: unrecognised_id", 3)
    assert "nobody-asked-for-this" in desk.rows(job)["r0"]["error"]["message"]
    paid_once(desk, 3)


# --- rows


SILENT = ["no_usage", "null_usage", "zero_usage", "huge_usage", "negative_usage", "usage_as_list"]


@pytest.mark.parametrize("name", EACH)
def test_trap_g7_answers_without_usage_are_booked_as_estimates(desk: Desk, name: str) -> None:
    desk.backend(name)
    job = desk.run([row("told"), *(row(fault, fault) for fault in SILENT)])
    assert set(desk.ends(job).values()) == {"succeeded"}
    [total] = desk.store.ledger.totals("job", job_id=job.id)
    assert total.estimated
    exact = cost_of(desk.provider.bill())
    assert exact / 3 < desk.cost(job) < exact * 3
    costs = {name: found["provenance"]["cost_usd"] for name, found in desk.rows(job).items()}
    assert all(float(cost) > 0 for cost in costs.values()), costs
    paid_once(desk, 7)


@pytest.mark.parametrize("name", EACH)
def test_trap_g7_usage_that_is_told_as_text_is_booked_as_it_is(desk: Desk, name: str) -> None:
    desk.backend(name)
    thoughts = [row("r2", "text_usage", "reasoning"), row("r3", "text_usage", "reasoning_outside")]
    job = desk.run([row("r0", "text_usage"), row("r1"), *thoughts])
    assert desk.cost(job) == cost_of(desk.provider.bill())


ODD = ["status_text", "status_float", "nan", "big_number", "surrogate", "nul", "number_model", "deep", "odd_orch"]


@pytest.mark.parametrize("name", EACH)
def test_trap_g7_an_answer_with_odd_values_is_that_rows_answer(desk: Desk, name: str) -> None:
    desk.backend(name)
    job = desk.run(
        [*(row(fault, fault) for fault in ODD), *(row(f"bad {fault}", "status:400", fault) for fault in ODD)]
    )
    ends = desk.ends(job)
    assert [ends[fault] for fault in ODD] == ["succeeded"] * len(ODD)
    assert all(ends[f"bad {fault}"].startswith("failed: ") for fault in ODD)
    assert sorted(desk.billed().values()) == [1] * len(ODD)
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.parametrize("name", EACH)
def test_trap_g7_first_rows_that_failed_in_odd_ways_cost_the_others_nothing(desk: Desk, name: str) -> None:
    desk.backend(name)
    odd = ["error_as_text", "error_as_list", "error_as_number"]
    job = desk.run([*(row(fault, "status:400", fault) for fault in odd), *plain(3)])
    assert all(desk.ends(job)[fault].startswith("failed: ") for fault in odd)
    assert [desk.ends(job)[f"r{number}"] for number in range(3)] == ["succeeded"] * 3
    assert sorted(desk.billed().values()) == [1, 1, 1]


@pytest.mark.parametrize("name", EACH)
def test_trap_g7_a_success_without_a_body_is_booked_and_not_paid_again(desk: Desk, name: str) -> None:
    desk.backend(name)
    job = desk.run([row("r0", "no_body"), row("r1")])
    assert desk.ends(job) == {"r0": "failed: invalid_response", "r1": "succeeded"}
    paid_once(desk, 2)
    assert desk.cost(job) > cost_of(desk.provider.bill()) / 2


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("fault", ["bom", "crlf", "blank_lines", "json_array", "raw_gzip"])
def test_trap_g7_result_files_in_any_wrapping_are_read(desk: Desk, name: str, fault: str) -> None:
    desk.backend(name)
    desk.provider.script({"do": fault, "match": {}, "times": None})
    job = desk.run([row("r0"), row("r1", "status:400"), row("r2")])
    assert desk.ends(job) == {"r0": "succeeded", "r1": "failed: http_400", "r2": "succeeded"} or (
        desk.ends(job)["r1"].startswith("failed: ")
    )
    assert desk.ends(job)["r0"] == desk.ends(job)["r2"] == "succeeded"
    paid_once(desk, 2)


# --- headers


RETRY_AFTER = [
    "Fri, 31 Dec 99999999999 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 01 Jan 0000 00:00:00 GMT",
    "nan", "inf", "-inf", "1e400", "-5", "99999999999999999999", "soon", "", "\u00b2",
]  # fmt: skip


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("verb", ["upload", "create", "retrieve", "content"])
def test_trap_g8_a_retry_after_beyond_every_calendar_holds_nothing_up_for_more_than_a_day(
    desk: Desk, verb: str
) -> None:
    for number, value in enumerate(RETRY_AFTER, 1):
        headers = {"retry-after": value, "date": "Tue, 01 Dec 99999999999 00:00:00 GMT"}
        script(desk, "status", status=429, verb=verb, nth=number, headers=headers)
    job = desk.submit(plain(2))
    began = now()
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 2)
    assert now() - began < timedelta(days=len(RETRY_AFTER))
    paid_once(desk, 2)


@pytest.mark.long
@pytest.mark.thinned(5)
@pytest.mark.parametrize("verb", ["upload", "create", "retrieve", "content", "list"])
def test_trap_g8_a_429_without_a_word_for_hours_is_waited_out(desk: Desk, verb: str) -> None:
    if verb == "list":
        script(desk, "cut_after", verb="create")
    desk.provider.script({"do": "bare_status", "status": 429, "match": {"verb": verb}, "lasts": 5 * HOUR})
    job = desk.submit(plain(2))
    for _ in range(80):
        desk.later(6 * MINUTE, job)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 2)
    paid_once(desk, 2)
    assert set(desk.attempts(job).values()) == {1}


# --- keys


@pytest.mark.parametrize("name", ["openai", CLAUDE])
def test_trap_g9_a_rotated_key_of_the_same_account_is_adopted_once_it_shows_its_batches(
    desk: Desk, name: str
) -> None:
    desk.provider.settings(accounts={KEY: "org-1", "sk-rotated": "org-1", "sk-foreign": "org-2"}, tells_owner=False)
    desk.backend(name)
    job = desk.submit(plain(3))
    desk.settle(job)
    account = desk.detail(job)["shards"][0]["account"]
    assert account.startswith("key:")
    desk.key(name, "sk-foreign")
    desk.start_anew()
    desk.later(HOUR, job)
    assert "which cannot see it" in desk.said[-1]
    assert not desk.is_over(job)
    desk.key(name, "sk-rotated")
    desk.start_anew()
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    paid_once(desk, 3)
    assert desk.detail(job)["shards"][0]["account"] not in (account, None)


@pytest.mark.long
def test_trap_g9_an_orphan_is_looked_for_with_a_rotated_key_that_shows_another_batch(desk: Desk) -> None:
    desk.provider.settings(accounts={KEY: "org-1", "sk-rotated": "org-1"}, tells_owner=False)
    desk.backend(limits={"max_rows": 2})
    script(desk, "cut_after", verb="create", nth=2)
    job = desk.submit(plain(4))
    desk.settle(job)
    desk.key("openai", "sk-rotated")
    desk.start_anew()
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 4)
    assert len(desk.batches()) == 2


# --- the ends of waits


@pytest.mark.thinned(3)
@pytest.mark.parametrize("status", [405, 500, 403])
def test_trap_g10_files_that_can_never_be_deleted_hold_up_nothing_and_are_told_once(desk: Desk, status: int) -> None:
    script(desk, "status", verb="delete_file", status=status, times=None)
    job = desk.submit(plain(2))
    desk.settle(job)
    desk.later(HOUR, job)
    assert desk.is_over(job)
    assert desk.ends(job) == all_are("succeeded", 2)
    for _ in range(60):
        desk.later(HOUR)
    told = desk.events(job, "left")
    assert told
    assert all("cannot be deleted" in text and "orch reconcile --delete-files" in text for text in told)
    tries = sum(desk.provider.calls("delete_file").values())
    for _ in range(30):
        desk.later(HOUR)
    assert sum(desk.provider.calls("delete_file").values()) == tries, "it is given up"


@pytest.mark.long
@pytest.mark.thinned(12)
@pytest.mark.parametrize(
    ("verb", "facts"),
    [
        ("upload", {"do": "status", "status": 500}),
        ("upload", {"do": "cut_before"}),
        ("upload", {"do": "html_page"}),
        ("upload", {"do": "bare_status", "status": 400}),
        ("create", {"do": "status", "status": 500}),
        ("create", {"do": "cut_before"}),
        ("create", {"do": "redirect", "status": 308, "to": "nowhere"}),
        ("create", {"do": "bare_status", "status": 429}),
        ("create", {"do": "status", "status": 401}),
        ("create", {"do": "status", "status": 404, "code": "file_not_found", "message": "No such file."}),
        ("create", {"do": "older_batch"}),
        ("retrieve", {"do": "status", "status": 500}),
        ("retrieve", {"do": "status", "status": 404}),
        ("retrieve", {"do": "bare_status", "status": 404}),
        ("retrieve", {"do": "json_null"}),
        ("retrieve", {"do": "earlier_status"}),
        ("retrieve", {"do": "new_status"}),
        ("retrieve", {"do": "status", "status": 403}),
        ("content", {"do": "status", "status": 500}),
        ("content", {"do": "status", "status": 404}),
        ("content", {"do": "half_json"}),
        ("content", {"do": "html_page"}),
        ("content", {"do": "status", "status": 403}),
        ("models", {"do": "status", "status": 500}),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value['do']} {value.get('status', '')}",
)
def test_trap_g10_whatever_fails_for_ever_a_job_comes_to_its_end(
    desk: Desk, verb: str, facts: dict[str, object]
) -> None:
    desk.backend()
    if facts["do"] == "older_batch":
        old = desk.run([row("old")])
        assert desk.ends(old) == {"old": "succeeded"}
    desk.provider.script({"match": {"verb": verb}, "times": None, **facts})
    job = desk.submit(plain(2))
    began = now()
    desk.finish(job)
    assert desk.is_over(job)
    assert now() - began < timedelta(days=30)
    assert all(end == "succeeded" or end.startswith("failed: ") for end in desk.ends(job).values())


@pytest.mark.long
@pytest.mark.thinned(8)
@pytest.mark.parametrize("fault", ["stuck_validating", "stuck_finalizing", "cancel_ignored", "slow_cancel"])
@pytest.mark.parametrize("name", ["openai", AZURE])
def test_trap_g10_a_batch_that_never_ends_is_given_up_and_its_job_is_over(desk: Desk, name: str, fault: str) -> None:
    desk.backend(name)
    if fault == "cancel_ignored":
        script(desk, "stuck_in_progress")
    if fault == "slow_cancel":
        script(desk, "slow_cancel", seconds=90 * DAY)
    else:
        script(desk, fault)
    job = desk.submit(plain(2))
    began = now()
    if fault in ("cancel_ignored", "slow_cancel"):
        desk.settle(job)
        desk.later(2 * MINUTE, job)
        desk.cancel(job)
    desk.finish(job)
    assert desk.is_over(job)
    assert now() - began < timedelta(days=30)
    assert set(desk.ends(job).values()) <= {"succeeded", "cancelled: cancelled"}
