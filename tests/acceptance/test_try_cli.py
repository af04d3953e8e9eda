"""`orch try`: a few documents are asked now, where an answer comes at once, and the night does not ask them again."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.client import Emulator
from tests.support.cli import Orch, write_config
from tests.support.process import PATIENCE, Upstream, wait_until
from tests.unit.test_documents_pictures import drawing, saved

JOB = """\
name: letters
documents: [{path: letters}]
tasks:
  - {id: sort, model: small, prompt: "What is it?", max_tokens: 40}
models: {small: some-model}
deadline: 2020-01-01T00:00:00Z
after: somebody-else
output: {path: answers.jsonl}
"""
CLOUD = """
[backends.cloud]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key_env = "CLOUD_KEY"

[prices."some-model"]
input = 1
output = 2
batch = {input = 0.5, output = 1}
"""


@pytest.fixture
def orch(run_orch: Orch, orch_home: Path, upstream: Upstream, tmp_path: Path) -> Orch:
    (tmp_path / "letters").mkdir()
    for name in "abcdefg":
        (tmp_path / "letters" / f"{name}.txt").write_text(f"letter {name}\n" + "a line\n" * 20)
    (tmp_path / "job.yaml").write_text(JOB)
    write_config(orch_home, [upstream.base_url], extra=CLOUD)
    return run_orch


def tried(orch: Orch, *arguments: str, code: int = 0) -> Any:
    ran = orch("try", "job.yaml", *arguments, "--json", timeout=90)
    assert ran.returncode == code, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.long
def test_the_night_does_not_pay_again_for_what_was_tried(orch: Orch, upstream: Upstream, tmp_path: Path) -> None:
    found = tried(orch, "-n", "2", "--new")
    assert [(row["document"], row["status"]) for row in found["rows"]] == [
        ("letters/a.txt", "succeeded"), ("letters/b.txt", "succeeded"),
    ]  # fmt: skip
    assert "letter a" in found["rows"][0]["request"]["messages"][0]["content"]
    assert found["rows"][0]["provenance"]["backend"] == "local", "the one that answers at once"
    assert found["whole"]["problem"], "the deadline of the whole job has passed"
    assert not (tmp_path / "answers.jsonl").exists()

    lines = (line for line in JOB.splitlines() if not line.startswith(("deadline", "after")))
    (tmp_path / "job.yaml").write_text("\n".join(lines))
    again = tried(orch, "b.txt", "c.txt")
    assert [row["document"] for row in again["rows"]] == ["letters/b.txt", "letters/c.txt"]
    assert again["carried"] == 1
    assert (again["whole"]["requests"], again["whole"]["answered"]) == (7, 3)
    assert {route["backend"] for route in again["whole"]["plan"]["routes"]} == {"local"}

    there = ("submit", "job.yaml", "--backend", "cloud", "--dry-run", "--json")
    hosted = json.loads(orch(*there, env={"CLOUD_KEY": "k"}).stdout)
    assert (hosted["requests"], hosted["unchanged"]) == (7, 3), "also where the night runs elsewhere"
    ran = orch("run", "job.yaml", timeout=90)
    assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 7
    assert sorted(upstream.counts().values()) == [1] * 7


def test_a_sample_has_documents_of_all_kinds_and_lengths(orch: Orch, tmp_path: Path) -> None:
    letters = tmp_path / "letters"
    for number in range(6):
        (letters / f"z{number}.md").write_text("a long line of text\n" * (1 + 40 * number))
    found = tried(orch, "--sample", "4")
    names = sorted({row["document"] for row in found["rows"]})
    assert len(names) == 4
    assert {name.rpartition(".")[2] for name in names} == {"txt", "md"}
    lengths = [(tmp_path / name).stat().st_size for name in names if name.endswith(".md")]
    assert min(lengths) < 1000 < max(lengths)
    refused = orch("try", "job.yaml", "--sample", "2", "-n", "3")
    assert (refused.returncode, "leave out -n" in refused.stderr) == (2, True)


@pytest.mark.long
def test_documents_that_cannot_be_read_take_no_place_in_a_trial(orch: Orch, tmp_path: Path) -> None:
    letters = tmp_path / "letters"
    (letters / "a.txt").write_bytes(b"")
    (letters / "c.txt").write_text(" \n")
    ran = orch("try", "job.yaml", "-n", "2", "--no-estimate")
    assert ran.returncode == 0, ran.stderr
    assert "read 2; 2 empty" in ran.stderr
    found = tried(orch, "--sample", "6", "--no-estimate", "--new", code=1)
    assert sorted(row["document"] for row in found["rows"]) == [f"letters/{name}.txt" for name in "bcdefg"]
    named = tried(orch, "a.txt", "--no-estimate", code=1)
    assert [row["error"]["code"] for row in named["rows"]] == ["empty"], "it was asked for by name"
    for path in letters.iterdir():
        path.write_bytes(b"")
    refused = orch("try", "job.yaml", "-n", "2")
    assert refused.returncode == 2
    assert "none of 7 documents can be read: letters/a.txt: It contains no text" in " ".join(refused.stderr.split())


@pytest.mark.long
def test_two_job_files_side_by_side_in_80_columns(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(JOB.replace("What is it?", "Which kind?").replace("some-", "another-"))
    found = tried(orch, "-n", "1", "--against", "other.yaml", "--no-estimate")
    models = [one["rows"][0]["provenance"]["model"] for one in (found, found["against"])]
    assert models == ["some-model", "another-model"]
    assert found["whole"] is None

    command = [sys.executable, "-m", "orchestrator.cli", "try", "job.yaml", "-n", "1", "--against", "other.yaml"]
    shown = on_terminal(orch, [*command, "--no-estimate", "-q"], tmp_path)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    for text in ("job.yaml", "other.yaml", "What is it?", "Which kind?", "some-model at local", "passes its check"):
        assert text in shown
    assert any("What is it?" in line and "Which kind?" in line for line in lines), "next to each other"
    assert "more lines (--full" in shown


def on_terminal(orch: Orch, command: list[str], folder: Path) -> str:
    """What a command shows on a terminal of 80 columns, without colours."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "ORCH_HOME": str(orch.home), "ORCH_CONFIG": str(orch.home / "orch.toml"), "COLUMNS": "80"}
    env |= {"NO_COLOR": "1", "TERM": "dumb"}
    seen = b""
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=env, cwd=folder) as process:
        os.close(theirs)
        try:
            while part := os.read(ours, 65536):
                seen += part
        except OSError:
            pass  # its end closed the other side
        assert process.wait(90) == 0
    os.close(ours)
    return seen.decode().replace("\r\n", "\n")


