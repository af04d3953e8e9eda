"""README and docs: every link leads somewhere, every page is reached, and files are named where they are."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tools import house

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs/README.md"
SKIPPED = {"CHANGELOG.md"}
"""What it says of a version was true of that version."""
PAGES = sorted(
    path
    for folder in (".", "docs", "benchmarks", "deploy", "integrations", "samples")
    for path in (ROOT / folder).glob("**/*.md" if folder == "docs" else "*.md")
    if path.name not in SKIPPED
)
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
NAMED = re.compile(r"(?<![\w/])docs/[\w./-]+\.(?:md|json)\b")
"""A page, as prose and docstrings name one."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page without code, where brackets mean other things."""
    return CODE.sub("`", FENCE.sub("", page.read_text(encoding="utf-8")))


def links(page: Path) -> list[tuple[Path, str]]:
    """The files of this repository that a page links to, each with its anchor."""
    found = [link.partition("#") for link in LINK.findall(prose(page)) if not re.match(r"[a-z]+:", link)]
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in found]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and GitLab make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        repeated = [f"{anchor}-{n}" for n in range(1, len(found) + 1)]
        found.add(next(one for one in (anchor, *repeated) if one not in found))
    return found


STEP = re.compile(r"`([\w/]+\.py): (?:(\w+)\.)?(\w+)`")
"""A function, as the life of a row names it: its file in the package, perhaps a class, and its name."""


def defined(path: Path, owner: str | None) -> set[str]:
    """The names of a module's classes and functions, or of a class's methods."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    if owner is not None:
        [body] = (node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
    return {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


@pytest.mark.slow
def test_each_step_of_a_rows_life_names_a_function_that_exists() -> None:
    text = (ROOT / "docs/explanation/life-of-a-row.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\| \d+ .*$", text, re.MULTILINE)
    named = [STEP.findall(step) for step in steps]
    assert all(len(found) == 1 for found in named), "each step has one place"
    assert named
    for [(file, owner, function)] in named:
        assert function in defined(ROOT / "orchestrator" / file, owner or None), file


@pytest.mark.long
def test_the_drawing_of_the_rooms_is_that_of_the_imports() -> None:
    assert house.drawing() in house.PAGE.read_text(encoding="utf-8"), "run make house"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    missing = [name(page) + " → " + str(target) for target, _ in links(page) if not target.exists()]
    dead = [
        f"{name(page)} → {name(target)}#{anchor}"
        for target, anchor in links(page)
        if anchor and target.suffix == ".md" and target.exists() and anchor not in anchors(target)
    ]
    assert [*missing, *dead] == []


def test_every_page_is_reached_from_the_index() -> None:
    reached: set[Path] = set()
    waiting = [INDEX]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [target for target, _ in links(page) if target.suffix == ".md" and target.exists()]
    assert [name(page) for page in PAGES if page not in reached] == []
    assert INDEX in [target for target, _ in links(ROOT / "README.md")]


def test_the_index_names_every_page_of_the_four_kinds() -> None:
    listed = {target for target, _ in links(INDEX)}
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions" and page != INDEX]
    assert [name(page) for page in sorted(pages) if page not in listed] == []


def sources() -> list[Path]:
    """What names pages without links: code, settings, and tests that do not make up documents of their own."""
    folders = ("orchestrator", "benchmarks", "samples")
    # What a benchmark installs of others, in benchmarks/.peers, is not ours.
    code = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if ".peers" not in path.parts]
    tests = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_documents")]
    return [*PAGES, *code, *tests, ROOT / "pyproject.toml", ROOT / "Makefile"]


@pytest.mark.long
def test_pages_are_named_where_they_are() -> None:
    named = [(name(path), page) for path in sources() for page in NAMED.findall(path.read_text(encoding="utf-8"))]
    assert ("orchestrator/policy/row_errors.py", "docs/reference/row-errors.md") in named
    assert [pair for pair in named if not (ROOT / pair[1]).exists()] == []


def test_the_licence_is_the_one_that_the_metadata_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE", "NOTICE"])
    assert "Apache License\n                           Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()
    assert (ROOT / "LICENSE") in [target for target, _ in links(ROOT / "README.md")]


def test_commit_hooks_run_what_is_installed_here_and_download_nothing() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff", "ruff-format", "mypy"]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert all(hook["entry"].startswith(".venv/bin/") for hook in hooks)
