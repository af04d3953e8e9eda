"""A home that 0.1.0 made opens, finishes what was under way, and tells the same money and outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.events import EventKind
from orchestrator.core.model import CancelCode, Job
from tests.emulator.client import Emulator
from tests.integration.test_escalation_hosted import job_file
from tests.support.earlier_home import put_home
from tests.support.hostedjob import RATES, Desk, desk_of, table

PRICES = f"[prices.big]\n{table(RATES)}batch = {{input = 20, output = 80}}\n"
MONTHLY = '[[budgets]]\nname = "all"\namount = 1\nperiod = "month"\nwarn_at = 0.0001\n'
SPENT = {
    "climbed": "0.004464", "rows-1": "0.000274", "canary": "0.000496", "half": "0.000848", "rows-2": "0",
    "rows-3": "0", "rows-4": "0",
}  # fmt: skip


@pytest.fixture
def earlier(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str) -> Iterator[Desk]:
    put_home(tmp_path, database_url)
    with desk_of(emulator, tmp_path, monkeypatch, database_url) as desk:
        emulator.clock.advance(3600)
        desk.backends({"openai": {}}, PRICES + MONTHLY)
        yield desk


def jobs(desk: Desk) -> dict[str, Job]:
    return {job.id.rpartition("-")[0]: job for job in desk.store.jobs.newest()}


def outcomes(desk: Desk, job: Job) -> Counter[str]:
    return Counter(desk.ends(job).values())


@pytest.mark.long
def test_it_tells_the_same_money_outcomes_and_reasons(earlier: Desk) -> None:
    found = jobs(earlier)
    assert {name: earlier.cost(job) for name, job in found.items()} == {k: Decimal(v) for k, v in SPENT.items()}
    assert outcomes(earlier, found["climbed"]) == {"succeeded": 3}
    assert [row["provenance"]["rung"] for row in earlier.rows(found["climbed"]).values()] == [1, 2, 2]
    assert outcomes(earlier, found["canary"]) == {"failed: truncated": 2, "cancelled: cancelled": 4}
    codes = {name: job.cancel_code for name, job in found.items() if job.cancel_code is not None}
    assert codes == {"canary": CancelCode.CANARY, "rows-2": CancelCode.BUDGET, "rows-3": CancelCode.BUDGET}
    stopped = {
        job.id: [one.code for one in earlier.store.jobs.events(job.id) if one.kind == EventKind.STOPPED]
        for job in found.values()
    }
    assert stopped[found["canary"].id] == [CancelCode.CANARY]
    assert stopped[found["rows-2"].id] == [CancelCode.BUDGET]
    [shard] = earlier.store.shards.of_job(found["rows-4"].id)
    assert (shard.refusal_code, shard.refusal) == ("invalid_model", "the model `m` cannot be used: ask support")


@pytest.mark.long
@pytest.mark.thinned(2)
def test_what_was_under_way_is_finished(earlier: Desk) -> None:
    found = jobs(earlier)
    going = [found[name] for name in ("half", "rows-2", "rows-4")]
    before = earlier.cost(found["half"])
    earlier.finish(*going)

    assert outcomes(earlier, found["half"]) == {"succeeded": 3}
    assert [row["provenance"]["rung"] for row in earlier.rows(found["half"]).values()] == [1, 2, 2]
    assert earlier.cost(found["half"]) > before, "the stronger model's answers are booked beside the first"
    assert earlier.ends(found["rows-2"]) == dict.fromkeys(("r0", "r1"), "cancelled: budget_exhausted")
    assert earlier.ends(found["rows-4"]) == dict.fromkeys(("r0", "r1"), "succeeded"), "refused alike: tried again"
    for job in going:
        warned = earlier.events(job, EventKind.BUDGET)
        assert len(warned) <= 1, "the budget's warning of the month is not told again"


def test_an_unchanged_job_of_it_sends_nothing(earlier: Desk) -> None:
    found = jobs(earlier)
    path = job_file(earlier, ["Fine.", "Too long.", "Longer."], ["m", "big"], name="climbed")
    again = earlier.run(path.rename(earlier.folder / "climbed.yaml"))
    assert earlier.batches() == []
    assert earlier.provider.calls("chat") == {}
    assert earlier.cost(again) == 0
    before, after = (earlier.rows(job) for job in (found["climbed"], again))
    assert [row["output"] for row in after.values()] == [row["output"] for row in before.values()]


def test_a_row_that_climbed_begins_again_with_the_first_model(earlier: Desk) -> None:
    job = jobs(earlier)["climbed"]
    assert earlier.store.rows.retry(job.id, ["succeeded"]) == 3
    waiting = earlier.store.rows.waiting(job.id)
    assert {row.model for row in waiting} == {"analyst"}
