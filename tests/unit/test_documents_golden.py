"""The samples: what is read of them must not change unnoticed, and their answers must fit them."""

from __future__ import annotations

import csv
import hashlib
import json
import runpy
from pathlib import Path

import jsonschema
import pytest

from orchestrator.documents import EXTRACTOR_VERSION, Document
from orchestrator.settings import job_file
from orchestrator.settings.job_spec import JobSpec
from tests.support.documents import read

SAMPLES = Path(__file__).parents[2] / "samples"
MADE = (".pdf", ".docx", ".png", ".xlsx", ".eml")
KINDS = ("contracts", "invoices", "reports")

# Version -> hash of the text of all samples. A change of the text needs a new version (so that jobs do not mix
# answers about two texts), and then a line here.
READ_AS = {
    "1": "26583f90e926e5cda058818253487e7fad5d518ab22dcd96e22b64fcc7a77a5d",
    "2": "5aeda5a1d24555de8e9505a02d74cbdea06974448898499d0b1cfaab708482ff",
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


def test_a_new_text_needs_a_new_version() -> None:
    texts = [(d.key, d.text) for kind in KINDS for d in documents(kind)]
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    assert READ_AS.get(EXTRACTOR_VERSION) == digest, (
        "raise EXTRACTOR_VERSION and add its hash; if only a sample was edited, replace the hash"
    )


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
