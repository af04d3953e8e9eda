"""Long documents before an emulated provider: asked in parts, then about their answers; each is paid for once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import InputError
from orchestrator.core.model import Job, RequestState
from orchestrator.policy.requests import custom_id
from tests.support.hostedjob import RATES, Desk, cost_of, script, table

Json = dict[str, Any]
PARTS = {"part_tokens": 200, "overlap_tokens": 20}
LONG = {**PARTS, "reduce": "Make one answer of these."}


def clauses(count: int) -> list[str]:
    """Paragraphs of some 50 tokens, each another one."""
    return [
        f"Clause {number}. " + f"Party {number} pays {number * 7} on day {number}. " * 4 for number in range(count)
    ]


def job_file(desk: Desk, long: Json, *, models: Json | None = None, **task: Any) -> Path:
    asked = {"id": "t", "prompt": "What is owed?", "model": "small", "max_tokens": 60, "long": long, **task}
    spec = {"name": "job", "documents": "documents", "tasks": [asked], "models": {"small": "m", **(models or {})}}
    path = desk.folder / "job.yaml"
    path.write_text(json.dumps(spec), encoding="utf-8")  # JSON is YAML
    return path


def document(desk: Desk, name: str, *paragraphs: str) -> None:
    folder = desk.folder / "documents"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n\n".join(paragraphs), encoding="utf-8")


def asked(desk: Desk, job: Job) -> dict[str, Json]:
    """The bodies of the job's request lines, by custom_id; of two the last."""
    lines = map(json.loads, desk.home.requests(job.id).read_bytes().splitlines())
    return {line["custom_id"]: line["body"] for line in lines}


def staged(desk: Desk, job: Job, stage: str | None) -> list[Json]:
    return [row for row in desk.rows(job).values() if row["stage"] == stage]


@pytest.mark.long
def test_a_long_document_has_one_answer_made_of_its_parts(desk: Desk) -> None:
    document(desk, "long.txt", *clauses(12))
    document(desk, "short.txt", "Nothing is owed.")
    job = desk.run(job_file(desk, LONG, system="You answer for a lawyer."))

    assert set(desk.ends(job).values()) == {"succeeded"}
    [whole], parts, [short] = (staged(desk, job, stage) for stage in ("reduce", "map", None))
    assert whole["custom_id"] == custom_id(whole["document"], "t")
    assert (short["document"], short["part"], short["parts"]) == ("documents/short.txt", None, None)
    assert len(parts) > 3
    assert [(row["part"], row["parts"]) for row in parts] == [(n, len(parts)) for n in range(1, len(parts) + 1)]
    assert (whole["part"], whole["parts"]) == (None, len(parts))

    told = "\n".join(f"<answer>\n{row['output']}\n</answer>" for row in parts)
    assert asked(desk, job)[whole["custom_id"]] == {
        "model": "small",
        "messages": [
            {"role": "system", "content": "You answer for a lawyer."},
            {"role": "user", "content": f"<answers>\n{told}\n</answers>\n\nMake one answer of these."},
        ],
        "max_tokens": 60,
    }
    assert [shard["rows"] for shard in desk.detail(job)["shards"]] == [len(parts) + 1, 1]
    assert desk.billed() == dict.fromkeys(desk.rows(job), 1)
    assert desk.cost(job) == cost_of(desk.provider.bill())
    [built] = desk.events(job, "built")
    assert built.startswith(f"{len(parts) + 2} requests of 2 documents, 1 created later from the answers to parts, ")
    assert sum(float(row["provenance"]["cost_usd"]) for row in parts) > 0


@pytest.mark.long
def test_the_next_night_asks_the_parts_that_changed_and_for_the_answer(desk: Desk) -> None:
    written = clauses(20)
    document(desk, "long.txt", *written)
    document(desk, "other.txt", *clauses(8)[::-1])
    path = job_file(desk, LONG, temperature=0.7)  # nothing but an earlier run may answer for it
    first = desk.run(path)
    parts = len([row for row in staged(desk, first, "map") if row["document"] == "documents/long.txt"])
    written[9] = written[9].replace("pays 63", "pays 64")
    document(desk, "long.txt", *written)
    second = desk.run(path)

    rows = desk.rows(second)
    fresh = {name: row for name, row in rows.items() if row["provenance"]["carried_from"] is None}
    assert [row["document"] for row in fresh.values()] == ["documents/long.txt"] * len(fresh)
    assert {row["provenance"]["why"] for row in fresh.values()} == {"document changed"}
    assert next(row["stage"] for row in fresh.values()) == "reduce"
    assert 1 <= len(fresh) - 1 <= 3 < parts
    whole = custom_id("documents/long.txt", "t")
    told = "\n".join(row["output"] for row in staged(desk, second, "map") if row["document"] == "documents/long.txt")
    assert told in asked(desk, second)[whole]["messages"][0]["content"].replace("<answer>\n", "").replace(
        "</answer>\n", ""
    )
    assert {name: times for name, times in desk.billed().items() if times > 1} == {whole: 2}
    # And then nothing is left to be asked.
    assert desk.submit(path).id == second.id


