"""`orch help` on a terminal: pages are laid out for its width, and every link names a page that can be asked for."""

from __future__ import annotations

import re

import pytest

from orchestrator.cli.help_pages import find_pages
from orchestrator.cli.page_lines import page_lines

PAGES = find_pages()


def shown(text: str, width: int = 80) -> list[str]:
    return ["".join(span.text for span in line) for line in page_lines(text, width, PAGES)]


@pytest.mark.parametrize("name", [name for name in PAGES if "/" in name or name in ("README", "quickstart")])
def test_a_page_fits_into_80_columns_and_loses_no_word(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    lines = shown(text)
    assert all(len(line) <= 80 for line in lines if not line.startswith("    ")), max(lines, key=len)
    asked = re.findall(r"`orch help ([^` ]+)`", " ".join(line.strip() for line in lines))
    assert {page for page in asked if page not in PAGES} <= {"PAGE", "TOPIC"}
    if name == "README":
        return  # its list has names in place of titles
    bare = re.sub(r"\]\([^)]*\)|^```.*$", "", text, flags=re.MULTILINE)
    words = set(re.findall(r"[A-Za-z]{4,}", bare))
    assert words <= set(re.findall(r"[A-Za-z]{4,}", " ".join(lines) + "".join(line.strip() for line in lines)))


def test_the_list_of_pages_names_each_as_it_is_asked_for() -> None:
    lines = shown("| I want to … | page |\n|---|---|\n| see costs | [Cost reports](how-to/cost-reports.md#x) |\n")
    assert lines == ["I want to …  page", "see costs    cost-reports", ""]
    told = shown(
        "See [quotes](../how-to/quotes.md), [the code](../orchestrator/cli.py) and [a site](https://a.de/x)."
    )
    assert told == ["See quotes (`orch help quotes`), the code and a site (https://a.de/x).", ""]


def test_code_stays_as_it_is() -> None:
    code = "x" * 100
    assert shown(f"One\ntwo\n\n```toml\n{code}\n# no heading\n```\n- an item\n  of two lines\n") == [
        "One two", "", f"    {code}", "    # no heading", "- an item of two lines", "",
    ]  # fmt: skip
