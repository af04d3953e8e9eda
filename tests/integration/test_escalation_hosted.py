"""A job whose alias lists models, at hosted backends: bad answers go on with the next, and all of them are booked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.clock import now
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.settings.model_lists import Names
from tests.support.hostedjob import HOUR, RATES, Desk, script, table

PRICES = "".join(
    f"[prices.{model}]\n{table(RATES)}batch = {{input = 20, output = 80}}\n" for model in ("big", "huge")
)
SCHEMA = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}


def job_file(desk: Desk, texts: Sequence[str], models: Sequence[Names], **spec: Any) -> Path:
    folder = desk.folder / "documents"
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    path = desk.folder / "job.yaml"
    task = {"id": "t", "prompt": "What of it?", "model": "analyst", "max_tokens": 60, "schema": SCHEMA}
    # JSON is YAML.
    given = {"name": "night", "documents": "documents", "tasks": [task], "models": {"analyst": models}, **spec}
    path.write_text(json.dumps(given), encoding="utf-8")
    return path


def told(desk: Desk, job: Any) -> list[tuple[str, str, int, int]]:
    """Of each row: how it ended, who answered, on which rung, at which try."""
    found = []
    for row in desk.rows(job).values():
        end = row["status"] if row["error"] is None else f"{row['status']}: {row['error']['code']}"
        found.append((end, row["provenance"]["model"], row["provenance"]["rung"], row["provenance"]["attempt"]))
    return found


def test_bad_answers_go_on_with_the_next_model_and_everything_is_paid_for_once(desk: Desk) -> None:
    desk.backends({"openai": {}}, PRICES)
    # Each batch has the rows that the one before gave up; its lines are told from 1.
    for nth, lines in ((1, [2, 3, 4]), (2, [2, 3]), (3, [2])):
        script(desk, "rows", verb="create", nth=nth, row="length", lines=lines)
    job = desk.run(job_file(desk, ["Fine.", "Too long.", "Longer.", "Longest."], ["m", "big", "huge"]))

    assert told(desk, job) == [
        ("succeeded", "m", 1, 1),
        ("succeeded", "big", 2, 1),
        ("succeeded", "huge", 3, 1),
        ("failed: truncated", "huge", 3, 1),
    ]
    assert desk.events(job, "collected") == [
        "1 succeeded, 3 continue with big: 3 truncated",
        "1 succeeded, 2 continue with huge: 2 truncated",
        "1 failed, 1 succeeded",
    ]
    assert sorted(desk.billed().values()) == [1, 2, 3, 3]
    report = {total.model: total for total in desk.store.ledger.totals("model")}
    bill = {line["model"]: line for line in desk.provider.bill()["lines"]}
    assert {model: total.rows for model, total in report.items()} == {"m": 4, "big": 3, "huge": 2}
    assert {model: total.usage.output_tokens for model, total in report.items()} == {
        model: line["output"] for model, line in bill.items()
    }
    assert sum((total.cost for total in report.values()), Decimal(0)) == desk.cost(job)


def test_a_row_goes_on_only_to_a_backend_that_has_the_next_model(desk: Desk) -> None:
    desk.backends({"openai": {}, "azure": {}, "claude": {}}, PRICES)
    script(desk, "rows", verb="create", row="length", lines=[1])
    job = desk.run(job_file(desk, ["Too long.", "Fine."], [{"openai": "m", "azure": "m"}, {"claude": "big"}]))
    assert told(desk, job) == [("succeeded", "big", 2, 1), ("succeeded", "m", 1, 1)]
    assert [shard["backend"] for shard in desk.detail(job)["shards"]][-1] == "claude"


@pytest.mark.long
def test_a_job_on_a_budget_answers_all_rows_also_those_of_the_dear_model(desk: Desk) -> None:
    """A fifth of the rows goes on to a model of twenty times the price."""
    desk.backends({"openai": {}}, PRICES)
    bad = [2, 7, 12, 17, 22, 27, 32, 37]
    script(desk, "rows", verb="create", nth=1, row="length", lines=bad)
    path = job_file(desk, [f"Text {number}. " + "What is said here. " * 20 for number in range(40)], ["m", "big"])
    first = desk.run(path)
    assert {model for _, model, _, _ in told(desk, first)} == {"m", "big"}
    paid = desk.cost(first)
    path.write_text(path.read_text(encoding="utf-8").replace("What of it?", "What of it now?"), encoding="utf-8")
    budget = paid * Decimal("1.6")
    script(desk, "rows", verb="create", nth=1, row="length", lines=bad)
    job = desk.submit(path, budget=budget)
    desk.finish(job)
    assert [end for end, _, _, _ in told(desk, job)] == ["succeeded"] * 40
    assert [model for _, model, _, _ in told(desk, job)].count("big") == 8
    assert desk.cost(job) <= budget


@pytest.mark.long
def test_what_goes_on_to_a_stronger_model_is_foreseen_at_its_price(desk: Desk) -> None:
    """A fifth of the rows went on to a model of twenty times the price: the next run is told what that costs."""
    desk.backends({"openai": {}}, PRICES)
    script(desk, "rows", verb="create", nth=1, row="length", lines=[2, 4])
    path = job_file(desk, [f"Text {number}." for number in range(10)], ["m", "big"])
    first = desk.run(path)
    assert [model for _, model, _, _ in told(desk, first)].count("big") == 2
    path.write_text(path.read_text(encoding="utf-8").replace("What of it?", "What of it now?"), encoding="utf-8")
    job = desk.submit(path)
    plan = Planning(desk.store, desk.config, desk.store.jobs.get(job.id), now()).plan()
    cheap = sum((route.cost.p50 for route in plan.routes), Decimal(0))
    spent = desk.cost(first)
    assert plan.expected > 1.5 * float(cheap), "the stronger model is in what is expected"
    assert plan.at_most >= spent * Decimal("0.9")
    desk.finish(job)
    assert desk.cost(job) <= plan.at_most


@pytest.mark.long
@pytest.mark.thinned(12)
@pytest.mark.parametrize("lists", ["same", "another"])
@pytest.mark.parametrize("at", ["the first model", "no model", "the next model"])
def test_an_edited_file_does_not_ask_a_model_again_whose_answers_were_bad(
    desk_on_each: Desk, at: str, lists: str
) -> None:
    desk = desk_on_each
    desk.backends({"openai": {}}, PRICES)
    script(desk, "rows", verb="create", nth=1, row="length", lines=[2, 3])
    path = job_file(desk, ["Fine.", "Too long.", "Longer."], ["m", "big"])
    first = desk.submit(path)
    desk.until(first, lambda: len(desk.batches()) == 1)
    if at != "the first model":
        desk.provider.clock.advance(HOUR)
        desk.until(first, lambda: desk.states(first)[0].startswith("collected"))
    if at == "the next model":
        desk.until(first, lambda: len(desk.batches()) == 2)
    text = path.read_text(encoding="utf-8")
    edited = text.replace('"night"', '"day"') if lists == "same" else text.replace('"big"', '"huge"')
    path.write_text(edited, encoding="utf-8")
    second = desk.submit(path)
    desk.finish(first, second)
    asked = {line["model"]: line["rows"] for line in desk.provider.bill()["lines"]}
    if lists == "same":
        assert [end[:3] for end in told(desk, second)[1:]] == [
            ("succeeded", "big", None if at == "the next model" else 2)
        ] * 2
        assert asked == {"m": 3, "big": 2}
    else:
        assert asked["m"] == 5, "its rungs are other models"
    assert desk.cost(first) + desk.cost(second) == sum(
        (total.cost for total in desk.store.ledger.totals("model")), Decimal(0)
    )
