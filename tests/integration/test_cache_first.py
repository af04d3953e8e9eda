"""A row that is asked before a batch of Anthropic and writes the cache that the batch reads: when, and its saving."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.clock import now
from orchestrator.core.model import Job
from orchestrator.pipeline.plan.mixed_planning import planning_of
from orchestrator.reports.plans import plan_json, plan_lines
from tests.support.hostedjob import HOUR, RATES, Desk, script, table

MODEL = "claude-sonnet-4-5"
LONG = "Classify the letter by these rules. " + " ".join(
    f"Rule {n}: letters of kind {n} go to desk {n}." for n in range(400)
)
ROWS = 30
BATCH = {**RATES, "cached": Decimal("0.2")}
PRICES = f"[prices.{MODEL}]\n{table({kind: 2 * rate for kind, rate in BATCH.items()})}batch = " + (
    f"{{ {', '.join(f'{kind} = {rate}' for kind, rate in BATCH.items())} }}\n"
)


@pytest.fixture
def claude(desk: Desk) -> Desk:
    return measured(desk)


def measured(desk: Desk) -> Desk:
    """A home whose batches at Anthropic have been over within minutes, five times."""
    desk.backends({"claude": {"preflight": True}}, PRICES)
    desk.provider.settings(turnaround_s=[60, 60], cache_after_s=20)
    for number in range(5):
        desk.run(job_file(desk, f"Night {number}", rows=3, system="Be brief."))
    desk.provider.settings(turnaround_s=[60, 60], cache_after_s=20)
    return desk


def job_file(desk: Desk, prompt: str, rows: int = ROWS, *, name: str = "job", **task: Any) -> Path:
    folder = desk.folder / "documents"
    folder.mkdir(exist_ok=True)
    for number in range(rows):
        (folder / f"{number:03}.txt").write_text(f"Letter {number}.", encoding="utf-8")
    asked = {"id": "t", "model": "small", "prompt": prompt, "max_tokens": 50, **task}
    spec = {"name": name, "documents": "documents", "tasks": [asked], "models": {"small": MODEL}}
    path = desk.folder / "job.yaml"
    path.write_text(json.dumps(spec), encoding="utf-8")
    return path


def tokens(desk: Desk, job: Job) -> list[tuple[int, int]]:
    """What each row read from the cache, and wrote to it, in order of size."""
    found = (row["provenance"]["tokens"] for row in desk.rows(job).values())
    return sorted((one["cached"], one["cache_write"]) for one in found)


def paid(desk: Desk) -> Decimal:
    """The provider's bill, a call at twice the price of a row in a batch."""
    total = Decimal(0)
    for line in desk.provider.bill()["lines"]:
        cost = (line["input"] - line["cached"] - line["cache_write"]) * BATCH["input"] + line["output"] * BATCH[
            "output"
        ]
        cost += line["cached"] * BATCH["cached"] + line["cache_write"] * BATCH["cache_write"]
        total += cost * (1 if line["tier"] == "batch" else 2)
    return total / 1_000_000


def spent(desk: Desk) -> Decimal:
    return sum((desk.cost(job) for job in desk.store.jobs.newest()), Decimal(0))


def is_marked(desk: Desk, job: Job) -> bool:
    """Whether a row of the job wrote the cache."""
    return any(one["preflight"] and one["preflight"].startswith("cache:") for one in desk.detail(job)["shards"])


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("where", ["system", "head"])
def test_one_row_writes_the_cache_and_the_batch_reads_it(claude: Desk, where: str) -> None:
    desk, before = claude, claude.provider.calls("chat").get(200, 0)
    task = {"system": LONG} if where == "system" else {}
    prompt = "Which desk?" if where == "system" else f"{LONG} The letter: {{{{ text }}}}"
    job = desk.run(job_file(desk, prompt, **task))
    first, *others = tokens(desk, job)
    assert first[0] == 0
    assert first[1] > 1024
    assert others == [(first[1], 0)] * (ROWS - 1)
    assert desk.provider.calls("chat")[200] == before + 1
    assert any("its cache saves about $" in text for text in desk.events(job, "routed"))
    assert spent(desk) == paid(desk)
    assert not desk.inputs(job)


def test_a_process_that_ends_at_each_step_pays_once(claude: Desk) -> None:
    desk = claude
    job = desk.submit(job_file(desk, "Which desk?", system=LONG))
    for _ in range(100):
        desk.step(job)
        desk.start_anew()
        desk.provider.clock.advance(30)
        if desk.is_over(job):
            break
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert [read > 0 for read, _ in tokens(desk, job)] == [False] + [True] * (ROWS - 1)
    assert set(desk.billed().values()) == {1}
    assert spent(desk) == paid(desk)


