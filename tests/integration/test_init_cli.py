"""`orch init`: what it writes is right as it stands, and with every setting that it offers turned on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import run
from tests.conftest import MakeUpstream
from tests.support.process import Upstream
from tests.support.scripted import Answer, scripted


@pytest.fixture
def upstream(make_upstream: MakeUpstream) -> Upstream:
    return make_upstream(model=["small", "large"])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ORCH_CONFIG", "ORCH_HOME", "ORCH_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    monkeypatch.setenv("MY_KEY", "x")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def turned_on(text: str) -> str:
    """With every setting on that stands behind a `#`; of two with one name, the later."""
    lines = [re.sub(r"^( *)#(?! )", r"\1", line) for line in text.splitlines()]
    names = [re.match(r"( *[\w-]+) *[:=]", line) for line in lines]
    kept = []
    for number, (line, name) in enumerate(zip(lines, names, strict=True)):
        again = number + 1 < len(lines) and name and names[number + 1] and name[1] == names[number + 1][1]  # type: ignore[index]
        if not again:
            kept.append(line)
    return "\n".join(kept) + "\n"


def test_what_it_writes_validates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init"]) == 0
    assert capsys.readouterr().out.split() == ["orch.toml", "job.yaml", "documents/example.txt"]
    assert run(["validate", "job.yaml", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["documents"], told["requests"], told["warnings"], told["problems"]) == (1, 2, [], [])
    for name in ("orch.toml", "job.yaml"):
        path = folder / name
        path.write_text(turned_on(path.read_text()))
    assert "\nkind = " in (folder / "orch.toml").read_text()
    assert "\ndeadline: " in (folder / "job.yaml").read_text()
    (folder / "letters.csv").write_text("body\na letter\n")
    job = (folder / "job.yaml").read_text().replace("sources: [documents]", "sources: [documents, letters.csv]")
    (folder / "job.yaml").write_text(job.replace('["**/*.pdf", "**/*.txt"]', '["**/*.txt"]'))
    assert run(["validate", "job.yaml", "--json"]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["requests"] == 4


def test_documents_that_are_there_are_the_ones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "here" / "documents").mkdir(parents=True)
    (folder / "here" / "documents" / "mine.txt").write_text("mine")
    assert run(["init", "here", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["here/orch.toml", "here/job.yaml"]
    assert [path.name for path in (folder / "here" / "documents").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("there", ["orch.toml", "job.yaml"])
def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str], there: str) -> None:
    (folder / there).write_text("mine")
    assert run(["init", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"] == f"{there}: already there; nothing was written"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {there: "mine"}


def test_a_link_to_nothing_is_there_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.yaml").symlink_to(folder / "elsewhere" / "job.yaml")
    assert run(["init"]) == 2
    assert "already there" in capsys.readouterr().err


def test_where_it_cannot_write_it_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "documents").write_text("a file, not a folder")
    assert run(["init"]) == 4
    assert "cannot write" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["documents"]


def test_a_column_of_dates_or_numbers_is_not_taken_as_the_text(folder: Path, upstream: Upstream) -> None:
    place = folder / "lists"
    place.mkdir()
    (place / "leases.csv").write_text("id,party,end\n1,Dorn,2027-01-01\n2,Eve,2027-02-01\n")
    (place / "sums.csv").write_text("id,sum\n1,120.50\n")
    assert run(["init", "lists", "--upstream", upstream.base_url]) == 0
    job = (folder / "job.yaml").read_text()
    assert "  - {path: lists/leases.csv, text_column: party}" in job
    assert "  #- {path: lists/sums.csv, text_column: COLUMN}" in job


def test_a_folder_of_documents_gets_a_job_beside_it(
    folder: Path, upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder / "Verträge 2026"
    (place / "old").mkdir(parents=True)
    for name in ("a.txt", "old/b.md"):
        (place / name).write_text("A letter.")
    (place / "mails.csv").write_text("id;text\n1;A much longer text than the id\n2;Another one\n")
    (place / "notes.jsonl").write_text('{"id": "1", "body": "A longer text"}\n')
    (place / "x.zzz").write_text("?")
    (place / "~$lease.docx").write_text("an office program has it open")
    (place / "key.pem").write_text("a secret")
    assert run(["init", "Verträge 2026", "--upstream", upstream.base_url]) == 0
    told = capsys.readouterr()
    assert told.out.split() == ["orch.toml", "job.yaml"]
    assert "Verträge 2026: 1 .txt, 1 .md; 2 tables; 1 .zzz not read (`include` would)" in told.err
    assert "set your model" not in told.err
    job = (folder / "job.yaml").read_text()
    assert "small: {local: small}" in job
    assert "text_column: text}" in job
    assert "text_column: body}" in job
    assert f'upstreams = ["{upstream.base_url}"]' in (folder / "orch.toml").read_text()
    assert sorted(path.name for path in place.iterdir()) == [
        "a.txt",
        "key.pem",
        "mails.csv",
        "notes.jsonl",
        "old",
        "x.zzz",
        "~$lease.docx",
    ]

    assert run(["validate", "job.yaml", "--json"]) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert (found["documents"], found["requests"], found["problems"]) == (5, 10, [])
    assert run(["init", "Verträge 2026"]) == 2  # there is a job already


def listed(*names: str, **more: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "object": "model", **more} for name in names]}


LISTS: dict[str, tuple[Answer, str]] = {
    "Ollama": (
        Answer(listed("nomic-embed-text:latest", "llama3.2:3b", "all-minilm:l6-v2", owned_by="library")),
        '"llama3.2:3b"',
    ),
    "LM Studio": (
        Answer(listed("text-embedding-nomic-embed-text-v1.5", "qwen2.5-7b-instruct")),
        "qwen2.5-7b-instruct",
    ),
    "Ollama without models": (Answer({"object": "list", "data": None}), "default"),
    "only embeddings": (Answer(listed("nomic-embed-text:latest")), '"nomic-embed-text:latest"'),
    "a key is asked for": (Answer({"error": {"message": "Invalid API key"}}, status=401), "default"),
    "a page": (Answer(b"<html>LM Studio</html>"), "default"),
    "another shape": (Answer([{"name": "llama"}]), "default"),
}
"""What servers list under /v1/models, and the model of the job file."""


@pytest.mark.parametrize("server", LISTS)
def test_the_first_model_that_chats_is_proposed(
    server: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, model = LISTS[server]
    (folder / "letters").mkdir()
    (folder / "letters" / "a.txt").write_text("A letter.")
    with scripted(lambda _: answer) as running:
        assert run(["init", "letters", "--upstream", running.base_url]) == 0
    assert f"small: {{local: {model}}}" in (folder / "job.yaml").read_text()
    assert ("lists no models" in capsys.readouterr().err) == (model == "default")


def test_a_server_that_is_not_there_does_not_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "letters").mkdir()
    (folder / "letters" / "a.txt").write_text("A letter.")
    assert run(["init", "letters", "--upstream", "http://127.0.0.1:9/v1"]) == 0
    assert "http://127.0.0.1:9/v1 does not answer: set your server in orch.toml" in capsys.readouterr().err


OWN = '[backends.desk]\nupstreams = ["http://127.0.0.1:9/v1"]\nlocation = "local"\nidle = true\n'
ENGINES = """\
[backends.demo]
kind = "engines"
location = "local"
cost_per_hour = 0
models = { tiny = { model = "models/tiny" }, large = { model = "models/large" } }
"""
HOSTED = '[backends.openai]\nkind = "openai"\napi_key_env = "OPENAI_API_KEY"\n'
ALIASES = '[models]\nbig = "gpt-5"\n'
SETTINGS = {
    "engines": (ENGINES, "small: {demo: tiny}   # it also has large", "model: small", ""),
    "a server that does not answer": (OWN, "small: {desk: default}", "model: small", "/v1 does not answer: start"),
    "a provider": (HOSTED, "small: {openai: gpt-5-nano}", "model: small", ""),
    "one's own before a provider": (HOSTED + ENGINES, "small: {demo: tiny}", "model: small", ""),
    "aliases": (HOSTED + ALIASES + '"a b" = "gpt-5"\n', "are those of orch.toml: big, a b", "model: big", ""),
    "a usual alias": (HOSTED + ALIASES + 'small = "gpt-5-nano"\n', "orch.toml: big, small", "model: small", ""),
}  # fmt: skip
"""An orch.toml that is there, the job file's words about models and of a task, and what is still to be set."""


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_models_of_settings_that_are_there_are_used(
    settings: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, models, task, missing = SETTINGS[settings]
    (folder / "orch.toml").write_text(text)
    (folder / "letters").mkdir()
    (folder / "letters" / "a.txt").write_text("A letter.")
    assert run(["init", "letters"]) == 0
    told, job = capsys.readouterr().err, (folder / "job.yaml").read_text()
    assert (models in job, job.count(f"{task}\n")) == (True, 2)
    assert missing in told if missing else "letters`" not in told and "set" not in told
    assert (folder / "orch.toml").read_text() == text
    assert run(["validate", "job.yaml", "--json"]) == 0, capsys.readouterr().err
    (folder / "job.yaml").write_text(re.sub("allow: .*\n", "", turned_on(job)))
    assert run(["validate", "job.yaml", "--json"]) == 0, capsys.readouterr().err


def test_settings_with_a_mistake_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "orch.toml").write_text("[backends.desk]\nlocation = 3\n")
    (folder / "letters").mkdir()
    (folder / "letters" / "a.txt").write_text("A letter.")
    assert run(["init", "letters"]) == 2
    assert "orch.toml:2: backends.desk.location" in capsys.readouterr().err
    assert not (folder / "job.yaml").exists()


