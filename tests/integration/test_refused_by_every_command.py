"""A mistake of a job file is the same mistake for every command that takes the file: exit 2, one sentence, no job."""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.cli import run
from tests.support.mistakes import JOB, no_job_from, prompt, source, task
from tests.support.process import Upstream, upstreams

CSV = "Name,Text\nn,Letter.\nm,Another.\n"
LINES = '{"Name": "n", "Text": "Letter."}\n{"Name": "m", "Text": "Another."}\n'
COMMANDS = {
    "validate": ["validate"], "plan": ["plan"], "submit": ["submit"], "dry-run": ["submit", "--dry-run"],
    "run": ["run"], "try": ["try"], "schedule": ["schedule", "add", "--cron", "0 22 * * *"],
}  # fmt: skip


def in_archive(name: str, text: str) -> Callable[[Path], None]:
    """Make in.zip, or in.tar, of one table."""

    def make(folder: Path) -> None:
        with zipfile.ZipFile(folder / "in.zip", "w") as archive:
            archive.writestr(name, text)
        (folder / name).write_text(text, encoding="utf-8")
        with tarfile.open(folder / "in.tar", "w") as tape:
            tape.add(folder / name, name)
        (folder / name).unlink()

    return make


def table(text: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / "rows.csv").write_text(text, encoding="utf-8")

    return make


def nothing(folder: Path) -> None:
    """Beside documents/1.txt nothing is there."""


def rows(path: str, **settings: str) -> str:
    """A job file whose source is {path}, with its settings from line 4 on."""
    more = "".join(f"\n    {name}: {value}" for name, value in settings.items())
    return source(f"documents:\n  - path: {path}{more}")


