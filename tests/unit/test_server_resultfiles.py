"""Append-only result files: durable in groups, mended after a kill, whole lines or none."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.server.dispatch.results import MAX_WAITING_BYTES, PIECE_BYTES, Line, LongLine, ResultFile, Writer
from orchestrator.server.dispatch.torn_result_lines import cut_torn_tail, recover
from orchestrator.server.memory_limits import Room
from tests.support.examples import ample


def line(custom_id: str) -> bytes:
    return json.dumps({"custom_id": custom_id, "response": None, "error": {"code": "x"}}).encode()


def ignore(notes: list[object]) -> None:
    """Nobody wants to know."""


def ids(path: Path) -> list[str | None]:
    return [row.custom_id for row in recover(path)]


def written(rows: Sequence[tuple[ResultFile, Line, object]]) -> Writer:
    """A writer that was given these rows and closed."""

    async def write() -> Writer:
        writer = Writer()
        for file, line, note in rows:
            writer.put(file, line, note)
        await writer.close()
        return writer

    return asyncio.run(write())


def test_a_long_line_is_written_in_its_pieces_and_in_its_place(tmp_path: Path) -> None:
    done: list[int] = []
    file = ResultFile(tmp_path / "output.jsonl", done.extend)
    long = b'{"custom_id": "long", "response": null, "error": {"code": "', b"x" * (2 * PIECE_BYTES), b'"}}'
    lines: list[Line] = [line("a"), line("b"), LongLine(*long), line("c"), LongLine(*long)]
    writer = written([(file, each, number) for number, each in enumerate(lines)])
    file.close()
    short = [line(name) for name in "abc"]
    wanted = [short[0], short[1], b"".join(long), short[2], b"".join(long), b""]
    assert (tmp_path / "output.jsonl").read_bytes() == b"\n".join(wanted)
    assert (done, writer.waiting_bytes, file.durable) == ([0, 1, 2, 3, 4], 0, file.path.stat().st_size)


def test_what_is_written_is_there_in_order_and_each_row_is_told_once(tmp_path: Path) -> None:
    done: list[int] = []
    file = ResultFile(tmp_path / "output.jsonl", done.extend)
    writer = written([(file, line(f"r{number}"), number) for number in range(500)])
    file.close()
    assert done == list(range(500))
    assert ids(tmp_path / "output.jsonl") == [f"r{number}" for number in range(500)]
    assert file.durable == (tmp_path / "output.jsonl").stat().st_size
    assert (writer.is_full, writer.waiting_bytes) == (False, 0)


def test_a_row_is_told_only_when_its_line_is_on_the_disk(tmp_path: Path) -> None:
    path, sizes = tmp_path / "output.jsonl", []
    file = ResultFile(path, lambda notes: sizes.append(path.stat().st_size))
    written([(file, line("a"), None)])
    file.close()
    assert sizes == [len(line("a")) + 1]


def test_rows_that_come_while_others_are_written_are_written_too(tmp_path: Path) -> None:
    done: list[int] = []

    async def write() -> None:
        file, writer = ResultFile(tmp_path / "output.jsonl", done.extend), Writer()
        for number in range(200):
            writer.put(file, line(f"r{number}"), number)
            await asyncio.sleep(0.0005)
        await writer.close()
        file.close()

    asyncio.run(write())
    assert done == list(range(200))
    assert ids(tmp_path / "output.jsonl") == [f"r{number}" for number in range(200)]


def test_a_file_that_is_opened_again_is_gone_on_with(tmp_path: Path) -> None:
    for name in ("a", "b"):
        file = ResultFile(tmp_path / "output.jsonl", ignore)
        file.append(line(name) + b"\n")
        file.close()
    assert ids(tmp_path / "output.jsonl") == ["a", "b"]


FULL_DISK = """
import resource, signal, sys
from orchestrator.server.dispatch.results import ResultFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = ResultFile(__import__("pathlib").Path(sys.argv[1]), print)
file.append(b"x" * 90 + b"\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
try:
    file.append(b"y" * 90 + b"\\n")
except OSError as error:
    print(error.errno, file.durable)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.append(b"z\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE") or not hasattr(signal, "SIGXFSZ"), reason="POSIX")
def test_a_disk_that_is_full_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "output.jsonl"
    ended = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True)
    assert ended.stdout.split()[1] == "91"
    assert path.read_bytes() == b"x" * 90 + b"\nz\n"


def test_a_disk_that_takes_nothing_back_doubles_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "output.jsonl"
    file = ResultFile(path, ignore)
    file.append(line("a") + b"\n")

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", broken)
        disk.setattr(os, "ftruncate", broken)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                file.append(line("b") + b"\n")
    file.append(line("c") + b"\n")
    file.close()
    assert path.read_bytes() == line("a") + b"\n" + line("c") + b"\n"


