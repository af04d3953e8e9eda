"""The plan of an input file: where its rows lie, which are done, or what is wrong with it."""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.core import request_lines
from orchestrator.core.batch_api import MAX_LINE_BYTES, MAX_LINE_ERRORS, LineError
from orchestrator.core.request_lines import CheckedLine, id_key
from orchestrator.server.dispatch.plan import InputRows, make_plan
from orchestrator.server.dispatch.request_header import Head, can_share, reader
from tests.support.examples import ample

CHAT = "/v1/chat/completions"


def line(custom_id: str, model: str = "m", **more: Any) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": custom_id}]}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **more}).encode()


def planned(
    folder: Path,
    content: bytes,
    done: Iterable[str] = (),
    max_rows: int = 1000,
    key: Callable[[str], int] = id_key,
) -> InputRows | list[LineError]:
    path = folder / "input.jsonl"
    path.write_bytes(content)
    return make_plan(path, CHAT, array("Q", map(key, done)), max_rows, key=key)


def rows_of(folder: Path, plan: InputRows) -> list[bytes]:
    file = os.open(folder / "input.jsonl", os.O_RDONLY)
    try:
        return [plan.read(file, index) for index in range(len(plan))]
    finally:
        os.close(file)


def codes(found: InputRows | list[LineError]) -> list[tuple[str, int | None]]:
    assert isinstance(found, list)
    return [(error.code, error.line) for error in found]


def test_a_plan_says_where_rows_lie_and_which_are_done(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + line("a") + b"\r\n\n" + line("b") + b"\n" + line("c") + b"\n\n \r\n"
    plan = planned(tmp_path, content, {"b", "not in the file"})
    assert isinstance(plan, InputRows)
    assert rows_of(tmp_path, plan) == [line("a") + b"\r\n\n", line("b") + b"\n", line("c")]
    assert (list(plan.done), plan.model, len(plan)) == ([0, 1, 0], "m", 3)


@pytest.mark.slow
def test_a_long_gap_is_not_read_with_the_row_before_it(tmp_path: Path) -> None:
    content = line("a") + b"\n" + b" " * (MAX_LINE_BYTES + 1000) + b"\n" + line("b")
    plan = planned(tmp_path, content)
    assert isinstance(plan, InputRows)
    assert plan.size(0) == MAX_LINE_BYTES
    assert [msgspec.json.decode(row)["custom_id"] for row in rows_of(tmp_path, plan)] == ["a", "b"]


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


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([line(LONG)] * 9, "duplicate_custom_id"),
        ([line("a"), *(line(f"r{number}", f"m{number}{'y' * 900}") for number in range(8))], "mismatched_model"),
        ([line(f"r{number}", LONG) for number in range(9)], "invalid_request"),
    ],
    ids=["ids", "models", "one model"],
)
def test_what_is_long_in_a_bad_line_is_not_repeated_by_its_error(
    tmp_path: Path, lines: list[bytes], code: str
) -> None:
    found = planned(tmp_path, b"\n".join(lines))
    assert isinstance(found, list)
    assert {error.code for error in found} == {code}
    assert sum(len(error.message) for error in found) < 500 * len(found)


@pytest.mark.parametrize("content", [b"", b"\n\r\n  \n", b"\xef\xbb\xbf"], ids=["empty", "blank", "a BOM"])
def test_a_file_without_rows_is_told(tmp_path: Path, content: bytes) -> None:
    assert codes(planned(tmp_path, content)) == [("empty_file", None)]


def test_too_many_rows_are_told_and_as_many_as_may_be_are_not(tmp_path: Path) -> None:
    content = b"\n".join(line(f"r{number}") for number in range(4))
    found = planned(tmp_path, content, max_rows=3)
    assert codes(found) == [("too_many_tasks", None)]
    assert isinstance(found, list)
    assert "at least 4 rows; at most 3" in found[0].message
    assert isinstance(planned(tmp_path, content, max_rows=4), InputRows)


