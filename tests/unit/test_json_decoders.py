"""Threads that read records of one kind for the first time, all at once, do not end the process."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.trees import PACKAGE, modules

HERE = "core/json_decoders.py"
NO_RECORD = frozenset({"str", "Any", "msgspec.Raw", "list[msgspec.Raw]", "dict[str, msgspec.Raw]"})
"""Kinds without fields, of which nothing is kept between decoders."""
NAMES = frozenset({"Decoder", "decode"})
IN_THREADS = """
import sys, threading
import msgspec
from orchestrator.core.json_decoders import json_decoder

THREADS, KINDS = 6, 40
sys.setswitchinterval(1e-6)
inner = [msgspec.defstruct("Inner", [("text", str), ("number", int, 0)]) for _ in range(KINDS)]
kinds = [msgspec.defstruct("Outer", [("one", kind), ("more", dict[str, kind], {})]) for kind in inner]
at_once = threading.Barrier(THREADS)

def read() -> None:
    for kind in kinds:
        at_once.wait()
        assert json_decoder(kind).decode(b'{"one": {"text": "x"}}').one.text == "x"

threads = [threading.Thread(target=read) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.slow
def test_threads_that_read_a_record_for_the_first_time_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", IN_THREADS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def decoders_of_others(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines that let msgspec read the fields of a record, and how."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", getattr(node.func, "id", "")) not in NAMES:
            continue
        match called := ast.unparse(node.func):
            case "msgspec.json.Decoder" | "Decoder":
                yield node.lineno, called
            case "msgspec.json.decode" | "decode":
                given = [one.value for one in node.keywords if one.arg == "type"]
                either = [
                    kind
                    for one in given
                    for kind in ([one.body, one.orelse] if isinstance(one, ast.IfExp) else [one])
                ]
                yield from ((node.lineno, kind) for kind in map(ast.unparse, either) if kind not in NO_RECORD)


@pytest.mark.parametrize("code", ["msgspec.json.Decoder(Row)", "msgspec.json.decode(raw, type=Row)"])
def test_what_is_looked_for_is_seen(code: str) -> None:
    assert list(decoders_of_others(ast.parse(code)))


@pytest.mark.long
def test_nothing_else_makes_decoders_of_records() -> None:
    found = {}
    for path, (tree, _) in modules().items():
        name, lines = path.relative_to(PACKAGE).as_posix(), list(decoders_of_others(tree))
        if lines and name != HERE:
            found[name] = lines
    assert found == {}
