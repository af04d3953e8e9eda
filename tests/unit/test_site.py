"""The sources of the documentation's site: every page is there, and every link leads to one of them."""

from __future__ import annotations

import re
from pathlib import Path

import orchestrator
from tools.site import API, LINK, ROOT, api_page, prepare

FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)


def test_every_page_is_there_and_links_stay_inside(tmp_path: Path) -> None:
    places = prepare(tmp_path / "pages")

    assert {page for page in places if page.is_relative_to(ROOT / "docs")} == {
        path for path in (ROOT / "docs").rglob("*") if path.is_file()
    }
    lost = []
    for place in (*places.values(), tmp_path / "pages" / API):
        if place.suffix == ".md":
            for _, path, _ in LINK.findall(FENCE.sub("", place.read_text(encoding="utf-8"))):
                if not re.match(r"[a-z]+:", path) and not (place.parent / path).exists():
                    lost.append(f"{place.name} → {path}")
    assert lost == []


def test_links_to_headings_take_the_anchors_of_the_site(tmp_path: Path) -> None:
    """GitHub keeps each hyphen of `orch try --json`; the site's generator makes one of several."""
    places = prepare(tmp_path / "pages")
    page = places[ROOT / "docs" / "how-to" / "try-a-job.md"].read_text(encoding="utf-8")
    assert "(../reference/json.md#orch-try-json)" in page
    texts = [place.read_text(encoding="utf-8") for place in places.values() if place.suffix == ".md"]
    anchors = [anchor for text in texts for _, _, anchor in LINK.findall(FENCE.sub("", text))]
    assert len(anchors) > 100
    assert [anchor for anchor in anchors if "--" in anchor] == []


def test_every_public_name_is_in_the_reference() -> None:
    page = api_page()
    assert [
        name for name in orchestrator.__all__[:] if name != "__version__" and f"heading: orch.{name}\n" not in page
    ] == []
    assert "::: orchestrator.library.calls.map_rows\n" in page