def test_it_is_refused_where_nothing_answers_at_once(orch: Orch, orch_home: Path) -> None:
    write_config(orch_home, ["http://127.0.0.1:9/v1"], extra=CLOUD)
    down = tried(orch, code=4)
    assert "http://127.0.0.1:9/v1 does not answer" in down["error"]["message"]
    (orch_home / "orch.toml").write_text(CLOUD)
    hosted = tried(orch, code=3)
    assert 'kind = "sync"' in hosted["error"]["hint"]
    assert json.loads(orch("status", "--json").stdout) == [], "nothing was made"


def test_its_budget_is_a_hard_cap(orch: Orch, orch_home: Path, upstream: Upstream) -> None:
    address = f'base_url = "{upstream.base_url}"\napi_key_env = "CLOUD_KEY"\n'
    prices = '[prices."some-model"]\ninput = 100000\noutput = 100000\n'
    (orch_home / "orch.toml").write_text(f'[backends.now]\nkind = "sync"\nprovider = "p"\n{address}{prices}')
    ran = orch("try", "job.yaml", "--budget", "0.01", env={"CLOUD_KEY": "k"})
    assert ran.returncode == 3, ran.stderr
    assert "budget" in ran.stderr
    assert not upstream.counts()


def test_an_answer_that_fails_its_check_is_shown_and_told_by_the_exit_code(orch: Orch, tmp_path: Path) -> None:
    schema = "schema: {type: object, properties: {kind: {type: string}}, required: [kind]}"
    (tmp_path / "job.yaml").write_text(JOB.replace("max_tokens: 40", f"max_tokens: 40, {schema}"))
    (tmp_path / "letters" / "a.txt").write_text("a letter [[fault:notjson]]")
    ran = orch("try", "job.yaml", "a.txt", "--no-estimate", timeout=90)
    assert ran.returncode == 1
    assert "✗ " in ran.stdout
    assert "letters/a.txt: sort" in ran.stdout


def test_a_saved_file_is_tried_again(orch: Orch, tmp_path: Path) -> None:
    watch = orch.start("try", "job.yaml", "a.txt", "--watch", "--no-estimate", "-q")
    wait_until(lambda: "waiting for a change" in orch.output(watch))
    (tmp_path / "job.yaml").write_text(JOB.replace("What is it?", 'What?" ]'))
    wait_until(lambda: orch.output(watch).count("waiting for a change") == 2)
    assert "job.yaml" in orch.output(watch)
    (tmp_path / "job.yaml").write_text(JOB.replace("What is it?", "How long is it?"))
    wait_until(lambda: orch.output(watch).count("waiting for a change") == 3)
    assert "How long is it?" in orch.output(watch)
    os.kill(watch.pid, signal.SIGINT)
    assert watch.wait(PATIENCE) == 130


