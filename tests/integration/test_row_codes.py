"""Answers under another row's key, before the emulated providers: found by codes and by quotes, and not taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.clock import now
from orchestrator.core.model import Job
from orchestrator.core.row_codes import PROPERTY, code_of
from orchestrator.policy.alerts import AlertKind, MonitoredJob, due
from orchestrator.reports.night_reader import job_report
from orchestrator.settings.config import AlertSettings
from tests.support.hostedjob import HOUR, Desk, cost_of, script
from tests.support.stored import over

Json = dict[str, Any]
SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
STRICT = {**SCHEMA, "additionalProperties": False}


def job_file(desk: Desk, *tasks: Json, name: str = "job", documents: int = 6, model: str = "m") -> Path:
    folder = desk.folder / "documents"
    folder.mkdir(exist_ok=True)
    for number in range(documents):
        (folder / f"d{number}.txt").write_text(f"Party {number} pays {number}00 EUR to party {number + 1}, by rail.")
    asked = [{"id": f"t{n}", "prompt": f"Who pays? ({n})", "model": "small", "max_tokens": 90} for n in range(9)]
    told = [{**one, **task} for one, task in zip(asked, tasks, strict=False)]
    path = desk.folder / "job.yaml"
    spec = {"name": name, "documents": "documents", "tasks": told, "models": {"small": model}}
    path.write_text(json.dumps(spec), encoding="utf-8")
    return path


def codes(desk: Desk, job: Job) -> dict[str, int]:
    """How many rows ended how."""
    found: dict[str, int] = {}
    for end in desk.ends(job).values():
        found[end] = found.get(end, 0) + 1
    return found


KINDS = {"openai": 6, "azure": 6, "claude": 6, "gemini": 6, "mistral": 6, "xai": 6, "openrouter": 6, "together": 6,
         "scaleway": 6, "fireworks": 6, "cohere": 6, "vertex": 6, "bedrock": 110}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_code_comes_back_from_each_provider_and_is_in_no_result(desk: Desk, kind: str) -> None:
    desk.backend(kind)
    job = desk.run(job_file(desk, {"check": "nonce", "schema": STRICT}, documents=KINDS[kind]))
    assert codes(desk, job) == {"succeeded": KINDS[kind]}
    assert [sorted(row["output"]) for row in desk.rows(job).values()] == [["a"]] * KINDS[kind]
    assert PROPERTY not in desk.home.requests(job.id).read_text(encoding="utf-8")
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.parametrize("kind", KINDS)
def test_trap_i_an_answer_under_the_key_of_another_row_is_not_taken(desk: Desk, kind: str) -> None:
    desk.backend(kind)
    script(desk, "swapped_keys", lines=[1, 2])
    job = desk.run(job_file(desk, {"check": "nonce", "schema": STRICT}, documents=KINDS[kind]))
    assert codes(desk, job) == {"failed: swapped_answer": 2, "succeeded": KINDS[kind] - 2}
    [told] = desk.events(job, "swapped")
    [batch] = desk.detail(job)["shards"]
    assert told.startswith(f"{kind} gave 2 answers of batch {batch['batch_id']} to the wrong rows (")
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.long
@pytest.mark.thinned(2)
def test_trap_i_a_batch_with_a_swap_proves_nothing_about_answers_without_a_code(desk_on_each: Desk) -> None:
    desk = desk_on_each
    script(desk, "swapped_keys", lines=[1, 3])
    file = job_file(desk, {"check": "nonce", "schema": SCHEMA}, {"schema": SCHEMA}, documents=3)
    job = desk.run(file)
    assert codes(desk, job) == {"failed: swapped_answer": 2, "failed: unproven_answer": 3, "succeeded": 1}
    assert [row["output"] for row in desk.rows(job).values() if row["error"]] == [None] * 5

    current = desk.store.jobs.get(job.id)
    events = desk.store.jobs.events(job.id)
    counts = desk.store.jobs.counts([job.id])[job.id]
    [alert] = [one for one in due(MonitoredJob(current, counts, events=events), AlertSettings(), now())
               if one.what.startswith("swapped")]  # fmt: skip
    assert alert.kind is AlertKind.QUALITY
    [batch] = desk.detail(job)["shards"]
    assert batch["batch_id"] in alert.message
    assert "openai" in alert.message
    [line] = over(desk.store, current)
    report = job_report(desk.store, desk.home, line, now())
    assert report.needs[0].kind == "swapped"
    assert batch["batch_id"] in report.needs[0].text

    # The next night does not ask them again, and releasing them does.
    again = desk.run(file)
    assert codes(desk, again) == codes(desk, job)
    assert desk.provider.calls("create") == {200: 1}


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("checked", [True, False])
def test_trap_i_late_answers_under_the_keys_of_other_rows_are_not_taken(desk: Desk, checked: bool) -> None:
    """They come once their rows were released, but before these were sent again."""
    script(desk, "late_output_id", seconds=28 * HOUR)
    script(desk, "swapped_keys", lines=[1, 3])
    check: Json = {"check": "nonce"} if checked else {}
    job = desk.submit(job_file(desk, {**check, "schema": SCHEMA}, {"schema": SCHEMA}, documents=3))
    desk.settle(job)
    desk.later(HOUR, job)
    script(desk, "status", verb="upload", status=500, times=None)
    for _ in range(30):
        desk.later(HOUR, job)
    desk.provider.clear()
    desk.finish(job)
    assert codes(desk, job) == {"succeeded": 6}
    told = desk.events(job, "swapped")
    if not checked:  # nothing shows it
        assert (told, desk.events(job, "late")) == ([], ["6 answers arrived after all"])
        return
    [one] = told
    assert "gave 2 answers of batch" in one
    assert "; 3 other answers of it cannot be proved: these answers came late, and are not taken" in one
    assert desk.events(job, "late") == ["1 answer arrived after all, 5 came too late for their rows, and are booked"]
    assert [batch["rows"] for batch in desk.batches()] == [6, 5]
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_keys_that_all_rows_pass_on_are_swaps_and_none_is_taken(desk: Desk) -> None:
    script(desk, "swapped_keys", lines=[1, 2, 3, 4, 5, 6])
    job = desk.run(job_file(desk, {"check": "nonce", "schema": SCHEMA}))
    assert codes(desk, job) == {"failed: swapped_answer": 6}


@pytest.mark.long
def test_a_code_that_no_row_has_is_a_failed_check_and_is_asked_again(desk: Desk) -> None:
    script(desk, "rows", row="miscopied_code", lines=[1])
    job = desk.run(job_file(desk, {"check": "nonce", "schema": SCHEMA, "retries": 1}))
    assert codes(desk, job) == {"succeeded": 6}
    assert any("1 is re-asked: 1 wrong_row_code" in text for text in desk.events(job, "collected"))
    assert not desk.events(job, "swapped")
    script(desk, "rows", row="miscopied_code", lines=[1])
    other = desk.run(job_file(desk, {"check": "nonce", "schema": SCHEMA, "prompt": "Who is paid?"}))
    assert codes(desk, other) == {"failed: wrong_row_code": 1, "succeeded": 5}


@pytest.mark.long
def test_a_code_is_no_part_of_a_row(desk: Desk) -> None:
    """Answers carry over when the check comes and goes, and to tasks of other jobs that do not know codes."""
    plain = desk.run(job_file(desk, {"schema": SCHEMA}))
    coded = desk.run(job_file(desk, {"check": "nonce", "schema": SCHEMA}))
    assert desk.provider.calls("create") == {200: 1}
    fingerprints = [{row["custom_id"]: row["output"] for row in desk.rows(job).values()} for job in (plain, coded)]
    assert fingerprints[0] == fingerprints[1]

    first = desk.run(job_file(desk, {"check": "nonce", "schema": SCHEMA, "prompt": "And who is paid?"}, name="coded"))
    file = job_file(desk, {"schema": SCHEMA, "prompt": "And who is paid?"}, name="bare")
    second = desk.run(file)
    assert desk.provider.calls("create") == {200: 2}
    outputs = [[row["output"] for row in desk.rows(job).values()] for job in (first, second)]
    assert outputs[0] == outputs[1]
    assert all(sorted(output) == ["a"] for output in outputs[1])


@pytest.mark.long
def test_parts_have_codes_and_the_question_about_them_does_not_show_these(desk: Desk) -> None:
    (desk.folder / "documents").mkdir()
    (desk.folder / "documents" / "long.txt").write_text(" ".join(f"Clause {n} says {n}." for n in range(900)))
    long = {"part_tokens": 1500, "overlap_tokens": 0, "reduce": "Which of these?"}
    task = {"check": "nonce", "schema": SCHEMA, "long": long}
    job = desk.run(job_file(desk, task, documents=0))
    assert set(codes(desk, job)) == {"succeeded"}
    assert PROPERTY not in desk.home.requests(job.id).read_text(encoding="utf-8")


def quoting(desk: Desk, quotes: list[str], *more: str) -> Path:
    """A task whose answers are these quotes, one of each document; the answer to the last one has more of them."""
    every = [[quote] for quote in quotes[:-1]] + [[quotes[-1], *more]]
    told = [{f"q{n}": {"type": "string", "const": one, "x-quote": True} for n, one in enumerate(of)} for of in every]
    schemas = [{"type": "object", "properties": some, "required": [*some]} for some in told]
    tasks = [{"schema": schema, "sources": f"d{n}"} for n, schema in enumerate(schemas)]
    file = job_file(desk, *tasks, documents=len(quotes))
    spec = json.loads(file.read_text())
    spec["documents"] = [{"path": f"documents/d{n}.txt", "name": f"d{n}"} for n in range(len(quotes))]
    file.write_text(json.dumps(spec), encoding="utf-8")
    return file


def own(number: int) -> str:
    return f"Party {number} pays {number}00 EUR to party {number + 1}, by rail"


def test_trap_i_quotes_of_another_document_are_a_swap(desk: Desk) -> None:
    file = quoting(desk, [own(1), own(0), own(2), own(3)])
    job = desk.run(file)
    assert codes(desk, job) == {"failed: swapped_answer": 2, "succeeded": 2}
    assert len(desk.events(job, "swapped")) == 1


@pytest.mark.parametrize("quote", ["Party 9 pays 900 EUR to party 10, by rail and ship", "to party 1, by rail"])
def test_other_quotes_that_are_not_there_are_no_swap(desk: Desk, quote: str) -> None:
    """They are in no document, or too short to say in which."""
    job = desk.run(quoting(desk, [own(0), own(1), own(2), quote]))
    assert codes(desk, job) == {"failed: quote_not_found": 1, "succeeded": 3}
    assert not desk.events(job, "swapped")


@pytest.mark.parametrize(
    ("quote", "end"),
    [
        ("to party 1, by rail", "failed: swapped_answer"),
        ("to party 2, by rail", "failed: quote_not_found"),
        ("to party 9, by ship", "failed: quote_not_found"),
    ],
)
def test_a_short_quote_beside_a_long_one_is_of_the_same_document(desk: Desk, quote: str, end: str) -> None:
    job = desk.run(quoting(desk, [own(0), own(1), own(2), own(0)], quote))
    assert codes(desk, job) == {end: 1, "succeeded": 3}
    assert len(desk.events(job, "swapped")) == (end != "failed: quote_not_found")


def test_a_quote_of_several_other_documents_is_no_swap(desk: Desk) -> None:
    common = "Both parties settle their accounts within thirty days."
    file = quoting(desk, [own(0), own(1), own(2), common])
    for number in range(2):
        (desk.folder / "documents" / f"d{number}.txt").write_text(f"{own(number)}. {common}")
    job = desk.run(file)
    assert codes(desk, job) == {"failed: quote_not_found": 1, "succeeded": 3}
    assert not desk.events(job, "swapped")


def test_codes_differ_between_rows_and_jobs_and_not_between_runs() -> None:
    found = {code_of(job, f"t-{n}") for job in ("a", "b") for n in range(500)}
    assert len(found) == 1000
    assert code_of("a", "t-1") == code_of("a", " T-1 ")
    assert all(len(code) == 8 and code.isalnum() for code in found)
