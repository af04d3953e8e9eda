"""What befalls the files of a batch, and what its validation says of them, through the whole pipeline."""

from __future__ import annotations

import pytest

from tests.emulator.driving import jsonl
from tests.support.hostedjob import DAY, HOUR, Desk, all_are, cost_of, plain, row, script

BOM = b"\xef\xbb\xbf"

LINE_CODES = {
    "invalid_json_line": "This line is not parseable as valid JSON.",
    "missing_required_parameter": "Missing required parameter: 'custom_id'.",
    "duplicate_custom_id": "The custom_id 'r1' for this request is a duplicate of another request.",
    "mismatched_model": "The model 'x' for this request does not match the rest of the batch.",
    "invalid_request": "Messages parameter is required.",
    "streaming_unsupported": "Chat Completions: Streaming is not supported in the Batch API.",
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("code", LINE_CODES)
def test_trap_a6_a_line_that_validation_refuses_fails_alone_and_the_others_go_on(desk: Desk, code: str) -> None:
    script(desk, "fails", code=code, message=LINE_CODES[code], lines=[2])
    job = desk.run(plain(4))
    assert desk.ends(job) == {**all_are("succeeded", 4), "r1": f"failed: {code}"}
    assert desk.rows(job)["r1"]["error"]["message"] == LINE_CODES[code]
    assert [batch["rows"] for batch in desk.batches()] == [0, 3]
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["claude", "gemini", "bedrock", "vertex", "xai", "openrouter", "cohere"])
def test_trap_g2_failed_rows_among_the_answers_are_not_waited_for(desk: Desk, kind: str) -> None:
    """These providers have no second file, which would come up to 15 minutes later."""
    desk.backend(kind)
    job = desk.submit([row("bad", "status:400"), *plain(99)])
    desk.until(job, desk.batches)
    desk.later(3 * HOUR, job)
    ends = {name: end.partition(":")[0] for name, end in desk.ends(job).items()}
    assert ends == {**all_are("succeeded", 99), "bad": "failed"}


def test_trap_a6_several_bad_lines_are_told_at_once(desk: Desk) -> None:
    script(desk, "fails", code="invalid_request", message="no", lines=[1, 3, 4])
    job = desk.run(plain(5))
    assert [name for name, end in desk.ends(job).items() if end == "succeeded"] == ["r1", "r4"]
    assert len(desk.batches()) == 2


@pytest.mark.soak
def test_trap_a6_a_validation_that_names_only_the_first_bad_line_costs_the_good_rows_nothing(desk: Desk) -> None:
    script(desk, "fails", code="invalid_request", message="no", lines=[1], times=4)
    job = desk.run([*plain(4), row("last", "status:500:1")])
    assert desk.ends(job) == {**all_are("failed: invalid_request", 4), "last": "succeeded"}
    assert desk.attempts(job)["last"] == 2, "four refusals of others, one answer that failed, and an answer"


def test_trap_a6_a_line_of_no_row_of_ours_fails_the_batch_as_a_whole(desk: Desk) -> None:
    script(desk, "fails", code="invalid_request", message="The batch is odd.", lines=[99])
    job = desk.run(plain(2))
    assert desk.is_over(job)
    assert desk.ends(job) == all_are("failed: invalid_request", 2)


def test_trap_a6_an_input_file_that_the_provider_cannot_find_is_uploaded_again(desk: Desk) -> None:
    message = "Cannot find file file-1, or organization org-1 does not have access to it."
    script(desk, "fails", code="invalid_request", message=message, param="file_id")
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.provider.calls("upload") == {200: 2}
    assert desk.attempts(job)["r0"] == 1, "it is not a row's fault"


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("code", ["invalid_url", "url_mismatch"])
def test_trap_a6_a_batch_whose_endpoint_is_not_served_fails_with_that_word(desk: Desk, code: str) -> None:
    message = "The URL does not match the batch endpoint."
    script(desk, "fails", code=code, message=message, lines=[1], times=None)
    job = desk.run(plain(3), deadline="6h")
    assert desk.ends(job) == all_are(f"failed: {code}", 3)
    assert desk.billed() == {}


def test_trap_a6_a_model_that_the_batch_api_lacks_goes_to_another_backend_that_may_take_it(desk: Desk) -> None:
    desk.backends({"openai": {}, "azure": {}})
    message = "The provided model 'm' is not supported by the Batch API."
    desk.provider.script(
        {
            "do": "fails",
            "match": {"flavour": "openai"},
            "code": "model_not_found",
            "message": message,
            "lines": [1, 2, 3],
        }
    )
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert {found["provenance"]["backend"] for found in desk.rows(job).values()} == {"azure"}
    assert [shard["backend"] for shard in desk.detail(job)["shards"]] == ["openai", "azure"]


@pytest.mark.long
def test_trap_a6_a_model_that_nobody_has_fails_at_the_deadline_and_says_so(desk: Desk) -> None:
    desk.provider.settings(models=["another"])
    job = desk.run(plain(3), deadline="6h")
    assert desk.ends(job) == all_are("failed: model_not_found", 3)
    assert "The provided model 'm' is not supported by the Batch API." in desk.rows(job)["r0"]["error"]["message"]
    assert desk.billed() == {}


def test_trap_b_a_utf8_mark_never_reaches_a_provider(desk: Desk) -> None:
    """Azure refuses it, and says that the model is missing."""
    desk.backend("azure")
    lines = b"".join(BOM * (number == 0) + line for number, line in enumerate(_lines(3)))
    job = desk.run(desk.written(lines))
    assert desk.ends(job) == all_are("succeeded", 3)


def _lines(count: int) -> list[bytes]:
    return jsonl(plain(count)).splitlines(keepends=True)