def test_a_file_with_too_many_rows_is_not_read_to_its_end(tmp_path: Path) -> None:
    content = b"\n".join([*(line(f"r{number}") for number in range(4)), b"{"])
    assert codes(planned(tmp_path, content, max_rows=3)) == [("too_many_tasks", None)]
    assert codes(planned(tmp_path, content, max_rows=4)) == [("invalid_json_line", 5)]


def one_by_one(lines: list[bytes]) -> list[LineError]:
    """What is wrong with these lines, found in the simplest way."""
    seen: set[str] = set()
    model: str | None = None
    errors = []
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        found = request_lines.check_line(raw, CHAT)
        if isinstance(found, CheckedLine):
            model = model or found.model
            if found.custom_id in seen:
                found = request_lines.duplicate_error(found.custom_id)
            elif found.model != model:
                seen.add(found.custom_id)
                found = LineError("mismatched_model", "", "body.model")
            else:
                seen.add(found.custom_id)
                continue
        errors.append(LineError(found.code, found.message, found.param, number))
    return errors[:MAX_LINE_ERRORS]


def without_models(errors: list[LineError]) -> list[LineError]:
    return [
        LineError(each.code, "", each.param, each.line) if each.code == "mismatched_model" else each
        for each in errors
    ]


SOME = [line("a"), line("b"), line("c", "other"), line("b", "other"), b"{", b"", b"\xff", b" "]


def first_letter(custom_id: str) -> int:
    """A key with which all ids of some beginning collide."""
    return ord(custom_id[0]) << 56


IDS = [line(custom_id) for custom_id in ("ab", "ac", "ad", "bb", "bc")]


@pytest.mark.slow
@settings(max_examples=ample(150))
@given(st.lists(st.sampled_from(SOME + IDS), max_size=14), st.sampled_from([id_key, first_letter]))
@example([line("a"), *([b"{"] * 99), line("a"), b"{"], id_key)
@example([line("a"), *([b"{"] * 60), *([line("a")] * 60), b"{"], id_key)
@example([line("ab"), line("ac"), line("ac"), line("ab")], first_letter)
def test_a_file_has_a_plan_of_all_its_rows_or_its_first_errors(
    tmp_path: Path, lines: list[bytes], key: Callable[[str], int]
) -> None:
    found = planned(tmp_path, b"\n".join(lines), key=key)
    if isinstance(found, InputRows):
        assert one_by_one(lines) == []
        assert [row.strip() for row in rows_of(tmp_path, found)] == [each for each in lines if each.strip()]
    elif found != [LineError("empty_file", "The input file is empty.")]:
        assert without_models(found) == one_by_one(lines)


def test_ids_whose_keys_collide_are_no_duplicates(tmp_path: Path) -> None:
    content = b"\n".join([line("ab"), line("ac"), line("b")])
    plan = planned(tmp_path, content, key=first_letter)
    assert isinstance(plan, InputRows)
    assert len(plan) == 3


@pytest.mark.slow
@settings(max_examples=ample(50))
@given(st.lists(st.booleans(), min_size=1, max_size=600))
def test_just_the_rows_that_are_done_are_marked(tmp_path: Path, marks: list[bool]) -> None:
    content = b"\n".join(line(f"r{number}") for number in range(len(marks)))
    plan = planned(tmp_path, content, [f"r{number}" for number, mark in enumerate(marks) if mark])
    assert isinstance(plan, InputRows)
    assert list(plan.done) == marks


@pytest.mark.slow
def test_a_row_costs_few_bytes(tmp_path: Path) -> None:
    """1,000 documents of 20 questions each, mixed: the most that an order and its groups need."""
    rows = [line(f"r{number}-{number % 1000}") for number in range(20_000)]
    rows = [
        row.replace(b'"content": "', b'"content": "' + f"{n % 1000}".encode() * 300) for n, row in enumerate(rows)
    ]
    plan = planned(tmp_path, b"\n".join(rows), max_rows=20_000)
    assert isinstance(plan, InputRows)
    assert plan.order.rows is not None
    assert len(plan.order.bounds) > 900
    held = (plan.offsets, plan.done, plan.order.rows, plan.order.bounds, plan.order.hashes)
    assert sum(map(sys.getsizeof, held)) <= 17 * len(plan)


