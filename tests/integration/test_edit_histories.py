"""Random edits of a job file while its batches are out, with kills among them: the bill has every request once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from orchestrator.core.errors import RefusedError
from orchestrator.core.model import Job
from orchestrator.pipeline.succession import Edited
from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.emulator.driving import chat_line, jsonl
from tests.support.cli import CONFIG, Orch, kill_group
from tests.support.hostedjob import KEY, MODEL, Desk, cost_of, settings_of, write_toml
from tests.support.process import wait_until

ROWS, EDITS, KILLS = 9, 6, 5
SPEED = 900.0
"""Virtual seconds a second: a batch of minutes takes less than one."""


@pytest.fixture
def desk(desk_on_each: Desk) -> Desk:
    desk_on_each.backend(limits={"max_rows": 4})
    return desk_on_each


def content(version: list[int]) -> bytes:
    """Lines that say which version of each is asked; equal versions are the same request, and have one name."""
    found = [
        chat_line(f"r{row}-{of}", f"what of {row}, {of}?", MODEL, max_tokens=50, temperature=0)
        for row, of in enumerate(version)
    ]
    return jsonl(found)


@pytest.mark.parametrize("seed", range(4))
def test_every_request_of_a_history_of_edits_is_billed_once(desk: Desk, seed: int) -> None:
    dice = random.Random(f"edits {seed}")
    version, path = [0] * ROWS, desk.folder / "requests.jsonl"
    jobs: dict[str, Job] = {}
    for number in range(EDITS):
        path.write_bytes(content(version))
        edited = dice.choice([None, None, Edited.SUPERSEDE])
        try:
            job = desk.submit(path, edited=edited)
            jobs[job.id] = job
        except RefusedError:
            pass
        open_ = [one for one in jobs.values() if not desk.is_over(one)]
        match dice.randrange(4):
            case 0:
                pass
            case 1:
                desk.later(dice.choice([20.0, 300.0, 700.0]), *open_)
            case 2:
                desk.settle(*open_)
                desk.start_anew()
            case 3:
                desk.settle(*open_)
        if number < EDITS - 1:
            for row in dice.sample(range(ROWS), dice.randrange(1, 3)):
                version[row] += 1
        if dice.random() < 0.2:
            desk.provider.script({"do": "expires", "match": {"nth": 1}, "times": 1})
    last = job
    desk.finish(*jobs.values())
    assert set(desk.ends(last).values()) == {"succeeded"}
    assert len(desk.ends(last)) == ROWS
    assert set(desk.billed().values()) == {1}
    assert sum(desk.cost(one) for one in jobs.values()) == cost_of(desk.provider.bill())


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
def test_killed_between_edits_nothing_is_paid_twice(run_orch: Orch, tmp_path: Path, database_url: str) -> None:
    dice = random.Random("kills between edits")
    (tmp_path / "documents").mkdir()
    for number in range(ROWS):
        (tmp_path / "documents" / f"{number}.txt").write_text(f"Letter {number}.")
    path = tmp_path / "job.yaml"
    with Emulator(tmp_path / "provider", speed=SPEED) as provider:
        provider.settings(turnaround_s=[900, 1800], latency_ms=20)
        found = {"openai": settings_of(provider, "openai", poll_seconds=0.2, limits={"max_rows": 4})}
        write_toml(run_orch.home / CONFIG, found)
        env = {**provider.environment, "OPENAI_KEY": KEY, "ORCH_DATABASE_URL": database_url}

        def edit(number: int) -> None:
            path.write_text(
                f"name: letters\ndocuments: documents\nmodels: {{small: {MODEL}}}\ntags: {{edit: n{number}}}\n"
                "tasks: [{id: who, prompt: Who wrote this, model: small}]\n"
            )

        def calls() -> int:
            return sum(entry["count"] for entry in provider.state()["requests"])

        kills = 0
        for number in range(KILLS):
            edit(number)
            before, least = calls(), dice.randint(0, 9)
            process = run_orch.start("run", str(path), "-q", env=env)
            wait_until(lambda p=process, b=before, n=least: p.poll() is not None or calls() >= b + n, 60.0)
            time.sleep(dice.uniform(0, 0.2))  # where in the next step the kill strikes
            kills += process.poll() is None
            kill_group(process)
            process.wait()
        edit(KILLS)
        done = run_orch("run", str(path), "-q", env=env)
        assert done.returncode == 0, done.stderr
        drained = run_orch.start("up", env=env)
        with Store.open(database_url) as store:
            wait_until(lambda: all(one.finished_at is not None for one in store.jobs.newest()), 60.0)
            kill_group(drained)
            drained.wait()
            jobs = store.jobs.newest()
            counts = store.jobs.counts([jobs[0].id])[jobs[0].id]
            spent = sum(store.ledger.spent(one.id) for one in jobs)
        assert kills >= 2
        assert (counts.succeeded, counts.total) == (ROWS, ROWS)
        assert set(provider.bill(rows=True)["rows"].values()) == {1}
        assert len(provider.bill(rows=True)["rows"]) == ROWS
        assert spent == cost_of(provider.bill())
