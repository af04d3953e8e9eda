"""A batch whose keys were swapped, as its user sees it: the run, the status, the report, and the rows let go of."""

from __future__ import annotations

import json
from pathlib import Path

from tests.emulator.client import Emulator
from tests.emulator.clock import START
from tests.support.cli import CONFIG, Orch
from tests.support.hostedjob import KEY, USUAL, settings_of, write_toml

MINUTES_A_SECOND = 1200.0
JOB = """\
name: letters
documents: {path: documents}
models: {small: m}
tasks:
  - id: facts
    model: small
    max_tokens: 90
    check: nonce
    prompt: What are the facts?
    schema: {type: object, properties: {topic: {type: string}}, required: [topic]}
"""


def test_a_swap_is_told_and_its_rows_can_be_asked_again(run_orch: Orch, tmp_path: Path) -> None:
    with Emulator(tmp_path / "provider") as provider:
        provider.clock.set(START, speed=MINUTES_A_SECOND)
        provider.settings(**USUAL)
        write_toml(run_orch.home / CONFIG, {"gemini": settings_of(provider, "gemini", poll_seconds=0.2)})
        env = {**provider.environment, "GEMINI_KEY": KEY}
        provider.script({"do": "swapped_keys", "match": {"verb": "create"}, "lines": [1, 2]})
        (tmp_path / "documents").mkdir()
        for number in range(4):
            (tmp_path / "documents" / f"{number}.txt").write_text(f"Letter {number}.", encoding="utf-8")
        file = tmp_path / "job.yaml"
        file.write_text(JOB, encoding="utf-8")

        ran = run_orch("run", str(file), "--backend", "gemini", env=env)
        assert ran.returncode == 1, ran.stderr
        assert "swapped_answer" in ran.stdout
        status = json.loads(run_orch("status", "letters", "--json", env=env).stdout)
        [batch] = status["shards"]
        [told] = [event["reason"] for event in status["events"] if event["kind"] == "swapped"]
        assert told.startswith(f"gemini gave 2 answers of batch {batch['batch_id']} to the wrong rows (")
        assert told in " ".join(run_orch("status", "letters", env=env).stdout.split())

        rows = [json.loads(line) for line in run_orch("fetch", "letters", env=env).stdout.splitlines()]
        assert sorted((row["status"], row["output"] is None) for row in rows) == [
            ("failed", True), ("failed", True), ("succeeded", False), ("succeeded", False),
        ]  # fmt: skip
        assert all(sorted(row["output"] or ["topic"]) == ["topic"] for row in rows)
        report = json.loads(run_orch("report", "night", "--json", env=env).stdout)
        assert any(need["kind"] == "swapped" and batch["batch_id"] in need["text"] for need in report["needs"])

        listed = json.loads(run_orch("quarantine", "list", "--json", env=env).stdout)
        assert [one["code"] for one in listed] == ["swapped_answer"] * 2
        assert run_orch("quarantine", "release", "--all", env=env).returncode == 0
        again = run_orch("run", str(file), "--backend", "gemini", "-q", env=env)
        assert again.returncode == 0, again.stderr
        assert sum(line["rows"] for line in provider.bill()["lines"]) == 6
