"""Where results go: files whole or not at all, folders of nights, addresses; and what is told beforehand."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import fsspec
import pytest

from orchestrator.core.errors import InputError, OrchError, StorageError, UsageError
from orchestrator.core.model import JobKind
from orchestrator.pipeline.finish import outputs
from orchestrator.settings.job_spec import Output
from tests.support import merged

# `make dev` leaves it out.
pl = pytest.importorskip("polars")

NIGHT = date(2026, 11, 21)


@pytest.fixture
def memory() -> Iterator[Any]:
    storage = fsspec.filesystem("memory")
    storage.store.clear()
    yield storage
    storage.store.clear()


def broken(after: int) -> Iterator[bytes]:
    yield from merged.lines()[:after]
    raise RuntimeError("a fault of ours")


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, form: outputs.Format) -> None:
    path = tmp_path / "rows"
    path.write_text("yesterday's")
    with pytest.raises(RuntimeError):
        outputs.write(path, form, merged.job(), broken(3))
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("rows", "yesterday's")]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    outputs.write(tmp_path / "link", "jsonl", merged.job(), [b"{}"])
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "real").read_bytes()) == (True, b"{}\n")


def test_what_is_no_file_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "file").write_text("x")
    for name in (".", "circle", "file/x"):
        with pytest.raises(StorageError, match="cannot write"):
            outputs.write(tmp_path / name, "jsonl", merged.job(), [b"{}"])


def test_one_that_waited_for_another_writes_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, partial = fcntl.flock, tmp_path / ".rows.partial"

    def waits(file: Any, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        partial.write_bytes(b"the other's")
        partial.replace(tmp_path / "rows")
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", waits)
    outputs.write(tmp_path / "rows", "jsonl", merged.job(), [b"ours"])
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("rows", b"ours\n")]


def test_what_a_kill_left_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".rows.partial").write_text("half of it, and much longer")
    outputs.write(tmp_path / "rows", "jsonl", merged.job(), [b"1"])
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("rows", b"1\n")]


def test_what_is_written_is_told_with_its_size_as_jsonl(tmp_path: Path) -> None:
    lines = merged.lines() * 100
    written = outputs.write(tmp_path / "x.parquet", "parquet", merged.job(), lines)
    assert (written.rows, written.jsonl_bytes) == (600, sum(len(line) + 1 for line in lines))
    assert written.bytes == (tmp_path / "x.parquet").stat().st_size
    assert str(written).startswith(f"600 rows in {tmp_path}/x.parquet, ")
    assert str(written).endswith(f"(as JSONL {written.jsonl_bytes / 1000:.1f} kB)")
    plain = outputs.write(tmp_path / "x.jsonl", "jsonl", merged.job(), lines)
    assert str(plain) == f"600 rows in {tmp_path}/x.jsonl"
    assert str(outputs.Written("x", 1, 2_500_000_000, 999)) == "1 row in x, 999 bytes (as JSONL 2.5 GB)"
    assert str(outputs.Written("x", 1, 1_000_000, 2_000)) == "1 row in x, 2.0 kB (as JSONL 1.0 MB)"


def test_a_night_replaces_its_own_partition_and_no_other(tmp_path: Path) -> None:
    job = merged.job(source=str(tmp_path / "job.yaml"))
    output = Output(path="history", format="parquet", partition="night")
    outputs.deliver(output, job, merged.lines(), NIGHT)
    outputs.deliver(output, merged.job("letters-2", source=job.source), merged.lines()[:2], date(2026, 11, 22))
    again = outputs.deliver(output, merged.job("letters-3", source=job.source), merged.lines()[:1], NIGHT)
    assert again.place == str(tmp_path / "history" / "night=2026-11-21" / "letters.parquet")
    table = pl.read_parquet(tmp_path / "history", hive_partitioning=True)
    assert table.group_by("night", "job").len().sort("night").rows() == [
        (NIGHT, "letters-3", 1), (date(2026, 11, 22), "letters-2", 2)
    ]  # fmt: skip


def test_a_storage_of_fsspec_gets_the_file(tmp_path: Path, memory: Any) -> None:
    output = Output(path="memory://bucket/history/", format="csv", partition="night")
    written = outputs.deliver(output, merged.job(), merged.lines(), NIGHT)
    assert written.place == "memory://bucket/history/night=2026-11-21/letters.csv"
    content = memory.cat("/bucket/history/night=2026-11-21/letters.csv")
    assert content.startswith(b"job,document,")
    assert written.bytes == len(content)
    with pytest.raises(RuntimeError):
        outputs.write("memory://bucket/half", "csv", merged.job(), broken(3))
    assert not memory.exists("/bucket/half")


def test_a_storage_that_fails_is_a_storage_error() -> None:
    with pytest.raises(StorageError, match=r"cannot write nowhere://x: .*nowhere"):
        outputs.write("nowhere://x", "csv", merged.job(), [])


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    outputs.deliver(Output(path=f"file://{tmp_path}/a%20b.jsonl"), merged.job(), [b"{}"], NIGHT)
    assert (tmp_path / "a b.jsonl").read_bytes() == b"{}\n"


def test_a_ready_batch_file_has_its_answers_as_text(tmp_path: Path) -> None:
    job = merged.job(kind=JobKind.BATCH, spec={})
    outputs.write(tmp_path / "x.parquet", "parquet", job, [merged.line(0, "hello", task="")])
    assert pl.read_parquet(tmp_path / "x.parquet")["answer"].to_list() == ["hello"]


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (Output(path="s3://bucket/x?key=secret"), "may carry no password and no query"),
        (Output(path="xyz://bucket"), "xyz:// is not a storage that fsspec supports"),
        (Output(path="sftp://bucket/x"), "the library for sftp:// is not installed"),
        (Output(path="gs://bucket/x"), "the library for gs:// is not installed"),
        (Output(table="t", url_env="ORCH_TEST_NOT_SET"), "the variable ORCH_TEST_NOT_SET is not set"),
    ],
)
def test_an_output_that_cannot_be_is_told_before_anything_is_done(output: Output, told: str) -> None:
    with pytest.raises((UsageError, InputError), match=told) as raised:
        outputs.check(output)
    assert raised.value.hint or "xyz" in told
    assert "secret" not in str(raised.value)


def test_an_output_that_can_be_is_not_complained_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_TEST_SET", "sqlite:///x")
    for output in (Output(path="x"), Output(path="memory://x"), Output(table="t", url_env="ORCH_TEST_SET")):
        outputs.check(output)


def test_a_variable_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCH_TEST_GONE", raising=False)
    with pytest.raises(OrchError, match="ORCH_TEST_GONE is not set"):
        outputs.deliver(Output(table="t", url_env="ORCH_TEST_GONE"), merged.job(), [], NIGHT)
