"""One word per thing: retired words stay retired, a public class has a name of its own, and files stay short."""

from __future__ import annotations

import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs/reference/glossary.md"
PACKAGE = ROOT / "orchestrator"
MIGRATIONS = PACKAGE / "store/migrations"
"""They name tables and columns as these were called then."""
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != GLOSSARY)]
CLASS = re.compile(r"^class ([^_]\w*)", re.MULTILINE)
ENTRY = re.compile(r"(?P<word>[^(]+?)(?: \((?P<where>[^)]*)\))?")


@dataclass(frozen=True)
class Retired:
    """A word of the glossary's last column; `folder` is a part of the package, or empty for all of it and docs."""

    word: str
    only_identifiers: bool
    folder: str

    def may_be_in(self, text: str) -> bool:
        """Whether its letters occur: the words of a module take a hundred times as long to read as that."""
        return self.word in text or (not self.only_identifiers and self.word.lower() in text.lower())

    def is_in(self, text: str) -> bool:
        """Whether prose uses it."""
        return re.search(rf"(?<![\w-]){re.escape(self.word)}(?![\w-])", text, re.IGNORECASE) is not None


def retired(glossary: str) -> list[Retired]:
    """What the glossary's last column names: `word (identifiers, in FOLDER), word, …`."""
    found = []
    for line in glossary.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 3 or cells[2] in ("", "not") or set(cells[2]) == {"-"}:
            continue
        for entry in re.split(r", (?![^(]*\))", cells[2]):
            match = ENTRY.fullmatch(entry)
            assert match is not None, entry
            where = (match["where"] or "").split(", ")
            folder = next((one.removeprefix("in ") for one in where if one.startswith("in ")), "")
            assert set(where) <= {"", "identifiers", f"in {folder}"}, f"{entry}: nobody knows what that means"
            found.append(Retired(match["word"], "identifiers" in where, folder))
    return found


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def read(path: Path) -> tuple[frozenset[str], str]:
    """The identifiers of a module, and its prose: comments, and texts with what stands in their braces."""
    names, prose = set(), []
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.NAME:
            names.add(token.string)
        elif token.type in (tokenize.COMMENT, tokenize.STRING):
            prose.append(token.string)
    return frozenset(names), "\n".join(prose)


def uses(word: Retired) -> Iterator[str]:
    """The files that use a retired word."""
    for path in sorted((PACKAGE / word.folder).rglob("*.py")):
        if MIGRATIONS in path.parents or not word.may_be_in(text_of(path)):
            continue
        names, prose = read(path)
        if word.word in names or (not word.only_identifiers and word.is_in(prose)):
            yield str(path.relative_to(ROOT))
    if not word.only_identifiers and not word.folder:
        yield from (str(page.relative_to(ROOT)) for page in PAGES if word.is_in(page.read_text(encoding="utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize("word", retired(GLOSSARY.read_text(encoding="utf-8")), ids=lambda word: word.word)
def test_a_retired_word_is_used_nowhere(word: Retired) -> None:
    assert list(uses(word)) == []


def test_the_glossary_says_where_a_word_is_retired() -> None:
    column = "| send log | what left | sent (identifiers, in server), sending list, Sent (identifiers) |"
    assert retired("| word | is | not |\n|---|---|---|\n| job | one submit | |\n" + column) == [
        Retired("sent", True, "server"),
        Retired("sending list", False, ""),
        Retired("Sent", True, ""),
    ]
    assert len(retired(GLOSSARY.read_text(encoding="utf-8"))) > 30


def test_a_retired_word_is_found_in_names_and_in_prose() -> None:
    assert list(uses(Retired("Glossary of nothing", False, ""))) == []
    assert "orchestrator/store/rows.py" in list(uses(Retired("Rows", True, "store")))
    assert "README.md" in list(uses(Retired("batch", False, "")))
    assert not any(page.endswith(".md") for page in uses(Retired("batch", True, "")))


@pytest.mark.slow
def test_a_public_class_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in CLASS.findall(path.read_text(encoding="utf-8")):
            places[name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_no_file_of_the_package_is_long() -> None:
    lines = {
        str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert {path: count for path, count in lines.items() if count > 600} == {}
