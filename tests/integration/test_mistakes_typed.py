"""Mistakes on the command line as newcomers make them: each is named with a cure, exit 2, and no job."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import run
from tests.support.mistakes import HOSTED, JOB, TOML, folder

__all__ = ["folder"]
SEE, ONE = "with two plain hyphens", "one at a time"
NUMBER = "write a whole number"
TYPED: dict[str, tuple[str, str]] = {
    "run|documents": ("documents: is neither a job file", "`orch init documents` writes a job file"),
    "run|orch.toml": ("orch.toml: is neither a job file", "these are settings"),
    "run|documents/a.txt": ("a.txt: is neither a job file", "a job file names it in its `documents`"),
    "run|jobs.yaml": ("jobs.yaml: there is no such file", "did you mean 'job.yaml'?"),
    "run|job": ("job: there is no such file", "did you mean 'job.yaml'?"),
    "run|Job.yaml": ("Job.yaml: there is no such file", "did you mean 'job.yaml'?"),
    "run|“job.yaml”": ("there is no such file", "did you mean 'job.yaml'?"),
    "run|job.yaml|other.yaml": ("extra argument (other.yaml)", ONE),
    "job.yaml": ("No such command 'job.yaml'", "did you mean `orch run job.yaml`?"),
    "submit|job.yaml|--deadline|6": ("--deadline: '6' is not a deadline", "write 8h, 90m, 06:00"),
    "submit|job.yaml|--deadline|01.12.2027": ("--deadline: '01.12.2027' is not", "write 8h, 90m, 06:00"),
    "submit|job.yaml|--deadline": ("'--deadline' requires an argument", "its value after it"),
    "submit|job.yaml|--budget|5€": ("'--budget': '5€' is not an amount", "amounts are in US dollars, not €"),
    "submit|job.yaml|--budget|5,50": ("'--budget': '5,50' is not an amount", "write  --budget 5.50  ("),
    "run|job.yaml|--dry-run": ("No such option '--dry-run'", "`orch plan` shows what a run would do"),
    "try|job.yaml|--dry-run": ("No such option '--dry-run'", "`orch plan` shows what a run would do"),
    "schedule|add|jobs.yaml|--cron|0 22 * * *": ("jobs.yaml: there is no such file", "did you mean 'job.yaml'?"),
    "validate|jobs.yaml": ("jobs.yaml: there is no such file", "did you mean 'job.yaml'?"),
    "run|job.yaml|--only|b.txt": (
        "orch: b.txt: there is no such document",
        "did you mean documents/a.txt or documents/1.txt?\n",
    ),
    "submit|job.yaml|--limit|five": ("'--limit': 'five' is not", NUMBER),
    "submit|job.yaml|--limit|0": ("'--limit': 0 is not", NUMBER),
    "submit|job.yaml|-backend|local": ("No such option '-b'", "write --backend, with two hyphens"),
    "submit|job.yaml|–-limit|5": ("extra arguments", f"write --limit, {SEE}"),
    "submit|job.yaml|—limit|5": ("extra arguments", f"write --limit, {SEE}"),
    "submit|job.yaml|--after|nojob": ("there is no job 'nojob'", "`orch status` lists the jobs"),
    "submit|job.yaml|--task|sendr": ("--task sendr: the job file has no such task", "did you mean 'sender'?"),
    "fetch|letters": ("there is no job 'letters'", "`orch status` lists the jobs"),
    "fetch|job.yaml": ("there is no job 'job.yaml'", "name the job, not its file"),
    "status|job.yaml": ("there is no job 'job.yaml'", "name the job, not its file"),
    "fetch|letters|out.csv": ("extra argument (out.csv)", "-o out.csv"),
    "plan|job.yaml|--deadline|tomorrow": ("--deadline: 'tomorrow' is not", "write 8h, 90m, 06:00"),
    "schedule|add|job.yaml|--cron|0|22|*|*|*": ("extra arguments", 'put the times in quotes:  --cron "0 22'),
    "schedule|delete|x": ("No such command 'delete'", "did you mean `orch schedule remove`?"),
    "start": ("No such command 'start'", "did you mean `orch up`?"),
    "why|letters": ("No such command 'why'", "did you mean `orch status`?"),
    "list": ("No such command 'list'", "did you mean `orch status`?"),
    "download|letters": ("No such command 'download'", "did you mean `orch fetch`?"),
    "dashboard": ("No such command 'dashboard'", "did you mean `orch view`?"),
    "statsu": ("No such command 'statsu'", "did you mean `orch status`?"),
    "keys|create": ("No such command 'create'", "did you mean `orch keys add`?"),
    "report|nights": ("orch: No such command 'nights'.\n", "did you mean `orch report night`?"),
    "schedule|lst": ("orch: No such command 'lst'.\n", "did you mean `orch schedule list`?"),
    "fetch|letters|--format|xls": ("'xls' is not one of", "did you mean 'xlsx'?"),
    "report|night|yesterday": ("no night and no job 'yesterday'", "named by the date"),
    "report|night|27.11.2026": ("no night and no job '27.11.2026'", "named by the date"),
    "report|cost|--since|01.11.2026": ("--since 01.11.2026: ", "write 7d, 12h or a date"),
    "report|cost|--html": ("'--html' requires an argument", "its value after it"),
}


@pytest.mark.parametrize("words", TYPED, ids=lambda words: words.replace("|", " "))
def test_a_mistake_on_the_command_line(folder: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    (folder / "documents" / "a.txt").write_text("a letter", encoding="utf-8")
    what, cure = TYPED[words]
    assert run(words.split("|")) == 2
    told = capsys.readouterr().err
    assert what in told
    assert cure in told
    assert "Traceback" not in told


def test_an_ending_in_common_is_no_likeness(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    assert run(["run", "zebra.yaml"]) == 2
    assert capsys.readouterr().err == "orch: zebra.yaml: there is no such file\n"


UNPRICED = "no price is known for openai:gpt-5.4-mni: genai-prices has no such model; near to it: gpt-5.4-mini"


@pytest.mark.parametrize(
    ("models", "place"),
    [
        ("gpt-5.4-mni", "models.small"),
        ("{g: gpt-5.4-mni}", "models.small.g"),
        ("[{g: gpt-5.4-nano}, {g: gpt-5.4-mni}]", "models.small[1].g"),
    ],
    ids=["at every backend", "at one", "in a list"],
)
def test_a_hosted_models_name_with_a_slip(
    folder: Path, models: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "orch.toml").write_text(HOSTED, encoding="utf-8")
    (folder / "job.yaml").write_text(JOB.replace("some-model", models), encoding="utf-8")
    assert run(["validate", "job.yaml"]) == 3
    assert f"no backend may run this job:\n  g: job.yaml:7: {place}: {UNPRICED}" in capsys.readouterr().err


def test_a_hosted_models_name_with_a_slip_beside_another_backend(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "orch.toml").write_text(TOML + HOSTED, encoding="utf-8")
    names = "{local: default, g: gpt-5.4-mni}"
    (folder / "job.yaml").write_text(JOB.replace("some-model", names), encoding="utf-8")
    assert run(["validate", "job.yaml"]) == 0
    told = f"  warning: g: no row goes there: job.yaml:7: models.small.g: {UNPRICED}"
    assert told in capsys.readouterr().out


def test_a_job_name_with_a_slip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ORCH_CONFIG", str(tmp_path / "orch.toml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.txt").write_text("a letter", encoding="utf-8")
    (tmp_path / "orch.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    assert run(["submit", "job.yaml"]) == 0
    assert run(["status", "lettres"]) == 2
    assert "did you mean 'letters'?" in capsys.readouterr().err
