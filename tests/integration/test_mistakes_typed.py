"""Mistakes on the command line and in files as newcomers make them: each is named with a cure, exit 2, and no job."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import run
from tests.integration.test_mistakes import (
    HOSTED,
    JOB,
    TOML,
    Case,
    folder,
    prompt,
    refused_job,
    refused_settings,
    source,
    task,
)

__all__ = ["folder"]
EXTRA = "belong into `extra`"
BRACES = "quote the texts in braces and brackets"
NOTHING = "in quotes if it begins with #"
PATTERNS = "write patterns:  include:"
JOBS: dict[str, Case] = {
    "file-scheme": (source("documents: {path: file:///srv/a}"), ":2: documents[0].path: ", "without file://"),
    "patterns-in-one": (source("documents: {path: documents, include: '*.md;*.pdf'}"), ":2: doc", "list of patterns"),
    "regex": (source("documents: {path: documents, include: '.*\\.md$'}"), ":2: documents[0].inc", "no regular exp"),
    "star-unquoted": (source("documents: {path: documents, include: [*.txt]}"), ":2: is not valid YAML", BRACES),
    "extensions": (source("documents: {path: documents, extensions: [txt]}"), ":2: documents[0].ext", PATTERNS),
    "recursive": (source("documents: {path: documents, recursive: true}"), ":2: documents[0].rec", "leave it out"),
    "sheet": (source("documents: {path: documents, sheet: 1}"), ":2: documents[0].sheet", "all sheets"),
    "delimiter": (source("documents: {path: documents, delimiter: ','}"), ":2: documents[0].del", "by itself"),
    "text-columns": (source("documents: {path: documents, text_columns: [a]}"), ":2: doc", "mean 'text_column'?"),
    "prompts-in-brackets": (prompt("[Who wrote this?, When?]"), ":6: is not valid YAML", BRACES),
    "messages": (JOB.replace("prompt:", "messages:"), ":6: tasks[0].messages: unknown", "did you mean 'prompt'?"),
    "json": (task("json: true"), ":7: tasks[0].json: unknown", "did you mean 'schema'?"),
    "thinking": (task("thinking: off"), ":7: tasks[0].thinking: unknown", EXTRA),
    "reasoning": (task("reasoning_effort: low"), ":7: tasks[0].reasoning_effort: unknown", EXTRA),
    "optional-type": (task("schema: {properties: {a: {type: string?}}}"), ":7: is not valid YAML", BRACES),
    "python-type": (task("schema: {properties: {a: List[str]}}"), ":7: is not valid YAML", BRACES),
    "priority": (f"{JOB}priority: high\n", ":8: priority: unknown", "give the job a `deadline`"),
    "midnight": (f"{JOB}deadline: '24:00'\n", ":8: deadline: '24:00'", "write 00:00 to 23:59"),
    "models-of-nothing": (JOB.replace(" {small: some-model}", ""), ":7: models: must be a mapping", NOTHING),
    "number-sign": (prompt("#1 question"), ":6: tasks[0].prompt: ", NOTHING),
    "half-a-block": (prompt("|\n    Who?\n  When?"), ":8: is not valid YAML", "as the line above it in its block"),
}  # fmt: skip
SETTINGS: dict[str, Case] = {
    "model": (f'{TOML}model = "qwen"\n', ":5: backends.local.model: unknown", "named in the job file"),
    "chatgpt": (TOML + HOSTED.replace('"openai"', '"chatgpt"'), ":6: backends.g.kind", 'did you mean "openai"?'),
    "google": (TOML + HOSTED.replace('"openai"', '"google"'), ":6: backends.g.kind", 'did you mean "gemini"?'),
    "lmstudio": (TOML + HOSTED.replace('"openai"', '"lmstudio"'), ":6: backends.g.kind", 'did you mean "local"?'),
    "limit": (f'{TOML}[[budgets]]\nname = "a"\nlimit = 5\nperiod = "month"\n', ":7: budgets[0].limit", "'amount'?"),
    "slack": (f'{TOML}[reports]\nslack = "x"\n', ":6: reports.slack: unknown", "did you mean 'webhook_env'?"),
    "in": (f"{TOML}[prices.x]\nin = 2\noutput = 8\n", ":6: prices.x.in: unknown", "did you mean 'input'?"),
    "logging": (f'{TOML}[logging]\nlevel = "debug"\n', ":5: logging: unknown", "`orch up` logs to stderr"),
    "colon-in-braces": (f"{TOML}limits = {{rows: 1}}\n", ":5: is not valid TOML", "TOML writes  rows = …"),
    "a-day": (f"{TOML}[retention]\nresults = 2026-01-01\n", ":6: retention.results: 2026-01-01 is not", '"90d"'),
}  # fmt: skip
SEE, ONE = "with two plain hyphens", "one at a time"
NUMBER, DOLLARS = "write a whole number", "write a number, such as 2.50"
TYPED: dict[str, tuple[str, str]] = {
    "run|documents": ("documents: is neither a job file", "`orch init documents` writes a job file"),
    "run|orch.toml": ("orch.toml: is neither a job file", "these are settings"),
    "run|documents/a.txt": ("a.txt: is neither a job file", "a job file names it in its `documents`"),
    "run|jobs.yaml": ("jobs.yaml: there is no such file", "did you mean 'job.yaml'?"),
    "run|Job.yaml": ("Job.yaml: there is no such file", "did you mean 'job.yaml'?"),
    "run|“job.yaml”": ("there is no such file", "did you mean 'job.yaml'?"),
    "run|job.yaml|other.yaml": ("extra argument (other.yaml)", ONE),
    "job.yaml": ("there is no command 'job.yaml'", "did you mean `orch run job.yaml`?"),
    "submit|job.yaml|--deadline|6": ("--deadline: '6' is not a deadline", "write 8h, 90m, 06:00"),
    "submit|job.yaml|--deadline|01.12.2027": ("--deadline: '01.12.2027' is not", "write 8h, 90m, 06:00"),
    "submit|job.yaml|--deadline": ("'--deadline' requires an argument", "its value behind it"),
    "submit|job.yaml|--budget|5€": ("'--budget': '5€' is not an amount", DOLLARS),
    "submit|job.yaml|--budget|5,50": ("'--budget': '5,50' is not an amount", DOLLARS),
    "submit|job.yaml|--limit|five": ("'--limit': 'five' is not", NUMBER),
    "submit|job.yaml|--limit|0": ("'--limit': 0 is not", NUMBER),
    "submit|job.yaml|-backend|local": ("No such option '-b'", "write --backend, with two hyphens"),
    "submit|job.yaml|–-limit|5": ("extra arguments", f"write --limit, {SEE}"),
    "submit|job.yaml|—limit|5": ("extra arguments", f"write --limit, {SEE}"),
    "submit|job.yaml|--after|nojob": ("there is no job 'nojob'", "`orch status` lists the jobs"),
    "submit|job.yaml|--task|sendr": ("--task sendr: the job file has no such task", "known: sender"),
    "fetch|letters": ("there is no job 'letters'", "`orch status` lists the jobs"),
    "fetch|job.yaml": ("there is no job 'job.yaml'", "name the job, not its file"),
    "status|job.yaml": ("there is no job 'job.yaml'", "name the job, not its file"),
    "fetch|letters|out.csv": ("extra argument (out.csv)", "-o out.csv"),
    "plan|job.yaml|--deadline|tomorrow": ("--deadline: 'tomorrow' is not", "write 8h, 90m, 06:00"),
    "schedule|add|job.yaml|--cron|0|22|*|*|*": ("extra arguments", 'put the times in quotes:  --cron "0 22'),
    "schedule|delete|x": ("No such command 'delete'", "did you mean `orch schedule remove`?"),
    "keys|create": ("No such command 'create'", "did you mean `orch keys add`?"),
    "report|night|yesterday": ("no night and no job 'yesterday'", "named by the date"),
    "report|night|27.11.2026": ("no night and no job '27.11.2026'", "named by the date"),
    "report|cost|--since|01.11.2026": ("--since 01.11.2026: ", "write 7d, 12h or a date"),
    "report|cost|--html": ("'--html' requires an argument", "its value behind it"),
}


@pytest.mark.parametrize("case", JOBS.values(), ids=JOBS)
def test_a_mistake_in_a_job_file(folder: Path, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    refused_job(folder, case, capsys)


@pytest.mark.parametrize("case", SETTINGS.values(), ids=SETTINGS)
def test_a_mistake_in_the_settings(folder: Path, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    refused_settings(folder, case, capsys)


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