def test_a_folder_that_is_not_there_is_not_made(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "contracts").mkdir()
    (folder / "contracts" / "a.txt").write_text("A letter.")
    cures = {
        "contrcts": "did you mean 'contracts'?",
        "contrcts/": "did you mean 'contracts'?",
        "x y/z": "`mkdir 'x y/z'`",
    }
    for name, cure in cures.items():
        assert run(["init", name]) == 2
        told = capsys.readouterr().err
        assert f"orch: {name.rstrip('/')}: there is no such folder; nothing was written" in told
        assert f"hint: {cure}" in told
    assert [path.name for path in folder.rglob("*")] == ["contracts", "a.txt"]
    (folder / "empty").mkdir()
    assert run(["init", "empty"]) == 0
    assert "empty/documents/example.txt" in capsys.readouterr().out


def test_tables_that_need_an_extra_say_which(folder: Path) -> None:
    assert run(["init"]) == 0
    assert "# Or .jsonl; .xlsx needs the extra xlsx, .parquet the extra parquet." in (folder / "job.yaml").read_text()


def test_a_guessed_column_is_said_to_be_a_guess(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "contracts").mkdir()
    (folder / "contracts" / "list.csv").write_text("id,name\n1,Gym\n")
    assert run(["init", "contracts"]) == 0
    assert "contracts/list.csv: column 'name' is taken as the text, a guess" in capsys.readouterr().err
    assert "text_column is guessed" in (folder / "job.yaml").read_text()


def test_settings_that_are_there_are_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "orch.toml").write_text("# mine\n")
    (folder / "scans").mkdir()
    (folder / "scans" / "page.png").write_bytes(b"")
    assert run(["init", "scans", "--upstream", "http://127.0.0.1:9/v1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": ".", "files": ["job.yaml"]}
    assert (folder / "orch.toml").read_text() == "# mine\n"
    job = (folder / "job.yaml").read_text()
    assert ("render: auto" in job, "small: {local: default}" in job, "name: scans" in job) == (True, True, True)


def test_documents_in_this_folder_are_asked_about_without_what_orch_keeps_here(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.txt").write_text("A letter.")
    assert run(["init", "--upstream", "http://127.0.0.1:9/v1"]) == 0
    capsys.readouterr()
    (folder / "state").mkdir()
    (folder / "state" / "kept.txt").write_text("not a document")
    assert run(["validate", "job.yaml", "--json"]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["documents"] == 1
