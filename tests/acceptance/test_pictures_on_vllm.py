"""Scans on a real vLLM whose model takes pictures: what our commands send it accepts, and counts as pictures."""

from __future__ import annotations

import base64
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.acceptance.conftest import ROOT, EngineInTest
from tests.support.batchapi import create, ended, row, sdk_at
from tests.support.cli import Orch, write_config
from tests.support.process import PATIENCE
from tests.support.serving import serve
from tests.unit.test_documents_pictures import drawing, saved

pytestmark = [pytest.mark.vllm, pytest.mark.soak, pytest.mark.timeout(900)]

UPRIGHT, WIDE = 185, 130
"""Tokens of a page: nine or six tiles and the whole of 16 tokens each, with the marks around and between them."""
SCANS = ("contracts/loan-agreement.pdf", "contracts/office-lease.pdf", "invoices/freight.pdf", "inbox/letter.png")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Three of the samples' PDFs and their scanned letter, every page to be sent as a picture."""
    (tmp_path / "in").mkdir()
    for scan in SCANS:
        folder, name = scan.split("/")
        shutil.copy(ROOT / "samples" / folder / "documents" / name, tmp_path / "in")
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: scans\ndocuments: {path: in, render: image}\nmodels: {small: default}\ntasks:\n"
        "  - {id: kind, kind: classify, model: small, labels: [contract, invoice, letter]}\n"
        "  - {id: gist, model: small, prompt: 'What is it about?', max_tokens: 8}\n"
    )
    return path


def test_a_job_of_scans_runs_on_a_real_vllm(
    vision_engine: EngineInTest, run_orch: Orch, orch_home: Path, job: Path, tmp_path: Path
) -> None:
    write_config(orch_home, [vision_engine.base_url])
    rows, raw = tmp_path / "rows.jsonl", tmp_path / "raw.jsonl"

    done = run_orch("run", str(job), "-o", str(rows), timeout=240)

    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(found) == 2 * len(SCANS)
    assert {line["output"]["label"] for line in found if line["task"] == "kind"} <= {"contract", "invoice", "letter"}
    pages = {line["document"]: pages_of(line["provenance"]["document_sent_as"]) for line in found}
    assert max(pages.values()) > 1, "one of them has more than one page, or this shows too little"
    # What vLLM itself says that it read: the pictures of each request, all of them, and the question behind them.
    assert run_orch("fetch", "scans", "--format", "batch", "-o", str(raw)).returncode == 0
    usages = [usage_of(json.loads(line)) for line in raw.read_text().splitlines()]
    pictures = [usage["prompt_tokens_details"]["multimodal_tokens"]["image"] for usage in usages]
    assert pictures == [
        pages[line["document"]] * (WIDE if line["document"].endswith(".png") else UPRIGHT) for line in found
    ]
    assert all(0 < usage["prompt_tokens"] - seen < 300 for usage, seen in zip(usages, pictures, strict=True))
    assert [line["provenance"]["tokens"]["input"] for line in found] == [usage["prompt_tokens"] for usage in usages]


def test_a_picture_in_a_batch_file_reaches_the_model(
    vision_engine: EngineInTest, run_orch: Orch, orch_home: Path
) -> None:
    (orch_home / "orch.toml").touch()
    process, url = serve(run_orch, "--upstream", vision_engine.base_url, timeout=PATIENCE)
    options = {"model": vision_engine.model, "max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 5}
    bar, black = (saved("PNG", picture) for picture in (drawing(300, 400), Image.new("RGB", (300, 400))))
    lines = [row("text", "What is it?", **options)]
    for name, picture in (("bar", bar), ("again", bar), ("black", black)):
        content = [
            {"type": "image_url", "image_url": {"url": data_url(picture)}},
            {"type": "text", "text": "What is it?"},
        ]
        lines.append(row(name, **{**options, "messages": [{"role": "user", "content": content}]}))
    with sdk_at(url) as sdk:
        done = ended(sdk, create(sdk, lines).id, 240)
        done.check([line["custom_id"] for line in lines])
        answers = {line["custom_id"]: line["response"]["body"] for line in done.output}
    tokens = {name: body["usage"]["prompt_tokens"] for name, body in answers.items()}
    assert tokens["bar"] == tokens["again"] == tokens["black"] >= tokens["text"] + UPRIGHT
    assert chances(answers["bar"]) == chances(answers["again"]) != chances(answers["black"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def pages_of(sent_as: str) -> int:
    """`page 1 as image` or `pages 1-3 as images`."""
    first, _, last = sent_as.split()[1].partition("-")
    return int(last or first) - int(first) + 1


def usage_of(line: dict[str, Any]) -> dict[str, Any]:
    usage: dict[str, Any] = line["response"]["body"]["usage"]
    return usage


def data_url(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def chances(body: dict[str, Any]) -> dict[str, float]:
    return {
        entry["token"]: entry["logprob"] for entry in body["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    }
