"""Placeholders of other tools in a prompt: `orch validate` names the line and writes the corrected one."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import run
from tests.support.mistakes import TOML, folder, prompt, task

__all__ = ["folder"]
TABLE = "documents:\n  - {path: rows.csv, text_column: Letter}"
WRITTEN = {
    "Who wrote {text}?": "{text}: write  prompt: Who wrote {{ text }}?",
    "Who wrote {document}?": "{document}: write  prompt: Who wrote {{ text }}?",
    "Who wrote { document_text }?": "{ document_text }: write  prompt: Who wrote {{ text }}?",
    "Is {name} in {path} or {name}?": "{name} and {path}: write  prompt: Is {{ name }} in {{ path }} or {{ name }}?",
    "Who wrote {text[:4000]}?": "{text[:4000]}: write  prompt: Who wrote {{ text[:4000] }}?",
    "Who wrote {text!r}?": "{text!r}: write  prompt: Who wrote {{ text }}?",
    "Who wrote {doc.text}?": "{doc.text}: write  prompt: Who wrote {{ text }}?",
    "Who wrote ${text}?": "${text}: write  prompt: Who wrote {{ text }}?",
    "Who wrote $text?": "$text: write  prompt: Who wrote {{ text }}?",
    "Who wrote %(text)s?": "%(text)s: write  prompt: Who wrote {{ text }}?",
    "Name of {{ name }}, {text}": "{text}: write  prompt: Name of {{ name }}, {{ text }}",
}
AS_MEANT = (
    "'Answer as JSON: {\"name\": \"...\", \"text\": {\"path\": 1}}'", "'Answer as {name, date}'",
    "'Answer {name: text}'", "'Write \\textbf{name} of it'", "'{{ text }} and {{name}}'",
    "'Use {topic} or {end_date}'", "'It costs $5 or $name1'", "'{% raw %}{text}{% endraw %} stays'", "'A set: {}'",
    "'JSON: {{ \"{text}\" }}'",
)  # fmt: skip
BROKEN = {
    '\'Answer as {{"name": "…"}}\'': "write JSON with single braces",
    "'Who is {{{name}}}?'": "write {{ name }}, in two braces",
    "{text}": 'write  "{{ text }}"',
    "{text} Who wrote?": "put the text into a block",
    "{{text}}": "put the text into a block",
}


def warned(folder: Path, content: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    (folder / "job.yaml").write_text(content, encoding="utf-8")
    code = run(["validate", "job.yaml"])
    told = capsys.readouterr()
    assert code == 0, told.err
    return [line.strip() for line in told.out.splitlines() if "warning" in line and "written" in line]


@pytest.mark.parametrize("written", WRITTEN)
def test_the_line_and_the_corrected_line(folder: Path, written: str, capsys: pytest.CaptureFixture[str]) -> None:
    names, line = WRITTEN[written].split(": write  ")
    number = "is" if " and " not in names else "are"
    told = f"warning: job.yaml:6: tasks[0].prompt: {names} {number} sent as written; write  {line}"
    assert warned(folder, prompt(written), capsys) == [told]


@pytest.mark.parametrize("written", AS_MEANT)
def test_braces_that_mean_themselves(folder: Path, written: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert warned(folder, prompt(written), capsys) == []


def test_lines_of_a_block_and_of_the_system_message(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = prompt(
        '|\n      Here is a letter.\n      {content}\n      Answer as {"name": "…"}.\n      Its name: {name}'
    )
    content = block.replace("models:", "    system: You read {folder}\nmodels:")
    assert warned(folder, content, capsys) == [
        "warning: job.yaml:8: tasks[0].prompt: {content} is sent as written; write  {{ text }}",
        "warning: job.yaml:10: tasks[0].prompt: {name} is sent as written; write  Its name: {{ name }}",
        "warning: job.yaml:11: tasks[0].system: {folder} is sent as written; write  system: You read {{ folder }}",
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_the_column_of_a_table(folder: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rows.csv").write_text("Letter,Client\nDear reader,Miller\n", encoding="utf-8")
    (folder / "rows.jsonl").write_text('{"Letter": "Dear reader", "Client": "Miller"}\n', encoding="utf-8")
    content = prompt("What does {Client} want from {row['Letter']}, {client}?")
    content = content.replace("documents: {path: documents}", TABLE.replace("csv", kind))
    assert warned(folder, content, capsys) == [
        "warning: job.yaml:7: tasks[0].prompt: {Client} and {row['Letter']} are sent as written; "
        "write  prompt: What does {{ Client }} want from {{ Letter }}, {client}?"
    ]


@pytest.mark.parametrize(
    ("name", "meant"), [("txt", "text"), ("document", "text"), ("content", "text"), ("nme", "name")]
)
def test_a_name_that_no_document_has(folder: Path, name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    for content, place in ((prompt(f"'Who is {{{{ {name} }}}}?'"), "6: tasks[0].prompt"),
                           (task(f"system: 'Who is {{{{ {name} }}}}?'"), "7: tasks[0].system")):  # fmt: skip
        (folder / "job.yaml").write_text(content, encoding="utf-8")
        assert run(["validate", "job.yaml"]) == 2
        told = capsys.readouterr().err
        assert f"job.yaml:{place}: the template uses {{{{ {name} }}}}, which no document has" in told
        assert f"did you mean {{{{ {meant} }}}}?" in told


@pytest.mark.parametrize("written", BROKEN)
def test_braces_that_break_the_file(folder: Path, written: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    (folder / "job.yaml").write_text(prompt(written), encoding="utf-8")
    assert run(["validate", "job.yaml"]) == 2
    told = capsys.readouterr().err
    assert "job.yaml:6: " in told
    assert BROKEN[written] in told
