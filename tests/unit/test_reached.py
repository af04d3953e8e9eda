"""What nothing of the package reaches is not in it: no function for tests alone, no name that is only handed on."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.trees import PACKAGE, ROOT, modules

IMPORTED = re.compile(r"^[ \t]*from (orchestrator[\w.]*) import (\([^)]*\)|[^\n]+)", re.MULTILINE)
OTHERS = {
    # Called by libraries, under names that these choose.
    "reducer_override", "find_class", "list_commands", "get_command", "format_commands", "on_broken_pipe",
    "process_bind_param", "process_result_value", "result_processor", "readinto", "writable", "capture_signals",
    "connect_tcp", "connect_unix_socket", "start_tls", "invoke", "get_response", "describe", "resolve_command",
    "get_col_spec", "missing_host_key", "_decode_stat", "resume_writing", "auth_flow", "main_loop",
    # What a worker process does, named in a text.
    "main",
    # Notebooks call it to show a value.
    "_repr_html_",
    # logging calls it.
    "emit",
    # Whether a worker has been started shows in no other way.
    "is_started",
}  # fmt: skip


@cache
def attributes() -> dict[str, set[str]]:
    """The names behind the dot of each name."""
    found: dict[str, set[str]] = {}
    for _, text in modules().values():
        for name, attribute in re.findall(r"\b(\w+)\.(?=(\w+))", text):
            found.setdefault(name, set()).add(attribute)
    return found


def names_in(tree: ast.AST) -> Iterator[str]:
    """The names that code mentions, those that it imports included; a text may name what a worker process calls."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name) | ast.alias(name=name):
                yield name
            case ast.Constant(value=str() as text) if len(text) < 200:
                yield from re.findall(r"(?:^|:)(\w+)$", text)


@cache
def mentioned_in() -> dict[Path, Counter[str]]:
    return {path: Counter(names_in(tree)) for path, (tree, _) in modules().items()}


@cache
def mentioned() -> Counter[str]:
    found: Counter[str] = Counter()
    for names in mentioned_in().values():
        found.update(names)
    return found


def defined(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Functions, classes and their methods; those with a decorator may be called by what decorates them."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node
            yield from (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def unreached() -> Iterator[str]:
    plain = {"property", "staticmethod", "classmethod", "cached_property", "contextmanager", "cache", "dataclass"}
    for path, (tree, _) in modules().items():
        if path.is_relative_to(PACKAGE / "testing"):
            continue  # for the tests of whoever writes a backend
        for node in defined(tree):
            decorators = {ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in node.decorator_list}
            is_called_by_others = node.name in OTHERS or node.name.startswith(("__", "on_")) or decorators - plain
            if is_called_by_others or mentioned()[node.name] > mentioned_in()[path][node.name]:
                continue
            if mentioned()[node.name] <= Counter(names_in(node))[node.name]:
                yield f"{path.relative_to(ROOT)}: {node.name}"


@pytest.mark.long
def test_nothing_is_there_for_tests_alone() -> None:
    assert list(unreached()) == []


@pytest.mark.slow
def test_no_promise_is_named_by_a_number_alone() -> None:
    """docs/explanation/design.md counts the promises; elsewhere they are said in words."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").rglob("*.py"))]
    texts = {path: text for path, (_, text) in modules().items()} | {page: page.read_text("utf-8") for page in pages}
    numbered = re.compile(r"(?<![\w.-])P(?:10|[1-9])(?![\w-])")
    assert [str(path.relative_to(ROOT)) for path, text in texts.items() if numbered.search(text)] == []


@pytest.mark.slow
def test_a_name_is_imported_from_where_it_is() -> None:
    """A package hands on what others ask it for; a name that it imports for nobody goes."""
    others = [
        *modules(),
        *(path for folder in ("tests", "benchmarks", "samples") for path in (ROOT / folder).rglob("*.py")),
    ]
    asked = {
        (module, name)
        for path in others
        if "node_modules" not in path.parts
        for module, names in IMPORTED.findall(path.read_text(encoding="utf-8"))
        for name in re.findall(r"\w+", names)
    }
    # A package may also be imported itself, and asked for its names.
    asked_by_name = {
        (".".join(path.parent.relative_to(ROOT).parts), name)
        for path in modules()
        if path.name == "__init__.py"
        for name in attributes().get(path.parent.name, ())
    }
    spare = [
        f"{path.relative_to(ROOT)}: {alias.name}"
        for path, (tree, text) in modules().items()
        if path.name == "__init__.py"
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__"
        for alias in node.names
        if (".".join(path.parent.relative_to(ROOT).parts), alias.name) not in asked | asked_by_name
        and len(re.findall(rf"\b{alias.asname or alias.name}\b", text)) < 2 + (f'"{alias.name}"' in text)
    ]
    assert spare == []
