"""The account of what left for an upstream that bills: what a kill, a full disk and a power cut leave of it."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.server.dispatch.send_log import MOST, SendLog, read_doubts
from tests.support.examples import ample

ROWS = 5


@contextmanager
def account(path: Path, rows: int = ROWS) -> Iterator[SendLog]:
    sent = SendLog(path, read_doubts(path, rows))
    try:
        yield sent
    finally:
        sent.close()


def doubts(path: Path, rows: int = ROWS) -> list[int]:
    return list(read_doubts(path, rows))


def test_where_there_is_no_account_nothing_is_in_doubt(tmp_path: Path) -> None:
    assert doubts(tmp_path / "sent") == [0] * ROWS


def test_what_was_sent_and_not_answered_is_in_doubt(tmp_path: Path) -> None:
    with account(tmp_path / "sent") as sent:
        sent.leave([0, 3])
        sent.leave([3])
        sent.leave([4])
        sent.take_back([4])
        assert [sent.doubts(row) for row in range(ROWS)] == [1, 0, 0, 2, 0]
    assert doubts(tmp_path / "sent") == [1, 0, 0, 2, 0]


def test_a_result_takes_back_the_doubt_only_by_its_line(tmp_path: Path) -> None:
    with account(tmp_path / "sent") as sent:
        sent.leave([1])
        sent.answered(1)
        assert sent.doubts(1) == 0
    # A kill before the line is on the disk: the row is sent again, and what it took before may be billed.
    assert doubts(tmp_path / "sent")[1] == 1


def test_an_account_goes_on_after_a_restart(tmp_path: Path) -> None:
    for expected in (1, 2, 3):
        with account(tmp_path / "sent") as sent:
            sent.leave([2])
            assert sent.doubts(2) == expected


TORN = {
    "half a record": (b"\x01\x00", [1, 0, 0, 0, 0]),
    "zeros": (bytes(8), [1, 0, 0, 0, 0]),
    "a row that the batch has not": (b"\xff\xff\x00\x00", [1, 0, 0, 0, 0]),
    "an answer to nothing": (b"\x02\x00\x00\x80", [1, 0, 0, 0, 0]),
    "a whole record": (b"\x02\x00\x00\x00", [1, 1, 0, 0, 0]),
}


@pytest.mark.parametrize(("tail", "expected"), TORN.values(), ids=TORN)
def test_what_a_power_cut_leaves(tmp_path: Path, tail: bytes, expected: list[int]) -> None:
    path = tmp_path / "sent"
    with account(path) as sent:
        sent.leave([0])
    path.write_bytes(path.read_bytes() + tail)
    assert doubts(path) == expected
    with account(path) as sent:
        sent.leave([4])
    assert doubts(path) == [*expected[:4], 1]


def test_what_cannot_be_noted_must_not_leave(tmp_path: Path) -> None:
    """A file-size limit is what a full disk is to a writer."""
    path = tmp_path / "sent"
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with account(path) as sent:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
            sent.leave([0, 1])
            with pytest.raises(OSError, match="No space left"):
                sent.leave([2, 3])
            with pytest.raises(OSError, match=r"File too large|No space left"):
                sent.leave([2, 3, 4])
            assert [sent.doubts(row) for row in range(ROWS)] == [1, 1, 0, 0, 0]
            sent.take_back([0])  # cannot be noted either, and costs nothing but a doubt at the next start
            assert sent.doubts(0) == 0
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            sent.leave([2, 3])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert doubts(path) == [1, 1, 1, 1, 0]


def test_more_often_than_can_be_counted(tmp_path: Path) -> None:
    with account(tmp_path / "sent") as sent:
        for _ in range(MOST + 10):
            sent.leave([0])
        assert sent.doubts(0) == MOST
    assert doubts(tmp_path / "sent")[0] == MOST


STEPS = st.lists(st.tuples(st.sampled_from(["leave", "take_back"]), st.lists(st.integers(0, ROWS - 1), max_size=4)))


@pytest.mark.slow
@settings(max_examples=ample(100))
@given(STEPS)
def test_what_is_read_is_what_was_known(tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:
    path = tmp_path_factory.mktemp("account") / "sent"
    with account(path) as sent:
        for step, rows in steps:
            getattr(sent, step)(rows)
        known = [sent.doubts(row) for row in range(ROWS)]
    assert doubts(path) == known
