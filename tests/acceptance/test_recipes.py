"""The recipes: each page's commands and code as they stand, in a folder of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer
from tests.support.process import ROOT, Upstream
from tests.support.raycluster import free_port
from tests.support.shell import Shell

FOLDER = ROOT / "docs/how-to/recipes"
PAGES = sorted(page.stem for page in FOLDER.glob("*.md") if page.name != "README.md")
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SAID = {
    "invoice-fields": "18.txt",
    "contracts-with-quotes": "quote",
    "classify-tickets": "label",
    "nightly-parquet": "inbox/birch.txt",
    "embeddings-to-lancedb": "2 succeeded",
    "two-models": "2 succeeded",
    "monthly-budget": "legal",
    "two-machines": "completed",
    "only-batch-api": "r4 completed",
}
"""What each recipe shows if it worked."""
SCHEDULED = {"airflow"}
"""Recipes for schedulers that have an environment of their own: `make soak-integrations` runs them."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with Shell(tmp_path) as shell:
        yield shell


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((FOLDER / f"{page}.md").read_text(encoding="utf-8"))


def test_there_are_ten_and_each_is_tested() -> None:
    assert len(PAGES) == 10
    assert {*PAGES} == SAID.keys() | SCHEDULED
    for page in SCHEDULED:
        [(language, code)] = blocks(page)
        assert language == "python"
        compile(code, page, "exec")


def play(shell: Shell, page: str, changes: dict[str, str]) -> str:
    """Type the settings of all recipes, then a page; what was said."""
    said = ""
    for language, code in [*blocks("README"), *blocks(page)]:
        if "import lancedb" in code and find_spec("lancedb") is None:
            continue  # the long runs of storages have it
        for old, new in changes.items():
            code = code.replace(old, new)
        said += shell.type(code if language == "sh" else f"python - <<'RECIPE'\n{code}RECIPE")
    return said


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in SAID if page != "two-machines"])
def test_a_recipe_runs_as_it_stands(page: str, shell: Shell, upstream: Upstream) -> None:
    changes = {"http://127.0.0.1:8000/v1": upstream.base_url, "8080": str(free_port()), "100_000": "300"}
    assert SAID[page] in play(shell, page, changes)
    assert upstream.requests()


@pytest.mark.soak
@pytest.mark.slow
def test_the_recipe_of_two_machines(
    shell: Shell, upstream: Upstream, tmp_path: Path, postgres: PostgresServer
) -> None:
    (tmp_path / "shared").mkdir()
    with postgres.database() as url:
        changes = {
            "http://127.0.0.1:8000/v1": upstream.base_url,
            "postgresql://orch@database/orch": url,
            "file:///mnt/shared": f"file://{tmp_path / 'shared'}",
        }
        assert SAID["two-machines"] in play(shell, "two-machines", changes)
