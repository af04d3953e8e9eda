"""Batches that one row or one file once brought to a stand: they go on or end, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.server.database import FILE_NAME, ServerDatabase
from tests.conftest import MakeUpstream
from tests.integration.test_server_resume import LATE, half_done, in_process
from tests.support.batchapi import Sdk, create, ended, health, jsonl, retrieve, row, run_batch
from tests.support.process import Upstream, wait_until

IDS = [f"r{number}" for number in range(10)]


def input_of(folder: Path) -> Path:
    (path,) = (folder / "files").iterdir()
    return path


def is_ready(sdk: Sdk) -> bool:
    return bool(sdk.raw.get("/ready").status_code == 200)


def nest(folder: Path, depth: int) -> None:
    """Nest the last row so deep; the server of a former version took it in."""
    path = input_of(folder)
    *lines, last = path.read_bytes().splitlines(keepends=True)
    deep = b'"deep":' + b"[" * depth + b"]" * depth + b","
    path.write_bytes(b"".join([*lines, last.replace(b'"model"', deep + b'"model"', 1)]))


@pytest.mark.parametrize("depth", [600, 900, 960, 975, 985, 990, 995, 2000])
def test_a_row_that_is_too_deep_and_was_taken_in_is_an_error_row(
    tmp_path: Path, upstream: Upstream, depth: int
) -> None:
    batch_id = half_done(tmp_path, upstream, IDS)
    asked = len(upstream.requests())
    nest(tmp_path, depth)
    with in_process(tmp_path, upstream) as sdk:
        end = ended(sdk, batch_id)
        end.check(IDS)
        assert (end.batch.status, end.counts) == ("completed", (10, 9, 1))
        (line,) = end.errors
        assert (line["custom_id"], line["error"]["code"]) == (IDS[-1], "invalid_json_line")
        assert (health(sdk)["status"], health(sdk)["problem"], is_ready(sdk)) == ("ok", None, True)
        sdk(lambda api: api.files.delete(end.batch.input_file_id))
    assert len(upstream.requests()) == asked


def test_a_row_that_is_too_deep_can_be_cancelled(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream()
    batch_id = half_done(tmp_path, upstream, IDS)
    nest(tmp_path, 985)
    upstream.kill()
    with in_process(tmp_path, upstream) as sdk:
        sdk(lambda api: api.batches.cancel(batch_id))
        ended(sdk, batch_id).check(IDS)


def gone(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700])


def cut_at_a_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-3]))


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + jsonl([row("one more")]))


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def of_another_model(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"test-model", b"rest-model", 1))


DAMAGES = [gone, a_folder, cut_short, cut_at_a_line, longer, zeros, empty, of_another_model]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_input_is_the_matter_of_its_batch_alone(
    tmp_path: Path, upstream: Upstream, damage: Callable[[Path], None]
) -> None:
    """It waits for its file to be put back, says so, and has lost nothing when it is; everybody else goes on."""
    batch_id = half_done(tmp_path, upstream, IDS)
    path = input_of(tmp_path)
    content = path.read_bytes()
    damage(path)
    with in_process(tmp_path, upstream) as sdk:
        assert batch_id in wait_until(lambda: health(sdk)["problem"])
        run_batch(sdk, [row("a")]).check(["a"])
        assert (health(sdk)["status"], is_ready(sdk)) == ("ok", True)
        assert "orch_storage_ok 1.0" in sdk.raw.get("/metrics").text
        waiting = retrieve(sdk, batch_id)
        assert (waiting.status, waiting.request_counts.total) == ("in_progress", 10)
        if path.is_dir():
            path.rmdir()
        path.write_bytes(content)
        ended(sdk, batch_id).check(IDS)
        assert health(sdk)["problem"] is None


@pytest.mark.thinned(4)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_batch_whose_input_is_damaged_can_be_cancelled(
    tmp_path: Path, upstream: Upstream, damage: Callable[[Path], None]
) -> None:
    batch_id = half_done(tmp_path, upstream, IDS)
    damage(input_of(tmp_path))
    with in_process(tmp_path, upstream) as sdk:
        wait_until(lambda: health(sdk)["problem"])
        sdk(lambda api: api.batches.cancel(batch_id))
        end = ended(sdk, batch_id)
        assert (end.batch.status, end.counts) == ("cancelled", (10, 9, 0))
        assert {line["custom_id"] for line in end.output} == set(IDS[:-1])
        assert (health(sdk)["problem"], health(sdk)["running_batches"]) == (None, 0)


@pytest.mark.long
def test_a_batch_whose_input_is_gone_expires(tmp_path: Path, upstream: Upstream) -> None:
    with in_process(tmp_path, upstream) as sdk:
        batch = create(sdk, [row("a"), row("late", LATE)], "8s")
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 1)
    input_of(tmp_path).unlink()
    with in_process(tmp_path, upstream) as sdk:
        end = ended(sdk, batch.id)
        assert (end.batch.status, end.counts) == ("expired", (2, 1, 0))
        assert [line["custom_id"] for line in end.output] == ["a"]
        assert (health(sdk)["status"], health(sdk)["problem"]) == ("ok", None)


def test_a_row_that_is_damaged_while_its_batch_runs_is_an_error_row(
    tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream()
    upstream.stop()
    with in_process(tmp_path, upstream) as sdk:
        batch = create(sdk, [row(name) for name in IDS])
        wait_until(lambda: retrieve(sdk, batch.id).status == "in_progress")
        path = input_of(tmp_path)
        content = path.read_bytes()
        at = content.index(b'"body": {', content.index(b'"r4"'))
        path.write_bytes(content[:at] + b'"body": X' + content[at + 9 :])
        upstream.start()
        end = ended(sdk, batch.id)
        assert (end.batch.status, end.counts) == ("completed", (10, 9, 1))
        (line,) = end.errors
        assert (line["custom_id"], line["error"]["code"]) == ("r4", "invalid_json_line")
        assert {line["custom_id"] for line in end.output} == {*IDS} - {"r4"}
        assert (health(sdk)["status"], health(sdk)["problem"], is_ready(sdk)) == ("ok", None, True)


@pytest.mark.parametrize("way_out", ["put back", "cancelled"])
def test_a_row_of_which_nothing_can_be_read_holds_up_no_other(
    tmp_path: Path, make_upstream: MakeUpstream, way_out: str
) -> None:
    """Not even whose it is: it waits for the file to be put back, behind all the others of its batch."""
    upstream = make_upstream()
    upstream.stop()
    with in_process(tmp_path, upstream, max_concurrency=1) as sdk:
        batch = create(sdk, [row(name) for name in IDS])
        wait_until(lambda: retrieve(sdk, batch.id).status == "in_progress")
        path = input_of(tmp_path)
        content = path.read_bytes()
        at = content.index(b'"r1"') - 5
        path.write_bytes(content[:at] + b"\0" * 9 + content[at + 9 :])
        upstream.start()
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 9)
        assert batch.id in wait_until(lambda: health(sdk)["problem"])
        assert (health(sdk)["status"], is_ready(sdk)) == ("ok", True)
        if way_out == "put back":
            path.write_bytes(content)
            ended(sdk, batch.id).check(IDS)
        else:
            sdk(lambda api: api.batches.cancel(batch.id))
            end = ended(sdk, batch.id)
            assert (end.batch.status, end.counts) == ("cancelled", (10, 9, 1))
            assert [line["custom_id"] for line in end.errors] == [None]
        assert (health(sdk)["status"], health(sdk)["problem"]) == ("ok", None)


def test_the_record_of_a_batch_that_cannot_be_read_keeps_no_server_from_starting(
    tmp_path: Path, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    batch_id = half_done(tmp_path, upstream, IDS)
    database = ServerDatabase(tmp_path / FILE_NAME)
    database.execute("INSERT INTO batches (id, serial, final, object) VALUES ('batch_x', 9, 0, '{\"id\":')")
    database.close()
    with in_process(tmp_path, upstream) as sdk:
        ended(sdk, batch_id).check(IDS)
    assert "batch_x cannot be read" in caplog.text
