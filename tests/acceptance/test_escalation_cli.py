"""A list of models as its users have it: the command line before a provider whose cheap model answers badly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.client import Emulator
from tests.support.cli import CONFIG, Orch
from tests.support.hostedjob import KEY, RATES, USUAL, settings_of, table, write_toml

MINUTES_A_SECOND = 120.0
JOB = """\
name: letters
documents: {path: documents}
models: {analyst: [m, big]}
tasks:
  - id: facts
    model: analyst
    max_tokens: 60
    prompt: What are the facts?
    schema: {type: object, properties: {topic: {type: string}}, required: [topic]}
"""


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "provider") as provider:
        provider.clock.set(speed=MINUTES_A_SECOND)
        provider.settings(**USUAL | {"turnaround_s": [60, 60]}, latency_ms=1)
        yield provider


def test_a_bad_answer_goes_on_with_the_next_model_and_shows_in_rows_events_and_costs(
    provider: Emulator, run_orch: Orch, tmp_path: Path
) -> None:
    openai = settings_of(provider, "openai", poll_seconds=1)
    write_toml(
        run_orch.home / CONFIG,
        {"openai": openai},
        f"[prices.big]\n{table(RATES)}batch = {{input = 20, output = 80}}\n",
    )
    env = provider.environment | {openai["api_key_env"]: KEY}
    documents = tmp_path / "documents"
    documents.mkdir()
    for number in range(3):
        (documents / f"{number}.txt").write_text(f"Letter {number}.", encoding="utf-8")
    job_file = tmp_path / "job.yaml"
    job_file.write_text(JOB, encoding="utf-8")
    for nth, lines in ((1, [2, 3]), (2, [2])):
        provider.script(
            {"do": "rows", "match": {"nth": nth, "verb": "create"}, "row": "length", "lines": lines, "times": 1}
        )

    ran = run_orch("run", str(job_file), "--quiet", "--json", env=env)
    job = json.loads(ran.stdout)
    assert (ran.returncode, job["requests"]["succeeded"], job["requests"]["failed"]) == (1, 2, 1), ran.stderr
    said = [event["reason"] for event in job["events"] if event["kind"] == "collected"]
    assert said == ["1 succeeded, 2 continue with big: 2 truncated", "1 failed, 1 succeeded"]

    rows = [json.loads(line) for line in run_orch("fetch", job["job"], env=env).stdout.splitlines()]
    told = [(row["status"], row["provenance"]["model"], row["provenance"]["rung"]) for row in rows]
    assert told == [("succeeded", "m", 1), ("succeeded", "big", 2), ("failed", "big", 2)]
    assert rows[2]["error"]["code"] == "truncated"

    report = run_orch("report", "cost", "--by", "model", env=env).stdout
    assert {line.split()[0] for line in report.splitlines() if line.strip()} >= {"m", "big"}
    assert {line["model"]: line["rows"] for line in provider.bill()["lines"]} == {"m": 3, "big": 2}
