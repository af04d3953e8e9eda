"""The samples: what is read of them must not change unnoticed, and their answers must fit them."""

from __future__ import annotations

import csv
import hashlib
import json
import runpy
from pathlib import Path

import jsonschema
import pytest

from orchestrator.documents import Document
from orchestrator.documents.kinds import kind_of
from orchestrator.documents.versions import version_of
from orchestrator.settings import job_file
from orchestrator.settings.job_spec import DocumentSource, JobSpec
from tests.support import office
from tests.support.documents import read

SAMPLES = Path(__file__).parents[2] / "samples"
MADE = (".pdf", ".docx", ".png", ".xlsx", ".eml")
KINDS = ("contracts", "invoices", "reports")

# Kind and version of its reader -> hash of the text of the files of that kind here. A change of the text needs a new
# version, so that what was read before is read again, and then a line in place of the old one.
READ_AS = {
    ("csv", 5): "8b86ffeaa8013766",
    ("docx", 7): "2c8111a4edc5c9ce",
    ("eml", 8): "0b3b586f85165d28",
    ("epub", 6): "6a0913fdcceb0151",
    ("html", 7): "ec7a76b6b3dd216b",
    ("image", 4): "f14d126ee5bfbb52",
    ("msg", 8): "dd2010f5d93475d9",
    ("odf", 9): "ea1d9db098c4c8b6",
    ("pdf", 14): "90fbb88b84d72a29",
    ("pptx", 7): "b0c816145595c5f4",
    ("rtf", 5): "cd81d3068ef26263",
    ("sheets", 22): "1bd8f6d070dc8b21",
    ("text", 5): "382214f97c9191e6",
}


def job(kind: str) -> JobSpec:
    return job_file.load(SAMPLES / kind / "job.yaml")


def documents(kind: str) -> list[Document]:
    found = [d for source in job(kind).documents for d in read(source, SAMPLES / kind)]
    assert all(isinstance(d, Document) for d in found), found
    return [d for d in found if isinstance(d, Document)]


def gold(kind: str) -> list[dict[str, str]]:
    with (SAMPLES / kind / "gold.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def made(folder: Path) -> list[Document]:
    """One file of each kind that the samples have not."""
    files = {
        "note.rtf": office.RTF, "deck.pptx": office.presentation(), "letter.odt": office.letter(),
        "book.epub": office.book(), "m.msg": office.outlook("Offer", "Dear Ben", "ann@example.org"),
    }  # fmt: skip
    for name, data in files.items():
        (folder / name).write_bytes(data)
    found = list(read(DocumentSource(path=folder.name), folder.parent))
    assert all(isinstance(one, Document) for one in found), found
    return [one for one in found if isinstance(one, Document)]


@pytest.mark.long
def test_a_new_text_needs_a_new_version(tmp_path: Path) -> None:
    texts: dict[str, list[tuple[str, str]]] = {}
    [inbox] = job("inbox").documents
    for one in [d for kind in KINDS for d in documents(kind)] + made(tmp_path) + [*read(inbox, SAMPLES / "inbox")]:
        assert isinstance(one, Document)
        kind = kind_of(one.key.partition("#")[0], {}, as_rows=False).name
        texts.setdefault(kind, []).append((one.key.removeprefix(tmp_path.name), one.text))
    found = {
        (kind, version_of(kind)): hashlib.sha256(json.dumps(some).encode()).hexdigest()[:16]
        for kind, some in texts.items()
    }
    assert found == READ_AS, "raise the version in READERS; if only a sample was edited, replace its hash"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gold_covers_every_document_and_task_once(kind: str) -> None:
    asked = sorted((d.key, task.id) for d in documents(kind) for task in job(kind).tasks)
    assert sorted((row["document"], row["task"]) for row in gold(kind)) == asked


@pytest.mark.parametrize("kind", KINDS)
def test_gold_answers_fit_their_schema(kind: str) -> None:
    schemas = {task.id: task.output_schema for task in job(kind).tasks}
    for row in gold(kind):
        jsonschema.validate(json.loads(row["expected"]), schemas[row["task"]] or False)


@pytest.mark.parametrize(
    ("kind", "task", "field"), [("contracts", "parties", "parties"), ("invoices", "header", "number")]
)
def test_gold_answers_stand_in_their_documents(kind: str, task: str, field: str) -> None:
    texts = {d.key: " ".join(d.text.split()) for d in documents(kind)}
    for row in gold(kind):
        if row["task"] == task:
            answer = json.loads(row["expected"])[field]
            for part in answer if isinstance(answer, list) else [answer]:
                assert part in texts[row["document"]]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_of_the_size_of_real_documents(kind: str) -> None:
    for document in documents(kind):
        assert 150 <= len(document.text.split()) <= 900
    for path in (SAMPLES / kind / "documents").iterdir():
        assert path.stat().st_size < 100_000


@pytest.mark.slow
def test_the_generator_gives_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in SAMPLES.glob("*/documents/*") if path.suffix in MADE}
    written: dict[Path, bytes] = {}
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: written.update({path: data}))
    runpy.run_path(str(SAMPLES / "make.py"), run_name="__main__")
    # What a font draws, and how zip packs, differs between versions of libraries.
    assert {path for path in written if path.suffix == ".pdf" and before[path] != written[path]} == set()
    assert set(written) == set(before)


def test_the_inbox_is_read_as_its_parts() -> None:
    """A mail and what is attached, a spreadsheet and two scans, which have no text of their own."""
    [source] = job("inbox").documents
    found = {one.key: one for one in read(source, SAMPLES / "inbox") if isinstance(one, Document)}
    assert {key: len(one.pictures) for key, one in found.items()} == {
        "documents/claim.eml#message": 0, "documents/claim.eml#receipt.png": 1, "documents/letter.png": 1,
        "documents/stock.xlsx": 0,
    }  # fmt: skip
    assert "smashed the window" in found["documents/claim.eml#message"].text
    assert "Fender, large" in found["documents/stock.xlsx"].text
    known = [json.loads(line) for line in (SAMPLES / "inbox/gold.jsonl").read_text().splitlines()]
    assert {line["document"] for line in known} == found.keys()