# --- upload and download


@pytest.mark.thinned(2)
@pytest.mark.parametrize("verb", ["upload", "create"])
def test_trap_a1_a_file_that_is_too_large_is_cut_and_sent_in_smaller_batches(desk: Desk, verb: str) -> None:
    script(desk, "status", verb=verb, status=413)
    job = desk.run(plain(6))
    assert desk.ends(job) == all_are("succeeded", 6)
    assert [batch["rows"] for batch in desk.batches()] == [3, 3]
    assert set(desk.attempts(job).values()) == {1}


def test_trap_a1_a_single_row_that_is_too_large_fails_with_what_was_said(desk: Desk) -> None:
    script(desk, "status", verb="upload", status=413)
    job = desk.run(plain(1))
    assert desk.ends(job) == {"r0": "failed: http_413"}
    assert "larger than the 209715200 maximum" in desk.rows(job)["r0"]["error"]["message"]


@pytest.mark.long
def test_trap_a1_an_upload_that_is_refused_for_good_fails_its_rows_and_nothing_hangs(desk: Desk) -> None:
    message = "Invalid file format for Batch API. Must be .jsonl"
    script(desk, "status", verb="upload", status=400, code="invalid_request_error", message=message, times=None)
    job = desk.run(plain(2), deadline="6h")
    assert message in desk.rows(job)["r0"]["error"]["message"]
    assert desk.batches() == []


@pytest.mark.thinned(3)
@pytest.mark.parametrize("fault", ["cut_before", "cut_after", "status"])
def test_trap_1_6_an_upload_that_breaks_off_is_done_again(desk: Desk, fault: str) -> None:
    script(desk, fault, verb="upload", **({"status": 500} if fault == "status" else {}))
    job = desk.run(plain(2))
    assert desk.ends(job) == all_are("succeeded", 2)
    assert len(desk.batches()) == 1


@pytest.mark.thinned(2)
@pytest.mark.parametrize("whole_lines", [True, False], ids=["at a line", "amid a line"])
def test_trap_1_25_a_download_that_ends_too_soon_is_read_again_and_nothing_is_sent_twice(
    desk: Desk, whole_lines: bool
) -> None:
    """HTTP says that it is whole; only the batch's own count tells that it is not."""
    script(desk, "short_body", verb="content", share=0.5, whole_lines=whole_lines)
    job = desk.run(plain(6))
    assert desk.ends(job) == all_are("succeeded", 6)
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", ["cut_body", "cut_before", "hang_before", "status"])
def test_trap_1_36_a_download_that_breaks_is_done_again_and_nothing_is_sent_twice(desk: Desk, fault: str) -> None:
    desk.backend(request_timeout=3.0)
    script(desk, fault, verb="content", times=2, **({"status": 502} if fault == "status" else {}))
    job = desk.run(plain(5))
    assert desk.ends(job) == all_are("succeeded", 5)
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.long
def test_trap_a5_result_files_that_went_away_before_they_were_read_are_asked_for_anew(desk: Desk) -> None:
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.provider.clock.advance(40 * DAY)
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert [batch["rows"] for batch in desk.batches()] == [3, 3]
    assert "3 continue in another batch" in desk.events(job, "collected")[0]
    assert "its output file is no longer at the backend" in desk.events(job, "collected")[0]
    assert set(desk.attempts(job).values()) == {2}


# --- what is left at the provider


def test_trap_1_41_a_collected_job_leaves_no_file_at_the_provider(desk: Desk) -> None:
    job = desk.run([row("good"), row("bad", "status:400")])
    assert desk.detail(job)["requests"]["done"] == 2
    assert desk.files() == []
    assert len(desk.provider.state()["files"]) == 3, "its input, its output and its errors"


def test_what_a_killed_look_for_late_answers_has_downloaded_goes_with_its_shard(desk: Desk) -> None:
    job = desk.submit(plain(2))
    desk.settle(job)
    [shard] = desk.store.shards.of_job(job.id)
    late = desk.home.results(shard.id, "late")
    late.with_name(f"{late.name}.output").touch()
    late.with_name(f".{late.name}.error.partial").touch()
    desk.finish(job)
    assert [path for path in late.parent.iterdir() if "late" in path.name] == []


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("end", ["expired", "failed", "cancelled"])
def test_trap_a8_the_files_of_every_end_go(desk: Desk, end: str) -> None:
    if end == "expired":
        script(desk, "expires", share=0.5)
    elif end == "failed":
        script(desk, "fails", lines=[1])
    job = desk.submit(plain(4))
    desk.settle(job)
    if end == "cancelled":
        desk.later(330, job)
        desk.cancel(job)
    desk.finish(job)
    assert desk.batches()[0]["status"] == end
    assert desk.files() == []


@pytest.mark.soak
def test_trap_b_a_storage_quota_of_few_files_never_fills(desk: Desk) -> None:
    desk.backend(limits={"max_rows": 1})
    desk.provider.settings(max_files=3)
    for _ in range(3):
        job = desk.run(plain(2))
        assert desk.ends(job) == all_are("succeeded", 2)
    assert desk.files() == []


@pytest.mark.thinned(2)
@pytest.mark.parametrize("status", [403, 404, 429, 500])
def test_trap_a2_a_file_that_cannot_be_deleted_keeps_no_row_waiting(desk: Desk, status: int) -> None:
    script(desk, "status", verb="delete_file", status=status, times=1)
    job = desk.submit(plain(2))
    desk.settle(job)
    desk.later(HOUR, job)
    assert desk.ends(job) == all_are("succeeded", 2)
    desk.finish(job)
    assert desk.is_over(job)
