"""Answers that end at `max_tokens`, from a real upstream to every place where a user looks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import Orch, write_config
from tests.support.process import Upstream

JOB = """\
name: cut
models: {m: some-model}
documents: [{path: documents}]
tasks:
  - {id: summary, model: m, max_tokens: 20, prompt: "What is it about?"}
"""


@pytest.fixture
def letters(tmp_path: Path, orch_home: Path, upstream: Upstream) -> Path:
    """A job over five letters, two of whose answers end at `max_tokens`."""
    write_config(orch_home, [upstream.base_url], retry_delay=0.01)
    (tmp_path / "documents").mkdir()
    for number in range(5):
        fault = " [[fault:length]]" if number in (1, 3) else ""
        (tmp_path / "documents" / f"{number}.txt").write_text(f"Letter {number}.{fault}", encoding="utf-8")
    job = tmp_path / "job.yaml"
    job.write_text(JOB, encoding="utf-8")
    return job


def test_cut_answers_are_counted_wherever_a_user_looks(letters: Path, run_orch: Orch) -> None:
    done = run_orch("run", str(letters))
    assert done.returncode == 0, done.stderr
    assert "2 of the answers ended at max_tokens" in " ".join(done.stdout.split())
    job = json.loads(run_orch("status", "--json").stdout)[0]
    assert (job["requests"]["succeeded"], job["requests"]["cut"]) == (5, 2)
    assert json.loads(run_orch("status", job["job"], "--json").stdout)["requests"]["cut"] == 2
    [report] = json.loads(run_orch("report", "night", "--json").stdout)["jobs"]
    assert report["requests"]["cut"] == 2
    assert "2 of the answers ended at max_tokens" in run_orch("report", "night", "--md").stdout


@pytest.mark.long
def test_fail_on_cut_is_for_scripts_that_need_whole_answers(letters: Path, run_orch: Orch) -> None:
    assert run_orch("run", str(letters), "--fail-on", "any").returncode == 0
    # The same job again sends nothing, and its carried answers are as they were.
    assert run_orch("run", str(letters), "--fail-on", "cut").returncode == 1
    (letters.parent / "documents" / "5.txt").write_text("Letter 5.", encoding="utf-8")
    assert run_orch("run", str(letters), "--fail-on", "cut").returncode == 1
    carried = json.loads(run_orch("status", "cut", "--json").stdout)
    assert (carried["carried"], carried["requests"]["cut"]) == (5, 2)
    for number in (1, 3):
        (letters.parent / "documents" / f"{number}.txt").write_text("Whole.", encoding="utf-8")
    assert run_orch("run", str(letters), "--fail-on", "cut").returncode == 0


def test_a_full_window_is_no_complete_answer_though_the_server_says_stop(letters: Path, run_orch: Orch) -> None:
    for number in range(5):
        (letters.parent / "documents" / f"{number}.txt").write_text("[[fault:full]]" * (number == 2) or "Whole.")
    assert run_orch("run", str(letters)).returncode == 1
    told = json.loads(run_orch("status", "cut", "--json").stdout)
    assert (told["requests"]["succeeded"], told["requests"]["failed"]) == (4, 1)
    assert [one["code"] for one in told["reasons"]] == ["context_full"]


@pytest.mark.long
def test_answers_with_other_marks_are_counted_too(letters: Path, run_orch: Orch) -> None:
    texts = ["Whole.", "[[fault:eos]]", "[[fault:window]]", "[[fault:fenced]]", "[[fault:eos]]"]
    for number, text in enumerate(texts):
        (letters.parent / "documents" / f"{number}.txt").write_text(f"Letter {number}. {text}", encoding="utf-8")
    schema = "{type: object, properties: {answer: {type: string}}, required: [answer]}"
    letters.write_text(JOB + f'  - {{id: facts, model: m, prompt: "What?", schema: {schema}}}\n', encoding="utf-8")
    done = run_orch("run", str(letters))
    assert done.returncode == 1, done.stderr
    shown = " ".join(done.stdout.split())
    assert "4 of the answers ended for a reason that is not known" in shown
    assert "1 of the answers had their JSON among other text" in shown
    job = json.loads(run_orch("status", "cut", "--json").stdout)
    counts = job["requests"]
    assert (counts["odd_ends"], counts["repaired"], counts["cut"], counts["failed"]) == (4, 1, 0, 2)
    codes = {one["code"] for one in job["reasons"]}
    assert codes == {"context_full"}, "a full context window is never a complete answer"
    [report] = json.loads(run_orch("report", "night", "--json").stdout)["jobs"]
    assert (report["requests"]["odd_ends"], report["requests"]["repaired"]) == (4, 1)
    assert "1 of the answers had their JSON among other text" in run_orch("report", "night", "--md").stdout
