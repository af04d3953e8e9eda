"""What a plan takes a prompt to have in tokens: counted in a sample at first, what was billed once that is known."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core import tokens
from orchestrator.core.clock import now
from orchestrator.pipeline.plan import route_costs
from orchestrator.pipeline.plan.planning import Planning
from tests.support.hostedjob import RATES, Desk, row

TEXTS = {
    "english": "The parties agree that this contract ends with the year unless either of them writes before. ",
    "chinese": "双方同意，除非任何一方事先书面通知，否则本合同于日历年度结束时终止。",
    "code": "for (int i = 0; i < n; ++i) { sum += weights[i] * values[i]; }\n",
}


def expected(desk: Desk, rows: list[dict[str, object]]) -> Decimal:
    job = desk.submit(rows)  # type: ignore[arg-type]
    plan = Planning(desk.store, desk.config, desk.store.jobs.get(job.id), now()).plan()
    return plan.expected


@pytest.mark.parametrize("language", TEXTS)
def test_prompts_are_counted_whatever_language_they_are_in(desk: Desk, language: str) -> None:
    asked = [TEXTS[language] * count for count in (3, 9, 27)]
    rows = []
    for number, text in enumerate(asked):
        line = row(f"r{number}", max_tokens=1)
        line["body"]["messages"] = [{"role": "system", "content": "Read it."}, {"role": "user", "content": text}]
        rows.append(line)
    fed = sum(tokens.count(["Read it.", text]) for text in asked)
    cost = expected(desk, rows)
    # A whole number of tokens a row, and an answer of one.
    by_hand = (fed * RATES["input"] + 3 * RATES["output"]) / 1_000_000
    assert abs(cost - by_hand) <= 3 * RATES["input"] / 1_000_000


def test_rows_that_cost_nothing_are_not_counted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job = desk.submit([row("r0"), row("r1")])
    gpu = '[backends.gpu]\nupstreams = ["http://127.0.0.1:9/v1"]\nlocation = "local"\nidle = true\n'
    (desk.folder / "orch.toml").write_text(gpu, encoding="utf-8")
    desk.start_anew()
    monkeypatch.setattr(route_costs, "density", lambda *_: pytest.fail("it loads a vocabulary of 200,000 tokens"))
    planning = Planning(desk.store, desk.config, job, now())
    assert [route.backend for route in planning.plan().routes] == ["gpu"]
    assert [order.rows for order in planning.orders().sends] == [2]


def test_what_was_billed_is_taken_before_what_is_counted(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    documents = tmp_path / "documents"
    documents.mkdir()
    path.write_text(
        "name: letters\ndocuments: {path: documents}\nmodels: {small: m}\n"
        "tasks: [{id: facts, model: small, max_tokens: 1, prompt: 'What are the facts?'}]\n"
    )
    for number in range(20):
        (documents / f"{number}.txt").write_text(f"Letter {number}: " + "so it is agreed. " * 10)
    first = desk.submit(path)
    foreseen = Planning(desk.store, desk.config, desk.store.jobs.get(first.id), now()).plan().expected
    desk.finish(first)
    usage = desk.store.ledger.booked(first.id).usage
    for number in range(20):
        (documents / f"{number}.txt").write_text(f"Note {number}: " + "so it is agreed. " * 10)
    second = desk.submit(path)
    plan = Planning(desk.store, desk.config, desk.store.jobs.get(second.id), now()).plan()
    billed = (usage.input_tokens * RATES["input"] + 20 * RATES["output"]) / 1_000_000
    assert abs(plan.expected - billed) < billed / 20
    assert abs(foreseen - billed) > billed / 20, "the provider counts in a way of its own, or this shows nothing"