def test_rows_go_out_in_the_files_order_where_a_batch_asks_or_nothing_can_be_shared(tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    shared = [line(name).replace(b'"content": "', b'"content": "' + text * 600) for name, text in
              [("a", b"x"), ("b", b"y"), ("c", b"x"), ("d", b"y")]]  # fmt: skip
    path.write_bytes(b"\n".join(shared))
    grouped = make_plan(path, CHAT, (), 10)
    asked = make_plan(path, CHAT, (), 10, in_order=True)
    path.write_bytes(b"\n".join(shared).replace(CHAT.encode(), b"/v1/embeddings"))
    embeddings = make_plan(path, "/v1/embeddings", (), 10)
    assert isinstance(grouped, InputRows)
    assert isinstance(asked, InputRows)
    assert isinstance(embeddings, InputRows)
    assert list(grouped.order.rows or ()) == [0, 2, 1, 3]
    assert (asked.order.rows, embeddings.order.rows) == (None, None)
    assert "asks" in asked.order.reason
    assert "share no work" in embeddings.order.reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
BODIES = st.fixed_dictionaries({}, optional={
    name: JSON | st.just("m") | st.integers(1, 5) | st.lists(st.just({"role": "user"}), max_size=2)
    for name in ("model", "stream", "messages", "max_tokens", "max_completion_tokens", "tools", "prompt", "input",
                 "instructions", "max_output_tokens", "other")
})  # fmt: skip
ENDPOINTS = st.sampled_from([CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings"])


@pytest.mark.slow
@settings(max_examples=ample(400))
@given(
    st.binary(max_size=60)
    | st.builds(
        lambda changes, body: json.dumps({**json.loads(line("a")), "body": body, **changes}).encode(),
        st.fixed_dictionaries(
            {}, optional={"custom_id": JSON, "method": JSON, "url": ENDPOINTS | JSON, "body": JSON}
        ),
        BODIES | BODIES.map(lambda body: {**body, "model": "m"}),
    ),
    ENDPOINTS,
)
@example(line("a").replace(b'"m"', b'"\xff"'), CHAT)
@example(line("a").replace(b'"user"', b'"\xff"'), CHAT)
@example(line("a").replace(b'"m"', b'1, "model": "m"'), CHAT)
@example(line("a", body={"model": "m", "messages": [1]}), CHAT)
@example(line("a", body={"model": "m", "messages": [], "stream": 0}), CHAT)
@example(line("a")[:-2] + b', "max_tokens": 1' + b"0" * 5000 + b"}}", CHAT)
def test_the_plan_reads_a_line_as_check_line_does(raw: bytes, endpoint: str) -> None:
    found, expected = reader(endpoint)(raw), request_lines.check_line(raw, endpoint)
    if isinstance(expected, CheckedLine):
        assert isinstance(found, Head)
        assert (found.custom_id, found.body.model) == (expected.custom_id, expected.model)
        assert isinstance(bytes(found.body.text), bytes)
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("endpoint", "body", "text", "most"),
    [
        (CHAT, {"tools": [1], "messages": [{"a": 1}], "max_tokens": 5}, b'[1][{"a": 1}]', 5),
        (CHAT, {"messages": [{"a": 1}], "max_tokens": 5, "max_completion_tokens": 6}, b'[{"a": 1}]', 6),
        ("/v1/completions", {"prompt": "x", "max_tokens": 5}, b'"x"', 5),
        ("/v1/responses", {"input": "q", "instructions": "i", "tools": [], "max_output_tokens": 7}, b'[]"i""q"', 7),
        ("/v1/embeddings", {"input": "q"}, b"", None),
    ],
)
def test_the_text_of_a_row_is_what_the_model_reads_first(endpoint: str, body: Any, text: bytes, most: Any) -> None:
    row = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": "m", **body}}
    found = reader(endpoint)(json.dumps(row).encode())
    assert isinstance(found, Head)
    assert (bytes(found.body.text), found.body.most_tokens, can_share(endpoint)) == (text, most, bool(text))
