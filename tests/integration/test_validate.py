"""`orch validate`: where nothing could be asked, compared or delivered it fails, and tells each mistake once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import run

CONFIG = """
[backends.local]
upstreams = ["http://127.0.0.1:9/v1"]
location = "local"
idle = true
"""
SCHEMA = {"type": "object", "properties": {"topic": {"type": "string"}}, "additionalProperties": False}
Spec = dict[str, Any]


class Folder:
    """A job file with its documents; `orch validate` of it, in this process."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys
        self.spec: Spec = {
            "name": "letters", "documents": {"path": "documents"}, "models": {"small": "some-model"},
            "tasks": [{"id": "t", "model": "small", "prompt": "Who?"}],
        }  # fmt: skip
        (path / "documents").mkdir()
        for name in "abc":
            self.write(f"documents/{name}.txt", f"Letter {name}.")

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text, encoding="utf-8")

    def table(self, rows: int = 3) -> None:
        """Letters as rows of a table in place of the folder."""
        self.write("table.csv", "name,text\n" + "".join(f"n{row},Letter {row}.\n" for row in range(rows)))

    def gold(self, *lines: Spec) -> None:
        self.write("gold.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        self.spec["gold"] = "gold.jsonl"

    def __call__(self, *options: str) -> tuple[int, str, str]:
        self.write("job.yaml", json.dumps(self.spec, indent=1))
        code = run(["validate", str(self.path / "job.yaml"), *options])
        found = self._capsys.readouterr()
        return code, found.out, found.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Folder:
    (tmp_path / "orch.toml").write_text(CONFIG)
    monkeypatch.setenv("ORCH_CONFIG", str(tmp_path / "orch.toml"))
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    return Folder(tmp_path, capsys)


def wrong_column(folder: Folder) -> str:
    folder.table()
    folder.spec["documents"] = {"path": "table.csv", "text_column": "body"}
    return "documents[0].text_column: table.csv has no column 'body'"


def template_that_fails(folder: Folder) -> str:
    folder.spec["tasks"].append({"id": "u", "model": "small", "prompt": "{{ (text | length) / 0 }}"})
    return "tasks[1].prompt: 'u' can be asked of none of 3 documents: documents/a.txt: template: "


def nothing_readable(folder: Folder) -> str:
    for name in "abc":
        folder.write(f"documents/{name}.txt", " ")
    return "none of 3 documents can be used: documents/a.txt: empty: "


def no_document(folder: Folder) -> str:
    folder.spec["documents"]["include"] = "*.pfd"
    return "There are no documents in "


def gold_of_others(folder: Folder) -> str:
    folder.gold({"document": "documents/x.txt", "task": "t", "expect": "A"})
    return "none of its 1 known answers is for a document that exists, such as 'documents/x.txt'"


def gold_fields_without_schema(folder: Folder) -> str:
    folder.gold(*({"document": f"documents/{name}.txt", "task": "t", "expect": {"topic": "x"}} for name in "ab"))
    return "expects fields of 't', which has no schema: its answers are plain text (2 lines)"


def gold_of_no_field(folder: Folder) -> str:
    folder.spec["tasks"][0]["schema"] = SCHEMA
    folder.gold({"document": "documents/a.txt", "task": "t", "expect": {"topc": "x"}})
    return "expects 'topc' of 't', and its schema has no such field"


def alias_of_no_backend(folder: Folder) -> str:
    folder.spec["models"] = {"small": {"gpu": "some-model"}}
    return "models.small: has names for gpu, and orch.toml has no such backend"


def rung_of_no_backend(folder: Folder) -> str:
    folder.spec["models"] = {"small": ["some-model", {"gpu": "other"}]}
    return "models.small: model 2 of the list is for gpu, and "


def output_that_is_a_folder(folder: Folder) -> str:
    folder.spec["output"] = {"path": "documents"}
    return "output: cannot write "


def deadline_of_yesterday(folder: Folder) -> str:
    folder.spec["deadline"] = "2020-01-01"
    return "the deadline 2020-01-01 00:00 UTC has already passed"


WRONG: list[tuple[Callable[[Folder], str], int]] = [
    (wrong_column, 2), (template_that_fails, 2), (nothing_readable, 2), (no_document, 2), (gold_of_others, 2),
    (gold_fields_without_schema, 2), (gold_of_no_field, 2), (alias_of_no_backend, 2), (rung_of_no_backend, 2),
    (output_that_is_a_folder, 2), (deadline_of_yesterday, 3),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "code"), WRONG, ids=[spoil.__name__ for spoil, _ in WRONG])
def test_what_could_bring_nothing_fails_and_says_where(
    folder: Folder, spoil: Callable[[Folder], str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    assert folder()[0] == 0
    told = spoil(folder)
    found, out, err = folder()
    assert (found, out) == (code, "")
    assert told in err
    assert not (folder.path / "home").exists(), "to validate records nothing"


def test_several_mistakes_are_told_at_once(folder: Folder) -> None:
    template_that_fails(folder)
    gold_of_others(folder)
    output_that_is_a_folder(folder)
    _, _, err = folder()
    assert [part in err for part in ("tasks[1].prompt", "gold.jsonl: document", "output: cannot write")] == [True] * 3


def test_one_mistake_of_many_documents_is_told_once_with_a_count(folder: Folder) -> None:
    folder.write("table.csv", "name,text\nn0,Letter.\n" + "".join(f"n{row},\n" for row in range(1, 500)))
    folder.spec["documents"] = {"path": "table.csv", "text_column": "text"}
    code, out, _ = folder()
    assert code == 0
    [read, problem] = [line for line in out.splitlines() if line.startswith("  ")]
    assert read == "  read 1; 499 empty"
    assert problem.startswith("  table.csv#2: empty: Row 2 has an empty text")
    assert problem.endswith("(and 498 like it: --list)")
    [told] = json.loads(folder("--json")[1])["problems"]
    assert (told["documents"], told["first"]) == (499, ["table.csv#2", "table.csv#3", "table.csv#4"])
    assert told["document"] == "table.csv#2"


def test_a_document_that_fails_every_task_counts_once(folder: Folder) -> None:
    folder.spec["tasks"].append({"id": "u", "model": "small", "prompt": "When?"})
    folder.write("documents/b.txt", "")
    [told] = json.loads(folder("--json")[1])["problems"]
    assert (told["documents"], told["first"]) == (1, ["documents/b.txt"])


def test_what_may_be_meant_is_a_warning(folder: Folder) -> None:
    folder.gold(*({"document": f"documents/{name}.txt", "task": "t", "expect": "A"} for name in "ax"))
    folder.spec["models"]["large"] = {"gpu": "some-model"}
    code, _, _ = folder()
    warnings = json.loads(folder("--json")[1])["warnings"]
    assert code == 0
    assert warnings == [
        "models.large: there is no backend gpu (known: local)",
        "gold.jsonl has known answers for 1 document not found: documents/x.txt",
    ]
