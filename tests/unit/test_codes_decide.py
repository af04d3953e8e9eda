"""Codes decide, sentences explain: no source file takes a sentence for a state."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from tests.support.trees import PACKAGE, modules

SENTENCES = frozenset(
    "reason cancel_reason message error_message detail held refusal pulled_for told advice why price_source".split()
)
"""Attributes that hold words for people."""
SEARCHES = frozenset("startswith endswith removeprefix split index find count search match fullmatch like".split())
PARTS = frozenset({"partition", "rpartition"})
READ = {
    # Whose words are the only thing that tells what it is: a provider's, a database's, an upstream's.
    "pipeline/build/submission.py": "takes the name of the field off, which stands before it with its line",
    "core/error_body.py": "some servers tell only in words that a prompt is too long, a key wrong, an account empty",
    "policy/row_errors.py": "providers give the same error other codes; the table knows their words",
}


def is_sentence(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr in SENTENCES) or (
        isinstance(node, ast.BoolOp | ast.BinOp) and any(is_sentence(one) for one in ast.iter_child_nodes(node))
    )


def nodes_of(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def read_sentences(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Lines that search, split or compare the words of an attribute that is for people."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=args) if name in SEARCHES:
                if is_sentence(value) or (name in ("search", "match", "fullmatch") and any(map(is_sentence, args))):
                    yield node.lineno
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=[ast.Constant(value=sign)]):
                # The first line of several is shown, and says nothing by it.
                if name in PARTS and is_sentence(value) and sign != "\n":
                    yield node.lineno
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                if isinstance(operator, ast.In | ast.NotIn) and is_sentence(right):
                    yield node.lineno
                if isinstance(operator, ast.Eq | ast.NotEq) and is_sentence(left) and isinstance(right, ast.Constant):
                    yield node.lineno


@pytest.mark.long
def test_no_sentence_is_read_and_a_spec_by_its_fields() -> None:
    sentences, keys = {}, {}
    for path, (tree, _) in modules().items():
        name, nodes = path.relative_to(PACKAGE).as_posix(), list(ast.walk(tree))
        if name not in READ and (lines := list(read_sentences(nodes))):
            sentences[name] = lines
        if lines := list(spec_keys(nodes)):
            keys[name] = lines
    assert (sentences, keys) == ({}, {})


@pytest.mark.parametrize(
    "source",
    [
        'x = job.cancel_reason.startswith("budget")',
        'x = (job.cancel_reason or "").startswith("budget")',
        'x = "assumed" in pace.reason',
        'code = shard.refusal.partition(": ")',
        'x = c.reason.like("budget%")',
        'x = event.reason == "a night"',
        'x = re.search("gone", error.message)',
    ],
)
def test_it_would_be_seen(source: str) -> None:
    assert list(read_sentences(nodes_of(source))) == [1]


@pytest.mark.parametrize(
    "source", ['x = night.reason.partition("\\n")[0]', "x = shard.held != why", "x = job.error_code == 'a'"]
)
def test_what_only_shows_words_is_not(source: str) -> None:
    assert list(read_sentences(nodes_of(source))) == []


def spec_keys(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Lines that read a job's spec by a string key."""
    for node in nodes:
        match node:
            case ast.Subscript(value=ast.Attribute(attr="spec")):
                yield node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="spec"), attr="get")):
                yield node.lineno


def test_a_spec_that_is_read_by_a_key_would_be_seen() -> None:
    assert list(spec_keys(nodes_of('x = job.spec.get("on_late")'))) == [1]
    assert list(spec_keys(nodes_of('x = job.spec["tasks"]'))) == [1]
