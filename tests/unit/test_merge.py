"""Where merged rows may be written, what a failed write leaves, and rows of batches that are collected meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.model import FinishedRow, RequestState, Span, Usage
from orchestrator.core.shards import ShardState
from orchestrator.pipeline.collect.partial_results import partial_lines
from orchestrator.pipeline.finish import merge
from orchestrator.settings.home import Home
from tests.support.handles import handle

ROW = FinishedRow(
    0, "a", "d", "t", "m", "p", None, RequestState.SUCCEEDED, 1, None, None, None, None, Usage(), None, Decimal(0),
    None, None, None, None, None,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("x")
    (tmp_path / "in.jsonl").write_text("precious")
    (tmp_path / "to-in").symlink_to("in.jsonl")
    (tmp_path / "to-folder").symlink_to(".")
    (tmp_path / "circle").symlink_to("circle")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "is a folder"), ("/", "is a folder"), ("to-folder", "is a folder"),
        ("file/x.jsonl", "file is not a folder"), ("file/no/x.jsonl", "file is not a folder"),
        ("fifo", "is not a regular file"), ("/dev/null", "is not a regular file"),
        ("in.jsonl", "is the job's own input file"), ("to-in", "is the job's own input file"),
        ("x" * 300, "File name too long"), ("x" * 250, "File name too long"), ("circle", "symbolic links"),
    ],
)  # fmt: skip
def test_an_output_that_cannot_be_is_told_before_anything_is_done(folder: Path, name: str, told: str) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(UsageError, match=told) as raised:
        merge.check_output(folder / name, folder / "in.jsonl")
    assert raised.value.hint
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("name", ["", "/", "fifo", "/dev/null", "circle", "file/x.jsonl", "x" * 300])
def test_what_cannot_be_written_is_a_storage_error(folder: Path, name: str) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(StorageError):
        merge.write(folder / name, [b"{}"])
    assert sorted(folder.iterdir()) == before


def test_a_good_output_passes_and_a_link_stays_one(folder: Path) -> None:
    (folder / "link").symlink_to("file")
    merge.check_output(folder / "link", folder / "in.jsonl")
    merge.check_output(folder / "new.jsonl", None)
    merge.check_output(folder / "no" / "such" / "folder.jsonl", None)
    assert not (folder / "no").exists()
    assert merge.write(folder / "no" / "such" / "folder.jsonl", [b"1"]) == 1
    assert merge.write(folder / "link", [b"1", b"2"]) == 2
    assert (folder / "link").is_symlink()
    assert (folder / "file").read_bytes() == b"1\n2\n"


@pytest.mark.parametrize(("number", "room"), [(errno.ENOSPC, True), (errno.EACCES, False)])
def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, number: int, room: bool) -> None:
    def lines() -> Iterator[bytes]:
        yield b"1"
        raise OSError(number, os.strerror(number))

    path = tmp_path / "out"
    path.write_text("before")
    with pytest.raises(StorageError) as raised:
        merge.write(path, lines())
    assert (raised.value.hint == "free disk space, then run it again") is room
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("out", "before")]


def test_a_result_file_that_is_cut_is_named(tmp_path: Path) -> None:
    path = tmp_path / "output.jsonl"
    path.write_bytes(b"12345")
    row = replace(ROW, result=("s", "output", Span(2, 10)))
    with pytest.raises(StorageError, match=r"output\.jsonl is truncated"):
        list(merge.lines(lambda shard, kind: path, [row], {}, style="batch"))


def test_a_batch_collected_while_its_rows_are_previewed_is_read_at_its_own_place(tmp_path: Path) -> None:
    """Row a has settled since, and lies elsewhere in the collected file than in the copy; row b has not."""
    home = Home(tmp_path)
    line = {name: msgspec.json.encode({"custom_id": name, "response": answer(name)}) for name in "ab"}
    collected = home.results("j.001", "output")
    collected.parent.mkdir(parents=True)
    collected.write_bytes(line["b"] + b"\n" + line["a"] + b"\n")
    settled = replace(ROW, result=("j.001", "output", Span(len(line["b"]) + 1, len(line["a"]))))
    waiting = replace(ROW, seq=1, custom_id="b", state=RequestState.PENDING)

    def partial(batch_id: str, kind: str, path: Path) -> bool:
        path.write_bytes(line["a"] + b"\n" + line["b"] + b"\n" if kind == "output" else b"")
        return True

    shard = SimpleNamespace(
        id="j.001", batch_id="batch", backend="local", model="m", job_id="j", state=ShardState.SUBMITTED
    )
    rows = [SimpleNamespace(custom_id=name, seq=seq, task="t") for seq, name in enumerate("ab")]
    store: Any = SimpleNamespace(
        shards=SimpleNamespace(of_job=lambda _: [shard]),
        rows=SimpleNamespace(of_shard=lambda _: rows, finished=lambda _: [settled, waiting]),
    )
    api = cast(Any, SimpleNamespace(partial=partial))
    job = cast(Any, SimpleNamespace(id="j"))
    with partial_lines(store, home, job, {}, lambda _: handle(api), style="batch") as lines:
        assert [msgspec.json.decode(each)["custom_id"] for each in lines] == ["a", "b"]


def answer(text: str) -> dict[str, Any]:
    return {"status_code": 200, "request_id": "r", "body": {"choices": [{"message": {"content": text}}]}}
