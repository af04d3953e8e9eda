"""Rows are read back as they were written, in any order and of any size; a cut file harms the rows behind the cut."""

from __future__ import annotations

import json
import os
import random
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.server.dispatch.inputs import BLOCK_BYTES, Input, Unreadable
from orchestrator.server.dispatch.plan import InputRows, make_plan
from orchestrator.server.dispatch.request_header import decode_line
from orchestrator.server.memory_limits import SMALL
from tests.support.examples import ample

CHAT = "/v1/chat/completions"


def written(path: Path, sizes: list[int], gaps: bool = False) -> InputRows:
    with path.open("w", encoding="utf-8") as file:
        for number, size in enumerate(sizes):
            body = {"model": "m", "messages": [{"role": "user", "content": f"{number}:" + "x" * size}]}
            line = {"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": body}
            file.write(json.dumps(line) + ("\r\n\n  \n" if gaps and number % 3 == 0 else "\n"))
    plan = make_plan(path, CHAT, [], 10**6, in_order=True)
    assert isinstance(plan, InputRows)
    return plan


def told(rows: Input, index: int) -> tuple[str, int]:
    line = rows.line(index)
    number, text = json.loads(bytes(line.body))["messages"][0]["content"].split(":")
    assert number == str(index)
    return json.loads(bytes(line.custom_id)), len(text)


SIZES = (0, 10, 3_000, BLOCK_BYTES // 4, BLOCK_BYTES, 2 * BLOCK_BYTES)


@pytest.mark.slow
@settings(max_examples=ample(40), deadline=None)
@given(
    st.lists(st.sampled_from(SIZES), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_rows_are_what_was_written_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], dice: random.Random, gaps: bool
) -> None:
    path = tmp_path_factory.mktemp("input") / "rows.jsonl"
    plan = written(path, sizes, gaps)
    with closing(Input(path, plan)) as rows:
        order = [index for index in range(len(sizes)) for _ in range(dice.choice([1, 1, 1, 2]))]
        if dice.random() < 0.3:
            dice.shuffle(order)
        for index in order:
            assert told(rows, index) == (f"r{index}", sizes[index])


def test_rows_in_order_take_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    plan, real, reads = written(path, [300] * 2_000), os.pread, list[int]()

    def counted(fd: int, size: int, offset: int) -> bytes:
        reads.append(size)
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    with closing(Input(path, plan)) as rows:
        for index in range(2_000):
            told(rows, index)
        assert len(reads) <= 2 + path.stat().st_size // (BLOCK_BYTES - 1_000)
        reads.clear()
        for index in (1_900, 3, 1_000, 3):
            told(rows, index)
        assert max(reads) < 1_000, "rows out of order are read alone"


def test_a_cut_file_harms_the_rows_behind_the_cut_until_it_is_put_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    plan = written(path, [300] * 100)
    whole = path.read_bytes()
    with closing(Input(path, plan)) as rows:
        os.truncate(path, plan.offsets[50] + 5)
        for index in range(50):
            told(rows, index)
        for index in range(50, 100):
            with pytest.raises(Unreadable):
                rows.line(index)
        path.write_bytes(whole)
        for index in range(40, 100):
            told(rows, index)


LONG_TEXT = json.dumps("x" * SMALL)


def long_row(custom_id: str, fields: str, beside: str = "") -> bytes:
    return f'{{"custom_id": {custom_id}, "method": "POST", "url": "{CHAT}"{beside}, "body" :{fields}}}'.encode()


MESSAGES = f'[{{"role": "user", "content": {LONG_TEXT}}}]'
LONG_ROWS = {
    "plain": (long_row('"r\\u00e4\\n"', f'{{"model":"m","messages":{MESSAGES}}}'), True),
    "spaces": (long_row('"r"', f' {{ "model" : "m" , "messages" : {MESSAGES} , "seed" : 1 }} '), True),
    "body first": (
        (
            f'{{"body": {{"messages": {MESSAGES}, "model": "m"}}, '
            f'"url": "{CHAT}", "method": "POST", "custom_id": "r"}}'
        ).encode(),
        True,
    ),
    "the same text twice in the body": (
        long_row('"r"', f'{{"model":"m","other":{MESSAGES},"messages":{MESSAGES}}}'),
        False,
    ),
    "the same text beside the body": (
        long_row('"r"', f'{{"model":"m","messages":{MESSAGES}}}', f', "other": {MESSAGES}'),
        False,
    ),
    "two bodies": (long_row('"r"', f'{{"model":"m","messages":{MESSAGES}}}', ', "body": {"model": "m"}'), True),
    "long in another field": (
        long_row('"r"', f'{{"model":"m","other":{MESSAGES},"messages":[{{"role":"user"}}]}}'),
        False,
    ),
    "tools": (long_row('"r"', f'{{"model":"m","messages":{MESSAGES},"tools":[{{"type":"function"}}]}}'), False),
}


@pytest.mark.parametrize("end", [b"\n", b"\r\n \n\n", b""])
@pytest.mark.parametrize("kind", LONG_ROWS)
def test_a_long_row_is_the_same_with_and_without_decoding(tmp_path: Path, kind: str, end: bytes) -> None:
    raw, is_long = LONG_ROWS[kind]
    path = tmp_path / "rows.jsonl"
    short = long_row('"s"', '{"model":"m","messages":[{"role":"user","content":"y"}]}') + b"\n"
    path.write_bytes(short + raw + end)
    plan = make_plan(path, CHAT, [], 10, in_order=True)
    assert isinstance(plan, InputRows)
    assert set(plan.long) == ({1} if is_long else set())
    with closing(Input(path, plan)) as rows:
        line, decoded = rows.line(1), decode_line(raw)
        assert bytes(line.body) == bytes(decoded.body)
        assert bytes(line.custom_id) == bytes(decoded.custom_id)


def test_a_long_row_that_was_replaced_is_what_stands_there_now(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    raw, _ = LONG_ROWS["plain"]
    path.write_bytes(raw)
    plan = make_plan(path, CHAT, [], 10, in_order=True)
    assert isinstance(plan, InputRows)
    other = raw.replace(b"xx", b"yy")
    path.write_bytes(other)
    with closing(Input(path, plan)) as rows:
        assert bytes(rows.line(0).body) == bytes(decode_line(other).body)
        path.write_bytes(b"{" * len(raw))
        with pytest.raises(Unreadable):
            rows.line(0)