@pytest.mark.long
def test_pictures_go_through_our_own_server_as_they_are(
    run_orch: Orch, orch_home: Path, tmp_path: Path, make_upstream: Any
) -> None:
    upstream = make_upstream(log_bodies=True)
    write_config(orch_home, [upstream.base_url])
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.png").write_bytes(saved("PNG", drawing()))
    (tmp_path / "job.yaml").write_text(
        "name: scans\ndocuments: in\nrender: image\nmodels: {small: m}\n"
        "tasks: [{id: what, model: small, prompt: 'What does it say?'}]\n"
    )
    ran = run_orch("try", "job.yaml", timeout=90)
    assert ran.returncode == 0, ran.stderr
    assert "[image/jpeg, " in ran.stdout
    assert "base64" not in ran.stdout
    [asked] = upstream.requests()
    picture, question = json.loads(asked["body"])["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert question["text"].endswith("What does it say?")


def stopped_half_way(orch: Orch, orch_home: Path, upstream: Upstream, folder: Path) -> str:
    """Interrupt a job of seven letters while one hangs, with others answered; return its id."""
    (folder / "letters" / "d.txt").write_text("letter d [[fault:hang:1]]")
    write_config(orch_home, [upstream.base_url], extra=CLOUD, max_concurrency=1)
    lines = (line for line in JOB.splitlines() if not line.startswith(("deadline", "after", "output")))
    text = "\n".join(lines).replace("What is it?", "Which kind?")
    (folder / "night.yaml").write_text(text.replace("name: letters", "name: night"))
    run = orch.start("run", "night.yaml", "-q")
    wait_until(lambda: any("[[fault" in body for body in of_the_night(upstream)))
    os.kill(run.pid, signal.SIGINT)
    assert run.wait(PATIENCE) == 130
    assert "another `orch run` continues it, too" in " ".join(orch.output(run).split())
    [line] = json.loads(orch("status", "--json").stdout)
    return str(line["job"])


def counts(orch: Orch, job: str) -> tuple[Any, Any]:
    detail = json.loads(orch("status", job, "--json").stdout)
    return detail["state"], detail["requests"]


def of_the_night(upstream: Upstream) -> list[str]:
    """The texts that were sent: a row may have another priority when it is sent again."""
    texts = [str(json.loads(entry["body"])["messages"]) for entry in upstream.requests()]
    return [text for text in texts if "Which kind?" in text]


@pytest.mark.long
def test_a_trial_sends_no_row_of_a_job_that_was_interrupted(
    orch: Orch, orch_home: Path, make_upstream: Any, tmp_path: Path
) -> None:
    upstream = make_upstream(log_bodies=True)
    night = stopped_half_way(orch, orch_home, upstream, tmp_path)
    before, sent = counts(orch, night), len(upstream.requests())
    for _ in range(2):
        tried(orch, "b.txt", "c.txt", "--no-estimate", "--new")
    assert len(of_the_night(upstream)) == sent < 7, "what was sent before it was interrupted"
    assert len(upstream.requests()) == sent + 2 + 2
    assert counts(orch, night) == before

    ran = orch("run", "night.yaml", timeout=90)
    assert ran.returncode == 0, ran.stderr
    assert "resuming where it stopped" in ran.stderr
    assert "also continues" not in ran.stderr
    assert sorted(Counter(of_the_night(upstream)).values()) == [1] * 6 + [2], "only the row under way is asked again"


@pytest.mark.long
def test_a_run_names_the_other_jobs_that_it_goes_on_with(
    orch: Orch, orch_home: Path, make_upstream: Any, tmp_path: Path
) -> None:
    upstream = make_upstream(log_bodies=True)
    night = stopped_half_way(orch, orch_home, upstream, tmp_path)
    _, requests = counts(orch, night)
    left = requests["total"] - requests["done"]
    lines = (line for line in JOB.splitlines() if not line.startswith(("deadline", "after")))
    (tmp_path / "job.yaml").write_text("\n".join(lines))
    ran = orch("run", "job.yaml", "--only", "b.txt", timeout=90)
    assert ran.returncode == 0, ran.stderr
    told = " ".join(ran.stderr.split())
    number = f"{left} rows left" if left != 1 else "1 row left"
    assert f"also continues the unfinished job {night} ({number}); `orch cancel {night}` ends it" in told


@pytest.mark.long
def test_a_trial_creates_no_batch_of_a_job_that_is_queued(
    orch: Orch, orch_home: Path, upstream: Upstream, tmp_path: Path
) -> None:
    with Emulator(tmp_path / "provider") as provider:
        cloud = CLOUD.replace("http://127.0.0.1:9/v1", provider.url_openai)
        write_config(orch_home, [upstream.base_url], extra=cloud)
        lines = (line for line in JOB.splitlines() if not line.startswith(("deadline", "after")))
        (tmp_path / "night.yaml").write_text("\n".join(lines).replace("name: letters", "name: night"))
        key = {"CLOUD_KEY": "k"}
        queued = orch("submit", "night.yaml", "--backend", "cloud", env=key)
        assert queued.returncode == 0, queued.stderr
        ran = orch("try", "job.yaml", "-n", "2", "--no-estimate", env=key)
        assert ran.returncode == 0, ran.stderr
        assert provider.state()["batches"] == []
        assert provider.state()["files"] == []
