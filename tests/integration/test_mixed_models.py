"""Jobs whose models no backend has together: each task's rows go where its model is."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import InputError, RefusedError
from tests.support.hostedjob import HOUR, RATES, Desk, cost_of, table

PRICES = "".join(
    f"[prices.m-{name}]\n{table({kind: 2 * rate for kind, rate in RATES.items()})}batch = "
    f"{{ {', '.join(f'{kind} = {rate}' for kind, rate in RATES.items())} }}\n"
    for name in ("openai", "claude")
)
AT_EACH = {"of-openai": {"openai": "m-openai"}, "of-claude": {"claude": "m-claude"}}


def backends(desk: Desk, **more: Any) -> None:
    desk.backends({"openai": more, "claude": more}, PRICES)


def job_file(desk: Desk, models: dict[str, Any] = AT_EACH, documents: int = 4, **more: Any) -> Path:
    (desk.folder / "documents").mkdir(exist_ok=True)
    for number in range(documents):
        (desk.folder / "documents" / f"{number}.txt").write_text(f"Letter {number}.", encoding="utf-8")
    tasks = [{"id": name, "model": name, "prompt": "Which topic?", "max_tokens": 60} for name in models]
    path = desk.folder / "job.yaml"
    spec = {"name": "job", "documents": "documents", "tasks": tasks, "models": models, **more}
    path.write_text(json.dumps(spec), encoding="utf-8")
    return path


def places(desk: Desk, job: Any) -> dict[str, set[str]]:
    """Where the rows of each task were answered."""
    found: dict[str, set[str]] = {}
    for row in desk.rows(job).values():
        assert row["status"] == "succeeded"
        found.setdefault(row["task"], set()).add(row["provenance"]["backend"])
    return found


@pytest.mark.long
def test_each_task_goes_to_the_provider_of_its_model(desk_on_each: Desk) -> None:
    desk = desk_on_each
    backends(desk)
    job = desk.run(job_file(desk))
    assert places(desk, job) == {"of-openai": {"openai"}, "of-claude": {"claude"}}
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert {line["model"]: line["rows"] for line in desk.provider.bill()["lines"]} == {"m-openai": 4, "m-claude": 4}


def test_an_alias_that_two_of_them_have_goes_to_the_one_that_fits(desk: Desk) -> None:
    backends(desk)
    models = {**AT_EACH, "of-both": {"openai": "m-openai", "claude": "m-claude"}}
    job = desk.run(job_file(desk, models))
    assert {task: len(found) for task, found in places(desk, job).items()} == dict.fromkeys(models, 1)


@pytest.mark.long
def test_a_row_is_asked_first_at_each_of_them(desk: Desk) -> None:
    backends(desk, preflight=True)
    job = desk.run(job_file(desk, documents=30))
    assert places(desk, job) == {"of-openai": {"openai"}, "of-claude": {"claude"}}
    assert len(desk.events(job, "preflight")) == 2
    assert sum(desk.provider.calls("chat").values()) == 2


@pytest.mark.long
def test_a_canary_goes_to_each_of_them(desk: Desk) -> None:
    backends(desk)
    job = desk.run(job_file(desk, documents=10, canary={"rows": 6}))
    assert places(desk, job) == {"of-openai": {"openai"}, "of-claude": {"claude"}}
    assert any("the others follow" in text for text in desk.events(job, "canary"))
    assert len(desk.batches()) == 4


@pytest.mark.long
def test_a_budget_is_shared_by_all_of_them(desk: Desk) -> None:
    backends(desk)
    file = job_file(desk)
    with pytest.raises(RefusedError):
        desk.submit(file, budget=Decimal("0.0000001"))
    job = desk.run(file, budget=Decimal(1))
    assert places(desk, job) == {"of-openai": {"openai"}, "of-claude": {"claude"}}


def test_a_model_that_no_backend_has_refuses_the_job(desk: Desk) -> None:
    backends(desk)
    with pytest.raises(InputError, match=r"models\.of-nobody: has names for nobody, and orch") as told:
        desk.submit(job_file(desk, {**AT_EACH, "of-nobody": {"nobody": "m"}}))
    assert "write  of-nobody: {openai: NAME}" in str(told.value.hint)
    with pytest.raises(RefusedError, match="the job allows openai"):
        desk.submit(job_file(desk, allow={"backends": ["openai"]}))


@pytest.mark.long
def test_one_that_is_away_holds_up_only_its_own_rows(desk: Desk) -> None:
    backends(desk)
    desk.provider.script({"do": "status", "status": 503, "match": {"flavour": "anthropic"}, "times": None})
    job = desk.submit(job_file(desk))
    for _ in range(20):
        desk.later(600, job)
    ends = [row["status"] for row in desk.rows(job).values() if row["task"] == "of-openai"]
    assert ends == ["succeeded"] * 4
    desk.provider.clear()
    desk.later(HOUR, job)
    desk.finish(job)
    assert places(desk, job) == {"of-openai": {"openai"}, "of-claude": {"claude"}}