def test_one_file_that_refuses_does_not_hold_up_another(tmp_path: Path) -> None:
    done: list[str] = []
    good, bad = (ResultFile(tmp_path / f"{name}.jsonl", done.extend) for name in ("good", "bad"))
    os.close(bad._fd)
    bad._fd = os.open(tmp_path / "bad.jsonl", os.O_RDONLY)  # what a file system that turns read-only does
    writer = written([(bad, line("b"), "b"), (good, line("a"), "a")])
    assert done == ["a"]
    assert writer.problem is not None
    assert str(tmp_path / "bad.jsonl") in writer.problem
    assert writer.is_full
    good.close()
    bad.close()


def test_it_says_when_there_is_room_again(tmp_path: Path) -> None:
    told: list[bool] = []

    async def write() -> None:
        file, writer = ResultFile(tmp_path / "output.jsonl", ignore), Writer()
        room = asyncio.Event()

        def on_room() -> None:
            told.append(writer.is_full)
            room.set()

        writer.on_room = on_room
        writer.put(file, line("a"), None)
        for number in range(5):
            writer.put(file, b" " * (MAX_WAITING_BYTES // 4), number)
        assert writer.is_full
        await asyncio.wait_for(room.wait(), 10)
        writer.put(file, line("b"), None)
        await writer.close()
        file.close()

    asyncio.run(write())
    assert told == [False]


def test_lines_with_a_room_share_hold_up_no_other_rows(tmp_path: Path) -> None:
    told: list[str] = []

    async def write() -> None:
        heavy, light = (ResultFile(tmp_path / f"{name}.jsonl", told.extend) for name in ("heavy", "light"))
        room, writer = Room(4 * MAX_WAITING_BYTES), Writer()
        for _ in range(2):
            place = await room.take("one", 2 * MAX_WAITING_BYTES)
            writer.put(heavy, b" " * (2 * MAX_WAITING_BYTES), "heavy", place)
        writer.put(light, line("a"), "light")
        assert not writer.is_full
        await writer.close()
        assert (writer.is_full, writer.waiting_bytes, room.taken) == (False, 0, 0)
        heavy.close()
        light.close()

    asyncio.run(write())
    assert told == ["light", "heavy", "heavy"]


TORN = {
    "whole": (b"%b\n%b\n", ["a", "b"]),
    "half a line at the end": (b'%b\n%b\n{"custom_id": "c', ["a", "b"]),
    "a line without its newline": (b"%b\n%b", ["a"]),
    "zeros at the end": (b"%b\n%b\n" + b"\0" * 100, ["a", "b"]),
    "zeros and a newline": (b"%b\n\0\0\0\n%b\n", ["a", "b"]),
    "a broken line between": (b"%b\n{broken\n%b\n", ["a", "b"]),
    "a line without an id": (b'%b\n{"custom_id": null}\n%b\n', ["a", "b"]),
    "brackets without end": (b"%b\n" + b"[" * 100_000 + b"\n%b\n", ["a", "b"]),
}


@pytest.mark.parametrize(("content", "left"), TORN.values(), ids=TORN.keys())
def test_what_a_kill_left_behind_is_cut_and_the_file_is_good_again(
    tmp_path: Path, content: bytes, left: list[str]
) -> None:
    path = tmp_path / "output.jsonl"
    path.write_bytes(content.replace(b"%b", line("a"), 1).replace(b"%b", line("b"), 1))
    assert ids(path) == left
    assert path.read_bytes() == b"".join(line(name) + b"\n" for name in left)
    file = ResultFile(path, ignore)
    file.append(line("z") + b"\n")
    file.close()
    assert ids(path) == [*left, "z"]


def test_a_file_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert ids(tmp_path / "nowhere.jsonl") == []


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_a_tail_of_any_length_is_cut(tmp_path: Path, size: int) -> None:
    path = tmp_path / "output.jsonl"
    path.write_bytes(b"good\n" + b"x" * size)
    cut_torn_tail(path)
    assert path.read_bytes() == b"good\n"
    path.write_bytes(b"x" * size)
    cut_torn_tail(path)
    assert path.read_bytes() == b""


@settings(max_examples=ample(80))
@given(st.lists(st.sampled_from([line("a"), line("b"), b"\n", b"\r\n", b"{", b"\0", b"\xff", b"null", b" "])))
def test_whatever_a_file_holds_it_is_good_afterwards(tmp_path: Path, parts: list[bytes]) -> None:
    path = tmp_path / "output.jsonl"
    path.write_bytes(b"".join(parts))
    first = ids(path)
    mended = path.read_bytes()
    assert mended == b"" or mended.endswith(b"\n")
    assert ids(path) == first
    assert path.read_bytes() == mended


@settings(max_examples=ample(60))
@given(st.integers(0, 10_000))
def test_a_file_cut_anywhere_keeps_every_whole_line(tmp_path: Path, length: int) -> None:
    path = tmp_path / "output.jsonl"
    whole = b"".join(line(f"r{number}") + b"\n" for number in range(20))
    kept = whole[: length % (len(whole) + 1)]
    path.write_bytes(kept)
    assert ids(path) == [f"r{number}" for number in range(kept.count(b"\n"))]
