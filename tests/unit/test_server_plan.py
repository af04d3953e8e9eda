"""The plan of an input file: where its rows lie, which are done, or what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.server.dispatch.plan import Plan, make_plan
from orchestrator.wire import MAX_LINE_ERRORS, LineError, id_key

CHAT = "/v1/chat/completions"


def line(custom_id: str, model: str = "m", **more: Any) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": custom_id}]}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **more}).encode()


def planned(
    folder: Path, content: bytes, done: set[str] | None = None, max_rows: int = 100
) -> Plan | list[LineError]:
    path = folder / "input.jsonl"
    path.write_bytes(content)
    return make_plan(path, CHAT, {id_key(each) for each in done or ()}, max_rows)


def codes(found: Plan | list[LineError]) -> list[tuple[str, int | None]]:
    assert isinstance(found, list)
    return [(error.code, error.line) for error in found]


def test_a_plan_says_where_rows_lie_and_which_are_done(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + line("a") + b"\r\n\n" + line("b") + b"\n" + line("c")
    plan = planned(tmp_path, content, {"b"})
    assert isinstance(plan, Plan)
    rows = [content[at : at + size] for at, size in zip(plan.offsets, plan.lengths, strict=True)]
    assert rows == [line("a"), line("b"), line("c")]
    assert (list(plan.done), plan.model, len(plan)) == ([0, 1, 0], "m", 3)


def test_every_bad_line_is_told_in_order(tmp_path: Path) -> None:
    content = b"\n".join([line("a"), b"{", b"", line("a"), line("b", "other"), line("c", method="GET"), line("d")])
    assert codes(planned(tmp_path, content)) == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 4),
        ("mismatched_model", 5),
        ("invalid_request", 6),
    ]


def test_no_more_than_so_many_bad_lines_are_told(tmp_path: Path) -> None:
    found = planned(tmp_path, b"{\n" * (MAX_LINE_ERRORS + 50))
    assert codes(found) == [("invalid_json_line", number) for number in range(1, MAX_LINE_ERRORS + 1)]


@pytest.mark.parametrize("content", [b"", b"\n\r\n  \n", b"\xef\xbb\xbf"], ids=["empty", "blank", "a BOM"])
def test_a_file_without_rows_is_told(tmp_path: Path, content: bytes) -> None:
    assert codes(planned(tmp_path, content)) == [("empty_file", None)]


def test_too_many_rows_are_told_and_as_many_as_may_be_are_not(tmp_path: Path) -> None:
    content = b"\n".join(line(f"r{number}") for number in range(4))
    assert codes(planned(tmp_path, content, max_rows=3)) == [("too_many_tasks", None)]
    assert isinstance(planned(tmp_path, content, max_rows=4), Plan)


@settings(max_examples=60)
@given(st.lists(st.sampled_from([line("a"), line("b"), line("c", "other"), b"{", b"", b"\xff", b" "]), max_size=12))
def test_a_file_has_a_plan_of_all_its_rows_or_errors(tmp_path: Path, lines: list[bytes]) -> None:
    content = b"\n".join(lines)
    found = planned(tmp_path, content)
    if isinstance(found, Plan):
        rows = [content[at : at + size] for at, size in zip(found.offsets, found.lengths, strict=True)]
        assert rows == [each for each in lines if each.strip()]
        assert len(set(rows)) == len(rows)
    else:
        assert found
        numbers = [error.line for error in found if error.line is not None]
        assert numbers == sorted(set(numbers))
