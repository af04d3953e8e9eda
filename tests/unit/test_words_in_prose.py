"""Docstrings and comments that read at once: each room has a budget of the worst patterns, which can only fall."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.trees import PACKAGE, ROOT, modules

BUDGETS = {
    "backends": 2, "bench": 1, "cli": 2, "core": 2, "daemon": 0, "documents": 3, "pipeline": 0, "policy": 4,
    "ray": 1, "reports": 3, "server": 4, "settings": 2, "store": 0, "web": 3,
    "policy/forecast": 0, "policy/planner": 0,
}  # fmt: skip
"""Most faults of a room. Rewrite a sentence instead of raising a budget, and lower the budget once few are left."""
LOOSE = 10
"""A budget that exceeds the faults by more than this must be lowered."""
LONGEST = 25
"""Words in a sentence."""

_CLAUSE = re.compile(
    r"(What|Whether|Why|How (many|much|often)|Who|Whose|Where|So (long|many|much)|As long|Of )\b(?! to\b)"
)
_VAGUE = re.compile(
    r"\b([Oo]nes? (that|which|who|whose)|[Tt]hose (that|which|who|whose)|theirs|(is|are) none"
    r"|of (which|whom|whose)|others than|such (is|are)|[Nn]obody|nothing of)\b"
)
_NOT_A_VERB = frozenset(
    "A All An And Any As At Both But By Each Either Every For From If In It Its Less Least Many More Most No None "
    "Not Nothing On One Only Or Same So Some Such That The Their Then There These They This Those To With".split()
)
_SENTENCE_ENDS = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n[-*] ")


@dataclass(frozen=True)
class Fault:
    """A sentence that needs a second reading, and what is wrong with it."""

    place: str
    kind: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.place}: {self.kind}: {self.sentence}"


def faults(text: str, place: str = "", *, is_function: bool = False) -> Iterator[Fault]:
    """Yield the faults of a docstring or comment; `is_function` says that it must begin with a verb."""
    # Lines with two blanks side by side are code, tables and drawings.
    prose = "\n".join(line for line in inspect.cleandoc(text).split("\n") if "  " not in line)
    sentences = [" ".join(found.split()) for found in _SENTENCE_ENDS.split(prose) if found.strip()]
    if not sentences:
        return
    if _CLAUSE.match(sentences[0]):
        yield Fault(place, "begins with a clause", sentences[0])
    first = re.match(r"[A-Za-z']+", sentences[0])
    if is_function and first is not None and first[0] in _NOT_A_VERB:
        yield Fault(place, "begins without a verb", sentences[0])
    for sentence in sentences:
        if _VAGUE.search(sentence):
            yield Fault(place, "refers to something without its noun", sentence)
        if len(sentence.split()) > LONGEST:
            yield Fault(place, "is long", sentence)


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str, bool]]:
    for node in nodes:
        body = getattr(node, "body", None)
        for index, child in enumerate(body if isinstance(body, list) else ()):
            if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                continue
            if isinstance(child.value.value, str):
                is_first = index == 0 and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                yield child.lineno, child.value.value, is_first and not _is_called_by_noun(node)


def _is_called_by_noun(node: ast.AST) -> bool:
    """True for a property, which is a noun, and for a command, whose docstring is its help."""
    names = (ast.unparse(decorator) for decorator in getattr(node, "decorator_list", ()))
    return any(re.search(r"property|\b(command|group)\b|\.setter", name) for name in names)


def _comments(source: str, nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    texts = (node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    quoted = {line for text in texts for line in range(text.lineno + 1, (text.end_lineno or 0) + 1)}
    begin, lines = 0, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], 1):
        if number not in quoted and line.lstrip().startswith("# "):
            begin = begin or number
            lines.append(line.strip()[2:])
        elif lines:
            yield begin, "\n".join(lines)
            begin, lines = 0, []


def room_of(path: Path) -> str:
    """Return the room of a module; the two largest parts of `policy` are rooms of their own."""
    parts = path.relative_to(PACKAGE).parts
    whole = "/".join(parts[:2])
    return whole if whole in BUDGETS else parts[0]


def package_faults() -> dict[str, list[Fault]]:
    """Return the faults of the package by room."""
    rooms = defaultdict(list)
    for path, (tree, source) in modules().items():
        if "migrations" in path.parts:
            continue
        name, nodes = str(path.relative_to(ROOT)), list(ast.walk(tree))
        texts = [*_docstrings(nodes), *((number, text, False) for number, text in _comments(source, nodes))]
        for number, text, is_function in texts:
            rooms[room_of(path)] += faults(text, f"{name}:{number}", is_function=is_function)
    return rooms


@pytest.mark.long
def test_each_room_has_few_sentences_that_need_a_second_reading() -> None:
    found = package_faults()
    assert {room for room, here in found.items() if here} <= set(BUDGETS)
    for room, budget in BUDGETS.items():
        here = found[room]
        told = "\n".join(map(str, here))
        assert len(here) <= budget, f"{room}: rewrite some of these ({Counter(one.kind for one in here)}):\n{told}"
        assert len(here) >= budget - LOOSE, f"lower the budget of {room} to {len(here)}"


@pytest.mark.parametrize(
    ("text", "is_function", "kinds"),
    [
        ("Return the rows of a batch.", True, []),
        ("True if its rows are no longer wanted.", True, []),
        ("The rows of a batch.", True, ["begins without a verb"]),
        ("The rows of a batch.", False, []),
        ("Whether it may be sent.", False, ["begins with a clause"]),
        ("How long to retry a row.", False, []),
        ("How many rows wait.", False, ["begins with a clause"]),
        ("Rows, without those that failed.", False, ["refers to something without its noun"]),
        ("Rows, without those of other jobs.", False, []),
        ("`batch` is None if unknown.", False, []),
        ("A batch that is none.", False, ["refers to something without its noun"]),
        (f"Return {'rows ' * 25}.", True, ["is long"]),
        (f"Return {'rows ' * 12}: {'rows ' * 14}.", True, []),
        (f"The parts:\n\n    poll     {'rows ' * 30}", False, []),
    ],
)
def test_what_counts_as_a_fault(text: str, is_function: bool, kinds: list[str]) -> None:
    assert [one.kind for one in faults(text, is_function=is_function)] == kinds


_LISTED = re.compile(r"\s*([a-z]\w*/?(?:, [a-z]\w*/?)*) {2,}(?=\S)")


@pytest.mark.parametrize("init", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_a_package_lists_modules_that_exist(init: Path) -> None:
    """A line such as `batches, keys   a batch's life; uploads: files in parts` names modules of its package."""
    modules = {path.stem for path in init.parent.iterdir()}
    for line in (ast.get_docstring(ast.parse(init.read_text("utf-8"))) or "").splitlines():
        listed = _LISTED.match(line)
        names = [*listed[1].split(", "), *re.findall(r"; (\w+): ", line)] if listed else []
        assert {name.rstrip("/") for name in names} <= modules, line
        rest = line[listed.end() if listed else 0 :]
        assert not re.search(r"\w {3,}\w", rest), f"the list became a paragraph: {line}"
