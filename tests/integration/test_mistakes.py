"""Mistakes of job files and orch.toml: file, line, field, a cure, exit 2, and no job."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import run
from tests.support.mistakes import (
    ENGINES,
    HOSTED,
    JOB,
    KEY,
    PASSWORD,
    SECRETS,
    TOML,
    Case,
    as_made,
    folder,
    haste,
    newcomers,
    other_names,
    other_tools,
    prompt,
    syntax,
    task,
    values,
)

__all__ = ["folder"]
TABLES = (as_made, haste, newcomers, other_names, other_tools, syntax, values)


def everywhere(kind: str) -> list[object]:
    """The cases of all tables with this name."""
    return [
        pytest.param(case, id=f"{table.__name__.rpartition('.')[2]}-{name}")
        for table in TABLES
        for name, case in getattr(table, kind).items()
    ]


def refused(folder: Path, name: str, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    content, place, cure = case
    (folder / name).write_text(content, encoding="utf-8")
    code = run(["submit", "job.yaml"])
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    named = "job.yaml" if name == "job.yaml" else str(folder / name)  # as typed; nobody types orch.toml
    assert f"{named}{place}" in told.err
    assert cure in told.err
    for secret in (KEY, PASSWORD, *SECRETS):
        assert secret not in told.err
    assert "Traceback" not in told.err


def refused_job(folder: Path, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    """Hold a job file beside good settings to its mistake."""
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    refused(folder, "job.yaml", case, capsys)


def refused_settings(folder: Path, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    """Hold settings beside a good job file to their mistake."""
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    refused(folder, "orch.toml", case, capsys)


@pytest.mark.parametrize("case", everywhere("JOBS"))
def test_a_mistake_in_a_job_file(folder: Path, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    refused_job(folder, case, capsys)


@pytest.mark.parametrize("case", everywhere("SETTINGS"))
def test_a_mistake_in_the_settings(folder: Path, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    refused_settings(folder, case, capsys)


def test_the_files_without_a_mistake_are_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "orch.toml").write_text(TOML + HOSTED + ENGINES, encoding="utf-8")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    assert run(["submit", "--dry-run", "--backend", "local", "job.yaml"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("orch.toml:2: backends.local.upstream", TOML.replace("upstreams", "upstream")),
        ("orch.toml:2: backends.local.upstrems", TOML.replace("upstreams", "upstrems")),
        ("orch.toml:6: backends.g.api_key_en", f"{TOML}{HOSTED}".replace("_env", "_en").replace(TOML, "\n\n\n")),
    ],
)
def test_a_misspelt_field_is_not_missing_as_well(
    folder: Path, name: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "orch.toml").write_text(content, encoding="utf-8")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    assert run(["submit", "job.yaml"]) == 2
    told = capsys.readouterr().err
    assert f"{name}: unknown field" in told
    assert "did you mean" in told
    assert "is required" not in told


@pytest.mark.parametrize(("encoding", "line"), [("latin-1", 6), ("utf-16", 1)])
def test_a_file_in_another_encoding(
    folder: Path,
    encoding: str,
    line: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    (folder / "job.yaml").write_bytes(prompt("Wer hät's geschrieben?").encode(encoding))
    assert run(["submit", "job.yaml"]) == 2
    told = capsys.readouterr().err
    assert f"orch: job.yaml:{line}: is not UTF-8 text" in told
    assert "save it as UTF-8" in told


def test_a_file_name_for_a_prompt_is_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    (folder / "job.yaml").write_text(prompt("prompts/sender.txt"), encoding="utf-8")
    assert run(["validate", "job.yaml"]) == 0
    assert "job.yaml:6: tasks[0].prompt: is sent as it is, a file's name" in "".join(capsys.readouterr())


NULLABLE = {
    "{type: string, nullable: true}": 'a: {"type": ["string", "null"]}',
    "{type: string, enum: [x, y], nullable: true}": 'a: {"type": ["string", "null"], "enum": ["x", "y", null]}',
    "{type: [string, integer], nullable: true}": 'a: {"type": ["string", "integer", "null"]}',
    "{$ref: '#/$defs/b', nullable: true}": 'a: {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "null"}]}',
    "{type: array, nullable: true, items: {type: string}}": (
        'a: {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}'
    ),
}


@pytest.mark.parametrize("command", ["validate", "plan", "submit --dry-run"])
@pytest.mark.parametrize("part", NULLABLE)
def test_a_null_of_openapi_is_a_warning_with_the_right_line(
    folder: Path, part: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    schema = f"schema: {{type: object, properties: {{a: {part}}}, $defs: {{b: {{type: string}}}}, required: [a]}}"
    (folder / "job.yaml").write_text(task(schema), encoding="utf-8")
    assert run([*command.split(), "job.yaml"]) == 0
    told = "".join(capsys.readouterr())
    assert "warning: job.yaml:7: tasks[0].schema.properties.a: `nullable` is OpenAPI's" in told.replace(
        f"{folder}/", ""
    )
    assert NULLABLE[part] in " ".join(told.split())


@pytest.mark.parametrize("part", ["{type: [string, 'null'], nullable: true}", "{type: string, nullable: false}"])
def test_a_null_that_is_allowed_is_none(folder: Path, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    (folder / "job.yaml").write_text(task(f"schema: {{properties: {{a: {part}}}}}"), encoding="utf-8")
    assert run(["validate", "job.yaml"]) == 0
    assert "nullable" not in "".join(capsys.readouterr())


def test_a_backend_in_the_name_of_a_model_is_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    (folder / "job.yaml").write_text(JOB.replace("some-model", "openai:gpt-5-nano"), encoding="utf-8")
    assert run(["validate", "job.yaml"]) == 0
    told = "".join(capsys.readouterr())
    assert "models.small: 'openai:gpt-5-nano' is sent as it is: write {openai: gpt-5-nano}" in told
    (folder / "job.yaml").write_text(JOB.replace("some-model", "llama3:8b"), encoding="utf-8")
    assert run(["validate", "job.yaml"]) == 0
    assert "is sent as it is" not in "".join(capsys.readouterr())


def test_the_job_file_is_not_offered_as_its_own_documents(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    (folder / "letters.yaml").write_text(JOB.replace("path: documents", "path: letter"), encoding="utf-8")
    assert run(["validate", "letters.yaml"]) == 2
    told = capsys.readouterr().err
    assert "letters.yaml:2: documents[0].path: There is no file or folder letter" in told
    assert "did you mean" not in told
    (folder / "letters").mkdir()
    assert run(["validate", "letters.yaml"]) == 2
    assert "did you mean 'letters'?" in capsys.readouterr().err
