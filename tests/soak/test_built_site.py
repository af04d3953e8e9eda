"""The built site (`make site`): search, a dark theme, the reference, and nothing loaded from elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.process import ROOT
from tools.site import api_page, prepare

SITE = ROOT / "site"
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: make site"),
]
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]+src=["'](?:https?:)?//|<link[^>]+(?:stylesheet|icon|preload)"""
    r"""[^>]+href=["'](?:https?:)?//|url\(["']?(?:https?:)?//"""
)


def test_every_page_is_built_and_none_loads_from_elsewhere(tmp_path: Path) -> None:
    places = prepare(tmp_path / "pages")
    wanted = {
        place.relative_to(tmp_path / "pages").with_suffix(".html")
        for place in places.values()
        if place.suffix == ".md"
    }
    assert [str(page) for page in sorted(wanted) if not (SITE / page).exists()] == []
    files = [*SITE.rglob("*.html"), *SITE.rglob("*.css")]
    assert [str(file) for file in files if LOADED.search(file.read_text(encoding="utf-8"))] == []


def test_it_searches_and_is_dark() -> None:
    found = json.loads((SITE / "search.json").read_text(encoding="utf-8"))
    assert "half-price" in json.dumps(found)
    page = (SITE / "index.html").read_text(encoding="utf-8")
    assert "(prefers-color-scheme: dark)" in page
    assert 'data-md-color-scheme="slate"' in page


def test_the_reference_has_every_public_name() -> None:
    page = (SITE / "reference/api.html").read_text(encoding="utf-8")
    wanted = re.findall(r"^::: (\S+)$", api_page(), re.MULTILINE)
    assert [name for name in wanted if f'id="{name}"' not in page] == []
