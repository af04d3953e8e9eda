"""Tasks that show a model what was wrong with its answer: each answer is paid for once, and fills no one's cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.model import Job, RequestState
from tests.support.hostedjob import RATES, Desk, script, table

PRICES = f"[prices.big]\n{table(RATES)}batch = {{input = 20, output = 80}}\n"
SCHEMA = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}


def job_file(desk: Desk, texts: list[str], models: Any = "m", name: str = "job", **task: Any) -> Path:
    folder = desk.folder / "documents"
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    path = desk.folder / f"{name}.yaml"
    asked = {
        "id": "t", "prompt": "What of it?", "model": "analyst", "max_tokens": 60, "schema": SCHEMA, "retries": 1,
        **task,
    }  # fmt: skip
    # JSON is YAML.
    path.write_text(
        json.dumps({"name": name, "documents": "documents", "tasks": [asked], "models": {"analyst": models}}),
        encoding="utf-8",
    )
    return path


def lines(desk: Desk, job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in desk.home.requests(job.id).read_bytes().splitlines()]


def test_a_bad_answer_is_shown_to_its_model_and_mended(desk: Desk) -> None:
    desk.backend()
    script(desk, "rows", verb="create", nth=1, row="length", lines=[1, 3])
    job = desk.run(job_file(desk, ["One.", "Two.", "Three."]))

    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.events(job, "collected") == ["1 succeeded, 2 are re-asked: 2 truncated", "2 succeeded"]
    assert set(desk.attempts(job).values()) == {1}
    *_, first, second = lines(desk, job)
    assert [line["custom_id"] for line in (first, second)] == [lines(desk, job)[at]["custom_id"] for at in (0, 2)]
    assert [message["role"] for message in first["body"]["messages"]] == ["user", "assistant", "user"]
    assert "it was cut off before its end" in first["body"]["messages"][-1]["content"]
    assert sorted(desk.billed().values()) == [1, 2, 2]
    [total] = desk.store.ledger.totals("job")
    assert total.rows == 5
    assert total.wasted > 0
    assert total.cost == desk.cost(job)


@pytest.mark.long
def test_then_the_next_model_is_asked_as_the_first_was_and_then_it_fails(desk: Desk) -> None:
    desk.backends({"openai": {}}, PRICES)
    for nth in (1, 2, 3, 4):
        script(desk, "rows", verb="create", nth=nth, row="length", lines=[1])
    job = desk.run(job_file(desk, ["One."], ["m", "big"]))
    assert desk.events(job, "collected") == [
        "1 is re-asked: 1 truncated",
        "1 continues with big: 1 truncated",
        "1 is re-asked: 1 truncated",
        "1 failed",
    ]
    [shard] = [one for one in desk.store.shards.of_job(job.id) if one.number == 3]
    assert shard.bytes == desk.store.shards.of_job(job.id)[0].bytes
    assert {line["model"]: line["rows"] for line in desk.provider.bill()["lines"]} == {"m": 2, "big": 2}
    # Tried again by hand, it begins as it did at first.
    desk.store.rows.retry(job.id, [RequestState.FAILED])
    [waiting] = desk.store.rows.waiting(job.id)
    [first, *_] = lines(desk, job)
    assert (waiting.model, waiting.length) == ("analyst", len(json.dumps(first, separators=(",", ":"))))


@pytest.mark.long
def test_the_answer_is_carried_over_by_its_own_file_and_is_no_other_jobs(desk: Desk) -> None:
    desk.backend()
    script(desk, "rows", verb="create", nth=1, row="length", lines=[1])
    path = job_file(desk, ["One.", "Two."])
    desk.run(path)
    again = desk.submit(path)
    assert desk.is_over(again)

    other = desk.run(job_file(desk, [], name="other"))
    carried = [row.carried_from is not None for row in desk.store.rows.finished(other.id)]
    assert carried == [False, True]


def test_a_refusal_and_a_cancelled_job_are_not_argued_with(desk: Desk) -> None:
    desk.backend()
    script(desk, "rows", verb="create", nth=1, row="filtered", lines=[1])
    job = desk.run(job_file(desk, ["One."]))
    assert [row["error"]["code"] for row in desk.rows(job).values()] == ["content_filter"]
    assert len(desk.detail(job)["shards"]) == 1


def test_twins_take_the_mended_answer(desk: Desk) -> None:
    desk.backend()
    script(desk, "rows", verb="create", nth=1, row="length", lines=[1])
    job = desk.run(job_file(desk, ["Same.", "Same."]))
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert [shard["rows"] for shard in desk.detail(job)["shards"]] == [1, 1]