@pytest.mark.long
def test_another_reduce_prompt_asks_for_the_answer_alone(desk: Desk) -> None:
    document(desk, "long.txt", *clauses(12))
    document(desk, "short.txt", "Nothing is owed.")
    desk.run(job_file(desk, LONG, temperature=0.7))
    job = desk.run(job_file(desk, {**LONG, "reduce": "{{ answers | join('; ') }}: which is right?"}, temperature=0.7))
    [whole] = staged(desk, job, "reduce")
    fresh = [row for row in desk.rows(job).values() if row["provenance"]["carried_from"] is None]
    assert fresh == [whole]
    assert whole["provenance"]["why"] == "prompt changed"
    told = "; ".join(row["output"] for row in staged(desk, job, "map"))
    assert asked(desk, job)[whole["custom_id"]]["messages"] == [
        {"role": "user", "content": f"{told}: which is right?"}
    ]


@pytest.mark.long
def test_a_document_fails_with_its_part_and_is_tried_again_with_it(desk: Desk) -> None:
    document(desk, "long.txt", *clauses(12))
    path = job_file(desk, LONG)
    script(desk, "rows", verb="create", nth=1, row="filtered", lines=[2])
    job = desk.run(path)
    [whole], parts = staged(desk, job, "reduce"), staged(desk, job, "map")
    assert [row["status"] for row in parts] == ["succeeded", "failed"] + ["succeeded"] * (len(parts) - 2)
    assert (whole["status"], whole["error"]["code"]) == ("failed", "part_failed")
    assert whole["error"]["message"].startswith(f"part 2 of {len(parts)} is failed: content_filter: ")
    assert [shard["rows"] for shard in desk.detail(job)["shards"]] == [len(parts)]

    desk.store.rows.retry(job.id, [RequestState.FAILED])
    desk.finish(job)
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert [shard["rows"] for shard in desk.detail(job)["shards"]] == [len(parts), 1, 1]


def test_answers_that_are_too_long_for_one_request_are_told(desk: Desk) -> None:
    document(desk, "long.txt", *clauses(12))
    job = desk.run(job_file(desk, {**LONG, "reduce_tokens": 30}))
    [whole], parts = staged(desk, job, "reduce"), staged(desk, job, "map")
    assert {row["status"] for row in parts} == {"succeeded"}
    assert whole["error"]["code"] == "answers_too_long"
    assert f"the answers to its {len(parts)} parts make a request of" in whole["error"]["message"]
    assert len(desk.billed()) == len(parts)


def test_a_prompt_that_trips_over_the_answers_fails_its_document(desk: Desk) -> None:
    document(desk, "long.txt", *clauses(12))
    job = desk.run(job_file(desk, {**LONG, "reduce": "{{ answers[99] }}"}))
    [whole] = staged(desk, job, "reduce")
    assert (whole["status"], whole["error"]["code"]) == ("failed", "template")


def test_the_parts_answers_may_go_to_another_model(desk: Desk) -> None:
    desk.backends({"openai": {}}, f"[prices.big]\n{table(RATES)}batch = {{input = 20, output = 80}}\n")
    document(desk, "long.txt", *clauses(12))
    job = desk.run(job_file(desk, {**LONG, "reduce_model": "strong"}, models={"strong": "big"}))
    assert set(desk.ends(job).values()) == {"succeeded"}
    parts = len(staged(desk, job, "map"))
    assert {line["model"]: line["rows"] for line in desk.provider.bill()["lines"]} == {"m": parts, "big": 1}
    with pytest.raises(InputError, match="the model alias 'weak' is not declared") as refused:
        desk.submit(job_file(desk, {**LONG, "reduce_model": "weak"}))
    assert refused.value.field == "tasks[0].long.reduce_model"
    with pytest.raises(InputError, match=r"models\.strong: has names for elsewhere"):
        desk.submit(job_file(desk, {**LONG, "reduce_model": "strong"}, models={"strong": {"elsewhere": "big"}}))


def test_what_a_kill_left_of_a_request_does_no_harm(desk: Desk) -> None:
    document(desk, "long.txt", *clauses(12))
    job = desk.submit(job_file(desk, LONG))
    desk.settle(job)
    path = desk.home.requests(job.id)
    aside = path.rename(path.with_suffix(".aside"))
    path.mkdir()
    desk.later(3600, job)
    [waits] = [row for row in desk.rows(job).values() if row["status"] == "pending"]
    assert waits["stage"] == "reduce"
    assert any(f"cannot use {path}" in said for said in desk.said)
    path.rmdir()
    aside.rename(path)
    with path.open("ab") as file:
        file.write(b'{"custom_id": "' + waits["custom_id"].encode() + b'", "bo')
    desk.start_anew()
    desk.finish(job)
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.billed() == dict.fromkeys(desk.rows(job), 1)


@pytest.mark.long
def test_a_job_that_is_cancelled_ends_what_waits_for_its_parts(desk: Desk) -> None:
    document(desk, "long.txt", *clauses(12))
    job = desk.submit(job_file(desk, LONG))
    desk.settle(job)
    desk.cancel(job)
    desk.finish(job)
    assert {row["error"]["code"] for row in staged(desk, job, "reduce")} == {"cancelled"}
    assert RequestState.PENDING not in set(desk.ends(job).values())
    desk.store.rows.retry(job.id, [RequestState.CANCELLED])
    desk.finish(job)
    assert set(desk.ends(job).values()) == {"succeeded"}
