"""A folder of scans, asked about at each provider: accepted, answered, and priced before as what it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx2
import pytest

from orchestrator.cli.console_rows import exchange_lines
from orchestrator.cli.pages import PagesOptions, serve_pages
from orchestrator.core.clock import now
from orchestrator.core.listening import bound
from orchestrator.library.context import opened
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.reports.requests_and_answers import exchanges
from tests.support.figures import words_of
from tests.support.hostedjob import EVERY_KIND, MODEL, RATES, Desk, cost_of
from tests.unit.test_documents_pictures import PROSE, drawing, mixed_pdf, saved

PAGES = 3


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """A job file, and three scanned pages in two files, one of them beside a page of text."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.pdf").write_bytes(mixed_pdf("", PROSE, ""))
    (tmp_path / "in/b.png").write_bytes(saved("PNG", drawing()))
    path = tmp_path / "job.yaml"
    path.write_text(
        f"name: scans\ndocuments: {{path: in, render: auto}}\nmodels: {{small: {MODEL}}}\n"
        "tasks: [{id: facts, model: small, max_tokens: 1, prompt: 'What does it say?'}]\n"
    )
    return path


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", [*EVERY_KIND, "flex"])
def test_scans_are_answered_by_every_provider(desk: Desk, scans: Path, name: str) -> None:
    desk.backend(name, limits={"min_rows": 1})
    desk.provider.settings(min_rows=1)
    job = desk.run(scans)
    assert sorted(desk.ends(job).values()) == ["succeeded", "succeeded"]
    assert desk.cost(job) == cost_of(desk.provider.bill()) > 0


def test_the_plan_prices_pictures_by_their_size_and_not_by_their_bytes(desk: Desk, scans: Path) -> None:
    desk.backend()
    job = desk.submit(scans)
    plan = Planning(desk.store, desk.config, desk.store.jobs.get(job.id), now()).plan()
    lines = desk.home.requests(job.id).read_bytes().splitlines()
    assert len(lines) == 2
    assert sum(line.count(b"data:image/jpeg") for line in lines) == PAGES
    # Letter at 100 dpi was scanned, and is sent at 150 dpi; the picture of 850 x 1100 goes as it is.
    pixels = 2 * 1212 * 1568 + 850 * 1100
    text = 2 * 30 + len(PROSE) // 3
    by_hand = (pixels / 750 + text) * float(RATES["input"]) / 1_000_000 + 2 * float(RATES["output"]) / 1_000_000
    assert abs(float(plan.expected) - by_hand) < by_hand / 10
    assert sum(map(len, lines)) / 4 > 2 * pixels / 750, "as text they would cost more, or this shows nothing"


def test_a_request_names_its_pages(desk: Desk, scans: Path) -> None:
    desk.backend()
    job = desk.submit(scans)
    first = json.loads(desk.home.requests(job.id).read_bytes().splitlines()[0])
    kinds = [part["type"] for part in first["body"]["messages"][0]["content"]]
    assert kinds == ["image_url", "image_url", "text"]


@pytest.mark.long
def test_each_row_says_which_pages_went_as_pictures(desk: Desk, scans: Path) -> None:
    desk.backend()
    (scans.parent / "in/c.txt").write_text("plain text")
    sent = {"in/a.pdf": "pages 1, 3 as images", "in/b.png": "page 1 as image", "in/c.txt": None}
    first = desk.run(scans)
    assert {row["document"]: row["provenance"]["document_sent_as"] for row in desk.rows(first).values()} == sent
    (scans.parent / "in/d.txt").write_text("more")
    again = desk.rows(desk.run(scans))
    carried = {row["document"]: row["provenance"] for row in again.values() if row["provenance"]["carried_from"]}
    assert {document: told["document_sent_as"] for document, told in carried.items()} == sent


@pytest.mark.long
def test_each_row_says_what_of_its_document_was_not_read(desk: Desk, scans: Path) -> None:
    desk.backend()
    (scans.parent / "in/b.png").unlink()
    scans.write_text(scans.read_text().replace("render: auto", "render: text"))
    (scans.parent / "in/c.txt").write_text("plain text")
    first = desk.run(scans)
    notes = {"in/a.pdf": "pages 1, 3 without text", "in/c.txt": None}
    assert {row["document"]: row["provenance"]["document_notes"] for row in desk.rows(first).values()} == notes
    (scans.parent / "in/d.txt").write_text("more")
    again = desk.run(scans)
    carried = {row["document"]: row["provenance"] for row in desk.rows(again).values() if row["document"] in notes}
    assert {document: told["document_notes"] for document, told in carried.items()} == notes
    assert all(told["carried_from"] for told in carried.values())
    for job in (first, again):
        ignored = desk.store.jobs.get(job.id).ignored
        assert ignored is not None
        assert ignored["in_part"] == 1
    shown = exchanges(desk.store, desk.home, desk.store.jobs.get(again.id), "in/a.pdf", None)
    assert "pages 1, 3 without text" in str(exchange_lines(shown, None))


def test_the_page_of_a_night_says_what_was_not_read(
    desk: Desk, scans: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.backend()
    scans.write_text(scans.read_text().replace("render: auto", "render: text"))
    for name in ("old.doc", "older.doc", "a.log", "b.json"):
        (scans.parent / "in" / name).write_bytes(b"x")
    desk.run(scans)
    for name, value in {"ORCH_CONFIG": desk.place.path, "ORCH_HOME": desk.home.root}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    with opened() as context:
        listener = bound("127.0.0.1", 0)
        with (
            serve_pages(listener, context, PagesOptions("127.0.0.1"), lambda: context) as url,
            httpx2.Client(follow_redirects=True, timeout=30) as reader,
        ):
            reader.get(capsys.readouterr().err.split()[-1])
            [night, *_] = re.findall(r'href="(/nights/[0-9-]+)"', reader.get(f"{url}/nights").text)
            page = words_of(reader.get(f"{url}{night}").text)
    told = "read 1; 1 of them in part, 2 .doc not read (LibreOffice would), 1 .png not read (render would), "
    assert f"{told}2 of other kinds (.json 1, .log 1)" in page