MISTAKES: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "column-in-an-archive": (
        in_archive("rows.csv", CSV), rows("in.zip", text_column="text"),
        ":4: documents[0].text_column: no document can be used: ", "did you mean 'Text'? Correct the job file",
    ),
    "id-in-an-archive": (
        in_archive("rows.csv", CSV), rows("in.zip", text_column="Text", id_column="number"),
        ":5: documents[0].id_column: no document can be used: ", "has no column 'number', only: Name, Text",
    ),
    "column-of-lines-in-an-archive": (
        in_archive("rows.jsonl", LINES), rows("in.zip", text_column="text"),
        ":4: documents[0].text_column: none of 2 documents can be used: ", "has no text in the column 'text'",
    ),
    "column-on-a-tape": (
        in_archive("rows.csv", CSV), rows("in.tar", text_column="body"),
        ":4: documents[0].text_column: no document can be used: ", "has no column 'body', only: Name, Text",
    ),
    "column-in-one-of-two-sources": (
        in_archive("rows.csv", CSV),
        source("documents:\n  - path: documents\n  - path: in.zip\n    text_column: text"),
        ":5: documents[1].text_column: no document can be used: ", "did you mean 'Text'? Correct the job file",
    ),
    "column": (
        table(CSV), rows("rows.csv", text_column="text"), ":4: documents[0].text_column: rows.csv has no column",
        "did you mean 'Text'?",
    ),
    "column-twice": (
        table("Text,Text\na,b\n"), rows("rows.csv", text_column="Text"), ":4: documents[0].text_column: rows.csv has",
        "rename one of them",
    ),
    "template-that-fails": (
        nothing, prompt("'{{ (text | length) / 0 }}'"), ":6: tasks[0].prompt: 'sender' can be asked of no document: ",
        "division by zero",
    ),
    "template": (nothing, prompt("'Who is {{ nam }}?'"), ":6: tasks[0].prompt: the template", "mean {{ name }}?"),
    "open-template": (nothing, prompt("'Who is {{ name?'"), ":6: tasks[0].prompt: is not a Jinja2", "line 1"),
    "path": (nothing, rows("letters"), ":3: documents[0].path: There is no file or folder", "correct the path"),
    "pattern": (
        nothing, rows("documents", include="'*.pfd'"), ":4: documents[0].include: There are no documents", "*.pfd",
    ),
    "same-document-twice": (
        nothing, source("documents:\n  - path: documents\n  - {name: b, path: documents}"), ":2: documents: the doc",
        "so that they do not overlap",
    ),
    "field": (nothing, task("retrys: 1"), ":7: tasks[0].retrys: unknown field", "did you mean 'retries'?"),
    "schema": (nothing, task("schema: {properties: {a: {min: 1}}}"), ":7: tasks[0].schema", "mean 'minimum'?"),
    "alias": (nothing, JOB.replace("model: small", "model: smal"), ":5: tasks[0].model: the model alias", "small"),
    "backend-of-a-model": (
        nothing, JOB.replace("some-model", "{locl: x}"), ":7: models.small: has names for locl", "{local: NAME}",
    ),
    "setting-for-a-backend": (
        nothing, JOB.replace("some-model", "{backend: local, model: x}"), ":7: models.small: has a name for 'backend",
        "write  small: {local: x}",
    ),
    "slip-beside-a-backend": (
        nothing, JOB.replace("some-model", "{locl: x, local: y}"), ":7: models.small: has a name for 'locl", "local",
    ),
    "allowed-backend": (
        nothing, f"{JOB}allow: {{backends: [locl]}}\n", ":8: allow.backends: there is no backend 'locl'", "local",
    ),
    "output-column": (
        nothing, f"{JOB}output: {{path: o.csv, shape: wide, columns: [answr]}}\n", ":8: output.columns: the table",
        "did you mean",
    ),
    "output": (nothing, f"{JOB}output: {{path: documents}}\n", ":8: output: cannot write ", "it is a folder"),
    "gold": (nothing, f"{JOB}gold: gold.jsonl\n", ":8: gold: there is no such file", "known answers are looked for"),
    "source-of-a-task": (nothing, task("sources: [letters]"), ":7: tasks[0].sources[0]: there is no source", "docum"),
    "after-nobody": (nothing, f"{JOB}after: nobody\n", ":8: after: there is no job 'nobody'", "`orch status` lists"),
    "deadline": (nothing, f"{JOB}deadline: 8 hours\n", ":8: deadline: '8 hours' is not", "write 8h"),
}  # fmt: skip
LATER = {
    ("output", "try"): "a trial delivers nothing",
    ("after-nobody", "try"): "a trial waits for no job",
    ("after-nobody", "validate"): "the other job may be submitted first: a warning",
    ("after-nobody", "schedule"): "the other job may be submitted before the night: a warning",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with upstreams(tmp_path_factory.mktemp("upstream")) as make:
        yield make()


@pytest.fixture
def folder(tmp_path: Path, engine: Upstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "1.txt").write_text("Dear reader", encoding="utf-8")
    told = f'[backends.local]\nupstreams = ["{engine.base_url}"]\nlocation = "local"\nidle = true\n'
    (tmp_path / "orch.toml").write_text(told, encoding="utf-8")
    with no_job_from(tmp_path, monkeypatch):
        yield tmp_path


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("mistake", "command"), [(one, name) for one in MISTAKES for name in COMMANDS if (one, name) not in LATER]
)
def test_every_command_refuses_it_alike(
    folder: Path, mistake: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, content, place, cure = MISTAKES[mistake]
    make(folder)
    file = folder / "job.yaml"
    file.write_text(content, encoding="utf-8")
    code = run([*COMMANDS[command], str(file)])
    told = capsys.readouterr()
    assert (code, told.out) == (2, ""), told.err
    [sentence] = [line for line in told.err.splitlines() if line.startswith(f"orch: {file}")]
    assert sentence.startswith(f"orch: {file}{place}")
    assert cure in told.err


OF_NO_BACKEND = {
    '[models]\nsmall = {lokal = "x"}': (":6: models.small: has names for lokal", 'write  small = {local = "NAME"}'),
    '[models.small]\nlokal = "x"': (":5: models.small: has names for lokal", 'write  small = {local = "NAME"}'),
    '[models]\nsmall = {backend = "local", model = "qwen"}': (
        ":6: models.small: has a name for 'backend', and",
        'write  small = {local = "qwen"}',
    ),
    '[models]\nsmall = {model = "qwen", local = "x"}': (
        ":6: models.small: has a name for 'model', and",
        'write  small = {local = "qwen"}',
    ),
    '[models]\nsmall = {lokal = "x", local = "y"}': (":6: models.small: has a name for 'lokal'", "mean 'local'?"),
    '[models]\nsmall = ["a", {lokal = "x", local = "y"}]': (
        ":6: models.small: has a name for 'lokal'",
        "mean 'local'?",
    ),
    '[models]\nsmall = ["a", {lokal = "x"}]': (":6: models.small: model 2 of the list is for lokal", "known: local"),
}


@pytest.mark.parametrize("settings", OF_NO_BACKEND)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_alias_of_the_settings_for_no_backend_of_theirs(
    folder: Path, settings: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place, cure = OF_NO_BACKEND[settings]
    with (folder / "orch.toml").open("a", encoding="utf-8") as file:
        file.write(settings)
    (folder / "job.yaml").write_text(JOB.replace("models: {small: some-model}\n", ""), encoding="utf-8")
    assert run([*COMMANDS[command], "job.yaml"]) == 2
    told = capsys.readouterr().err
    assert f"orch: {folder / 'orch.toml'}{place}" in told
    assert cure in told


@pytest.mark.parametrize("command", ["validate", "plan", "submit"])
def test_an_alias_that_the_job_does_not_use_is_a_warning(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "orch.toml"
    with file.open("a", encoding="utf-8") as settings:
        settings.write('[models]\nother = {lokal = "x"}\nlist = ["a", {local = "b", gone = "c"}]\n')
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    assert run([command, "job.yaml", *(["--dry-run"] if command == "submit" else [])]) == 0
    told = "".join(capsys.readouterr())
    assert f"warning: {file}:6: models.other.lokal: there is no backend 'lokal'; did you mean 'local'?" in told
    assert f"warning: {file}:7: models.list[1].gone: there is no backend 'gone'; known: local" in told


def test_a_trial_tells_a_mistake_even_if_no_backend_answers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = (folder / "orch.toml").read_text(encoding="utf-8")
    (folder / "orch.toml").write_text(re.sub("http://[^/]*", "http://127.0.0.1:9", settings), encoding="utf-8")
    (folder / "job.yaml").write_text(task("retrys: 1"), encoding="utf-8")
    assert run(["try", "job.yaml"]) == 2
    assert "job.yaml:7: tasks[0].retrys: unknown field" in capsys.readouterr().err


def test_a_batch_file_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"model": "small", "messages": [{"role": "user", "content": "?"}]}
    row = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
    file = folder / "rows.jsonl"
    for content, place in ((f"{row}\n{row}\n", ":2: custom_id: "), (f"{row}\n{{\n", ":2: ")):
        file.write_text(content, encoding="utf-8")
        for command in COMMANDS.values():
            assert run([*command, str(file)]) == 2
            told = capsys.readouterr()
            assert (told.out, f"orch: {file}{place}" in told.err) == ("", True), (command, told.err)


def test_documents_that_cannot_be_read_are_no_mistake_of_the_file(folder: Path) -> None:
    """A night over an empty letter has a failed row; only `validate` says beforehand that nothing can be asked."""
    (folder / "documents" / "1.txt").write_text(" ", encoding="utf-8")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    assert run(["validate", "job.yaml"]) == 2
    assert run(["plan", "job.yaml"]) == 0


def test_a_job_to_come_after_that_is_not_there_is_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.yaml").write_text(f"{JOB}after: nobody\n", encoding="utf-8")
    told = "warning: after: there is no job 'nobody': `orch run` and `orch submit` are refused until it exists"
    assert run(["validate", "job.yaml"]) == 0
    assert told in capsys.readouterr().out
    assert run(["status"]) == 0, "now there is a home"
    capsys.readouterr()
    assert run(["validate", "job.yaml"]) == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("typed", ["job.yaml", "./job.yaml", "../{name}/job.yaml"], ids=["plain", "dot", "up"])
def test_a_file_is_named_as_the_user_typed_it(
    folder: Path, command: str, typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "job.yaml").write_text(source("documents: {path: nowhere}"), encoding="utf-8")
    typed = typed.format(name=folder.name)
    named = typed.removeprefix("./")
    for more in ([], ["--json"]):
        assert run([*COMMANDS[command], typed, *more]) == 2
        told = capsys.readouterr()
        assert f"orch: {named}:" in told.err
        assert "no file or folder nowhere" in told.err, "as the job file has it"
        assert str(folder) not in told.err + told.out
    assert json.loads(told.out)["error"]["file"] == named


SPELLED: dict[str, tuple[str, str, int, str]] = {
    "two mistakes": ("job.yaml", task("schema: {type: strin, properties: 1}"), 2, ""),
    "a deadline that has passed": ("job.yaml", f"{JOB}deadline: '2020-01-01T06:00:00Z'\n", 3, "deadline"),
    "an output that is not ours": ("job.yaml", f"{JOB}output: {{path: job.yaml, format: jsonl}}\n", 2, "output"),
    "known answers that are not there": ("job.yaml", f"{JOB}gold: gold.jsonl\n", 2, "gold"),
    "a batch file": ("rows.jsonl", "{\n{\n", 2, ""),
}


@pytest.mark.parametrize("mistake", SPELLED)
@pytest.mark.parametrize("command", ["validate", "plan", "submit", "run"])
def test_each_mistake_names_the_file_as_the_user_typed_it(
    folder: Path, command: str, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, content, code, field = SPELLED[mistake]
    (folder / name).write_text(content, encoding="utf-8")
    typed = f"../{folder.name}/{name}"
    assert run([*COMMANDS[command], typed, "--json"]) == code
    told = capsys.readouterr()
    error = json.loads(told.out)["error"]
    assert (error["file"], error["field"] or "") == (typed, field or error["field"] or "")
    places = [line for line in told.err.splitlines() if re.match(rf"(orch: )?\S*{re.escape(name)}:\d", line)]
    assert len(places) == 1 + len(error.get("others", []))
    assert all(line.removeprefix("orch: ").startswith(f"{typed}:") for line in places), told.err
