"""What is otherwise at Azure, through the whole pipeline."""

from __future__ import annotations

import re

import pytest

from tests.support.hostedjob import HOUR, MINUTE, Desk, all_are, cost_of, plain, row, script


@pytest.fixture(autouse=True)
def azure(desk: Desk) -> None:
    desk.backend("azure")


def test_trap_b_status_casing_iso_times_and_null_counts(desk: Desk) -> None:
    job = desk.submit(plain(3))
    desk.settle(job)
    assert desk.states(job) == ["submitted (validating)"]
    desk.later(5 * MINUTE, job)
    assert desk.states(job) == ["submitted (in_progress)"]
    assert desk.detail(job)["requests"]["done"] == 0, "it gives no numbers while it runs"
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.states(job) == ["collected (completed)"]
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_b_an_error_file_without_a_byte_is_no_failure_and_goes_too(desk: Desk) -> None:
    job = desk.run(plain(3))
    names = [file["name"] for file in desk.provider.state()["files"]]
    assert sum(name.endswith("_error.jsonl") for name in names) == 1
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.files() == []


@pytest.mark.long
def test_trap_b_a_batch_that_runs_over_its_24_hours_is_waited_for_and_said(desk: Desk) -> None:
    script(desk, "turnaround", seconds=40 * HOUR)
    job = desk.submit(plain(3))
    desk.settle(job)
    for _ in range(25):
        desk.later(HOUR, job)
    assert desk.held(job) == ["running over its window of 24 h, which this provider allows"]
    assert len(desk.batches()) == 1
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.billed() == dict.fromkeys(all_are("", 3), 1)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("code", ["model_mismatch", "invalid_request", "invalid_json_line", "duplicate_custom_id"])
def test_trap_b_codes_of_lines_in_azures_spelling(desk: Desk, code: str) -> None:
    script(desk, "fails", code=code, message="no", lines=[2])
    job = desk.run(plain(3))
    assert desk.ends(job) == {**all_are("succeeded", 3), "r1": f"failed: {code}"}


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "code", ["too_many_tasks", "input_modified", "input_no_permissions", "empty_file", "empty_batch"]
)
def test_trap_b_codes_that_are_no_rows_fault(desk: Desk, code: str) -> None:
    script(desk, "fails", code=code, message="It was refused.")
    job = desk.run(plain(4))
    assert desk.ends(job) == all_are("succeeded", 4)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("code", "batches"), [("empty_file", 3), ("empty_batch", 3)])
def test_trap_b_codes_of_a_batch_as_such_end_it_with_their_word(desk: Desk, code: str, batches: int) -> None:
    script(desk, "fails", code=code, message="It was refused.", times=None)
    job = desk.run(plain(2))
    assert desk.ends(job) == all_are(f"failed: {code}", 2)
    assert desk.rows(job)["r0"]["error"]["message"] == "It was refused."
    assert len(desk.batches()) == batches


@pytest.mark.soak
def test_trap_b_a_deployment_that_is_not_there_is_named(desk: Desk) -> None:
    message = "The API deployment for this resource does not exist."
    script(desk, "fails", code="DeploymentNotFound", message=message, times=None)
    job = desk.run(plain(2), deadline="6h")
    assert set(desk.ends(job).values()) == {"failed: DeploymentNotFound"}
    assert desk.billed() == {}


@pytest.mark.long
def test_trap_b_a_region_that_queues_batches_itself_is_waited_for_and_said(desk: Desk) -> None:
    desk.backend("azure", limits={"max_rows": 1}, poll_seconds=1)
    desk.provider.settings(enqueued_tokens={"m": 4}, azure_queues=True, turnaround_s=[1800, 1800])
    job = desk.submit(plain(2, max_tokens=5))
    desk.settle(job)
    for _ in range(25):
        desk.later(MINUTE, job)
    assert "submitted (validating)" in desk.states(job)
    assert any(re.fullmatch(r"validating for 2\d min; usual p90 10 min \(assumed\)", text) for text in desk.held(job))
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 2)
    assert {batch["status"] for batch in desk.batches()} == {"completed"}


def test_trap_b_rows_name_the_deployment_as_it_is_called_there(desk: Desk) -> None:
    folder = desk.folder
    (folder / "documents").mkdir()
    (folder / "documents" / "a.txt").write_text("A letter.", encoding="utf-8")
    path = folder / "job.yaml"
    path.write_text(
        "name: letters\ndocuments: {path: documents}\nmodels: {small: {azure: our-deployment}}\n"
        "tasks:\n  - {id: sum, model: small, max_tokens: 60, prompt: Summarise.}\n",
        encoding="utf-8",
    )
    price = "[prices.our-deployment]\ninput = 1\noutput = 1\nbatch = {input = 1, output = 1}\n"
    desk.backends({"openai": {}, "azure": {}}, price)
    job = desk.run(path)
    assert [batch["model"] for batch in desk.batches()] == ["our-deployment"]
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.detail(job)["shards"][0]["backend"] == "azure", "the other one has no name for it"


def test_trap_b_an_orphan_is_found_by_its_metadata_there_too(desk: Desk) -> None:
    script(desk, "cut_after", verb="create")
    job = desk.run([*plain(2), row("bad", "content_filter")])
    assert desk.ends(job) == {**all_are("succeeded", 2), "bad": "failed: content_filter"}
    assert len(desk.batches()) == 1