@pytest.mark.long
def test_the_plan_tells_what_it_saves(claude: Desk) -> None:
    desk = claude
    job = desk.submit(job_file(desk, "Which desk?", system=LONG))
    assert desk.daemon is not None
    plan = planning_of(desk.store, desk.config, job, now()).plan()
    [first] = plan.first_rows
    assert first.saves is not None
    assert first.saves > 0
    [told] = plan_json(plan)["first_rows"]
    assert Decimal(told["saves_usd"]) == first.saves
    assert any("the prompt cache that it writes saves about $" in str(line) for line in plan_lines(plan, None, None))
    desk.finish(job)
    tokens_read = sum(read for read, _ in tokens(desk, job))
    # Its tokens are counted here by another vocabulary than the provider's.
    assert first.saves / 2 < tokens_read * (BATCH["input"] - BATCH["cached"]) / 1_000_000 < first.saves * 2


@pytest.mark.long
def test_batches_of_hours_outlive_the_cache(claude: Desk) -> None:
    desk = claude
    desk.provider.settings(turnaround_s=[2 * HOUR, 2 * HOUR], cache_after_s=HOUR)
    for number in range(5):
        desk.run(job_file(desk, f"Longer night {number}", rows=2, system="Be brief."))
    assert not is_marked(desk, desk.run(job_file(desk, "Which desk?", system=LONG)))


@pytest.mark.long
def test_nothing_is_written_where_it_would_not_pay(desk: Desk) -> None:
    """Before batches are measured, for short prompts, for few rows, and close to the deadline."""
    desk.backends({"claude": {"preflight": True}}, PRICES)
    desk.provider.settings(turnaround_s=[60, 60], cache_after_s=20)
    # The first job's row that is asked first proves its fields, and would hide one that writes a cache.
    desk.run(job_file(desk, "Fields", rows=3, system="Be brief."))
    assert not is_marked(desk, desk.run(job_file(desk, "First night", system=LONG)))
    for number in range(5):
        assert not is_marked(desk, desk.run(job_file(desk, f"Night {number}", system="Be brief.")))
    assert not is_marked(desk, desk.run(job_file(desk, "Few", rows=ROWS, system="Rule. " * 300)))
    assert not is_marked(desk, desk.run(job_file(desk, "Each its own", system=LONG + " {{ name }}")))
    assert not is_marked(desk, desk.run(job_file(desk, "Soon", system=LONG), deadline="40m"))
    desk.backends({"claude": {"preflight": False}}, PRICES)
    assert not is_marked(desk, desk.run(job_file(desk, "Turned off", system=LONG)))


@pytest.mark.long
def test_a_batch_that_is_sent_too_late_does_not_pay_for_writing(claude: Desk) -> None:
    desk = claude
    script(desk, "status", verb="create", times=3, status=529)
    job = desk.run(job_file(desk, "Which desk?", system=LONG))
    assert is_marked(desk, job)
    assert sorted(written > 0 for _, written in tokens(desk, job)) == [False] * (ROWS - 1) + [True]
    assert spent(desk) == paid(desk)


@pytest.mark.long
def test_a_provider_that_does_not_take_the_mark_answers_without_it(claude: Desk) -> None:
    desk = claude
    words = "messages.0.content.0.cache_control: Extra inputs are not permitted"
    script(desk, "status", verb="chat", status=400, message=words)
    job = desk.run(job_file(desk, "Which desk?", system=LONG))
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert set(tokens(desk, job)) == {(0, 0)}
    assert len(desk.batches()) == 6
    assert spent(desk) == paid(desk)


@pytest.mark.long
@pytest.mark.thinned(2)
def test_a_cache_that_batches_do_not_read_is_not_written_again(desk_on_each: Desk) -> None:
    desk = measured(desk_on_each)
    desk.provider.settings(turnaround_s=[60, 60], cache_after_s=HOUR)
    first = desk.run(job_file(desk, "Which desk?", system=LONG))
    assert all(read == 0 and written > 0 for read, written in tokens(desk, first))
    again = desk.run(job_file(desk, "And which desk?", system=LONG))
    assert not is_marked(desk, again)
    assert spent(desk) == paid(desk)


@pytest.mark.long
def test_each_task_has_a_cache_of_its_own(claude: Desk) -> None:
    desk = claude
    file = job_file(desk, "Which desk?", system=LONG)
    spec = json.loads(file.read_text())
    spec["tasks"].append({**spec["tasks"][0], "id": "u", "prompt": "And why?"})
    file.write_text(json.dumps(spec), encoding="utf-8")
    job = desk.run(file)
    found = [one["preflight"].partition(" ")[0] for one in desk.detail(job)["shards"] if one["preflight"]]
    assert sorted(found) == ["cache:1h:t", "cache:1h:u"]
    assert sum(read > 0 for read, _ in tokens(desk, job)) >= 2 * (ROWS - 1)
    assert spent(desk) == paid(desk)


def test_a_lost_batch_is_known_by_its_lines_with_marks_too(claude: Desk) -> None:
    desk = claude
    script(desk, "cut_after", verb="create")
    job = desk.run(job_file(desk, "Which desk?", system=LONG))
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert set(desk.billed().values()) == {1}
    assert spent(desk) == paid(desk)
