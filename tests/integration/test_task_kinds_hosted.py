"""Vectors, labels and responses by way of a hosted Batch API: from the job file to rows, columns and money."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.core.clock import now
from orchestrator.core.errors import InputError, RefusedError
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.policy import confidence
from tests.emulator.answers import DIMENSIONS
from tests.support.hostedjob import MODEL, RATES, Desk, cost_of

EMBED = {"id": "vec", "kind": "embedding", "model": "m"}
CLASSIFY = {"id": "sort", "kind": "classify", "model": "m", "labels": ["bill", "letter"], "logprobs": True}
OUTPUT_FREE = "[prices.vectors]\ninput = 4\nbatch = {input = 2}\n"
"""The price of a model that makes vectors: it has none for output."""


def job_file(desk: Desk, *tasks: dict[str, Any], documents: int = 3, **more: Any) -> Path:
    folder = desk.folder / "in"
    folder.mkdir(exist_ok=True)
    for number in range(documents):
        (folder / f"{number:02d}.txt").write_text(f"This is letter number {number}.", encoding="utf-8")
    path = desk.folder / "job.yaml"
    spec = {"name": "kinds", "documents": "in", "tasks": list(tasks), "models": {"m": MODEL}, **more}
    path.write_text(json.dumps(spec), encoding="utf-8")  # JSON is YAML
    return path


@pytest.mark.long
def test_vectors_become_a_column_of_vectors(desk: Desk) -> None:
    """With a model that has no price for output: nothing of it is billed, and nothing is expected."""
    desk.backends({"openai": {}}, OUTPUT_FREE)
    ask = {"id": "gist", "prompt": "What?", "model": "text", "max_tokens": 5}
    path = job_file(
        desk, ask, EMBED, models={"m": "vectors", "text": MODEL}, output={"path": "out.parquet", "format": "parquet"}
    )
    job = desk.run(path)
    assert set(desk.ends(job).values()) == {"succeeded"}
    rows = [row for row in desk.rows(job).values() if row["task"] == "vec"]
    assert [len(row["output"]) for row in rows] == [DIMENSIONS] * 3
    assert {row["provenance"]["tokens"]["output"] for row in rows} == {0}
    fed = sum(row["provenance"]["tokens"]["input"] for row in rows)
    paid = sum(Decimal(row["provenance"]["cost_usd"]) for row in rows)
    assert paid == fed * Decimal(2) / 1_000_000

    table = pq.read_table(desk.folder / "out.parquet")
    assert table.schema.field("vec.vector").type == pa.list_(pa.float32(), DIMENSIONS)
    found = table.column("vec.vector").to_pylist()
    assert [one for one in found if one is not None] == [pytest.approx(row["output"]) for row in rows]
    file, vector = desk.folder / "out.parquet", f'"vec.vector"::FLOAT[{DIMENSIONS}]'
    near = duckdb.sql(
        f"""SELECT document FROM '{file}' WHERE task = 'vec' ORDER BY array_distance({vector},
        (SELECT {vector} FROM '{file}' WHERE task = 'vec' AND document = 'in/01.txt')) LIMIT 1"""
    ).fetchall()
    assert near == [("in/01.txt",)]


def test_the_plan_and_the_budget_expect_no_output_of_vectors(desk: Desk) -> None:
    desk.backends({"openai": {}}, OUTPUT_FREE)
    job = desk.submit(job_file(desk, EMBED, models={"m": "vectors"}, documents=40, budget="0.01"))
    plan = Planning(desk.store, desk.config, desk.store.jobs.get(job.id), now()).plan()
    desk.finish(job)
    fed = sum(row["provenance"]["tokens"]["input"] for row in desk.rows(job).values())
    by_hand = fed * float(RATES["input"]) / 1_000_000
    assert float(plan.expected) == pytest.approx(by_hand, rel=0.3)
    assert desk.cost(job) == Decimal(fed) * 2 / 1_000_000


@pytest.mark.long
def test_a_second_night_pays_for_new_vectors_only(desk: Desk) -> None:
    desk.backend()
    desk.run(job_file(desk, EMBED))
    second = desk.run(job_file(desk, EMBED, documents=4))
    whys = [row["provenance"]["why"] for row in desk.rows(second).values()]
    assert sorted(whys) == ["new", "unchanged", "unchanged", "unchanged"]
    assert all(len(row["output"]) == DIMENSIONS for row in desk.rows(second).values())
    third = desk.submit(job_file(desk, {**EMBED, "prompt": "title: {{ text }}"}, documents=4))
    assert {row["provenance"]["why"] for row in desk.rows(third).values()} == {"prompt changed"}


def test_a_vector_of_another_size_is_no_answer(desk: Desk) -> None:
    desk.backend()
    job = desk.run(job_file(desk, {**EMBED, "dimensions": DIMENSIONS + 1}))
    assert set(desk.ends(job).values()) == {"failed: invalid_vector"}
    assert desk.cost(job) > 0, "it was billed all the same"


def test_a_backend_without_the_endpoint_is_not_asked(desk: Desk) -> None:
    desk.backend("claude")
    for task, url in ((EMBED, "/v1/embeddings"), ({**CLASSIFY, "endpoint": "responses"}, "/v1/responses")):
        with pytest.raises(RefusedError, match=f"its batches do not support {url}, only /v1/chat/completions"):
            desk.submit(job_file(desk, task))
    desk.backends({"claude": {}, "openai": {}})
    job = desk.run(job_file(desk, EMBED))
    assert {row["provenance"]["backend"] for row in desk.rows(job).values()} == {"openai"}


def test_vectors_of_several_models_are_not_mixed(desk: Desk) -> None:
    desk.backend()
    with pytest.raises(InputError, match="vectors of several models cannot be compared"):
        desk.submit(job_file(desk, EMBED, models={"m": [MODEL, "other"]}))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("endpoint", ["chat", "responses"])
def test_labels_have_a_probability_and_known_answers_make_it_a_confidence(desk: Desk, endpoint: str) -> None:
    desk.backend()
    task, number = {**CLASSIFY, "endpoint": endpoint}, confidence.ENOUGH + 10
    gold = [{"document": f"in/{n:02d}.txt", "task": "sort", "expect": {"label": "letter"}} for n in range(number - 5)]
    path = job_file(
        desk, task, documents=number, gold="gold.jsonl", output={"path": "out.parquet", "format": "parquet"}
    )
    (desk.folder / "gold.jsonl").write_text("".join(json.dumps(line) + "\n" for line in gold))
    job = desk.run(path)
    rows = list(desk.rows(job).values())
    assert {row["output"]["label"] for row in rows} == {"bill", "letter"}
    assert all(0 < row["output"]["probability"] <= 1 for row in rows), [row["output"] for row in rows]
    right = sum(row["output"]["label"] == "letter" for row in rows[: number - 5]) / (number - 5)
    sure = [row["output"]["confidence"] for row in rows]
    # The emulated model is sure at random: the curve must come to about the share that is right.
    assert sum(sure) / len(sure) == pytest.approx(right, abs=0.1)
    table = duckdb.sql(
        f"""SELECT "sort.label", "sort.probability", "sort.confidence" FROM '{desk.folder / "out.parquet"}'"""
    )
    assert table.fetchall() == [tuple(row["output"].values()) for row in rows]

    (desk.folder / "gold.jsonl").write_text("".join(json.dumps(line) + "\n" for line in gold[:3]))
    assert {row["output"]["confidence"] for row in desk.rows(job).values()} == {None}, "too few to say"
    (desk.folder / "gold.jsonl").unlink()
    assert {row["output"]["confidence"] for row in desk.rows(job).values()} == {None}


@pytest.mark.long
def test_responses_are_checked_and_asked_again(desk: Desk) -> None:
    desk.backend()
    task = {
        "id": "ask", "prompt": "What?", "model": "m", "endpoint": "responses", "retries": 1,
        "schema": {"type": "object", "properties": {"kind": {"const": "letter"}}, "required": ["kind"]},
    }  # fmt: skip
    path = job_file(desk, task)
    (desk.folder / "in/00.txt").write_text("[[fault:length]] never whole")
    job = desk.run(path)
    assert sorted(desk.ends(job).values()) == ["failed: truncated", "succeeded", "succeeded"]
    assert desk.events(job, "collected") == [
        "2 succeeded, 1 is re-asked: 1 truncated", "1 failed",
    ]  # fmt: skip
    assert [row["output"] for row in desk.rows(job).values() if row["error"] is None] == [{"kind": "letter"}] * 2
    assert desk.cost(job) == cost_of(desk.provider.bill())
