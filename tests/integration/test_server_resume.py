"""The batch server is killed, its files are torn, its disk is full: every row still ends once, and none is lost."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.backends.batches import ApiBatches
from orchestrator.backends.openai_http import over_unix_socket
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.errors import StorageError
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.in_process import ServerThread
from orchestrator.server.records import Records
from orchestrator.server.settings import Settings
from tests.conftest import MakeUpstream
from tests.support.batchapi import Sdk, create, ended, health, jsonl, retrieve, row, run_batch, sdk_at
from tests.support.batchserver import BatchServer
from tests.support.clock import HeldClock
from tests.support.process import Upstream, wait_until

LATE = "[[fault:status:503:Retry-After=60:1]]"  # refused at first, so that it waits; answered at its next try


@contextmanager
def client(server: BatchServer) -> Iterator[Sdk]:
    with sdk_at(server.socket) as sdk:
        yield sdk


@contextmanager
def in_process(folder: Path, upstream: Upstream, **more: Any) -> Iterator[Sdk]:
    settings = Settings(upstreams=(upstream.base_url,), **{"retry_delay": 0.01, "request_timeout": 60.0, **more})
    with ServerThread(folder, settings) as server, sdk_at(server.socket) as sdk:
        yield sdk


def result_path(folder: Path, batch_id: str, kind: str = "output") -> Path:
    return folder / "batches" / batch_id / f"{kind}.jsonl"


def whole_rows(folder: Path, batch_id: str) -> set[str]:
    """The custom_ids of the whole lines of a batch's result files."""
    found = set()
    for kind in ("output", "error"):
        path = result_path(folder, batch_id, kind)
        data = path.read_bytes() if path.exists() else b""
        found |= {json.loads(line)["custom_id"] for line in data[: data.rfind(b"\n") + 1].splitlines()}
    return found


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))])
def test_kills_at_random_moments(tmp_path: Path, make_upstream: MakeUpstream, seed: int) -> None:
    dice = random.Random(seed)
    upstream = make_upstream(slots=8, latency_ms=5)
    ids = [f"r{number}" for number in range(300)]
    lines = [row(c, f"{c}[[fault:status:400]]" if n % 10 == 0 else None) for n, c in enumerate(ids)]
    snapshots: list[tuple[set[str], Counter[str]]] = []
    with BatchServer(tmp_path / "s", upstream.base_url) as server:
        with client(server) as sdk:
            batch = create(sdk, lines)
        while len(snapshots) < 4:
            upstream.wait_for_requests(min(290, len(upstream.requests()) + dice.randint(50, 140)))
            server.kill()
            snapshots.append((whole_rows(server.folder, batch.id), upstream.counts()))
            server.start()
        with client(server) as sdk:
            end = ended(sdk, batch.id)
    end.check(ids)
    assert end.counts == (300, 270, 30)
    final = upstream.counts()
    assert any(done for done, _ in snapshots), "every kill came before the first result"
    for done, counts in snapshots:
        assert {c: final[c] for c in done} == {c: counts[c] for c in done}, "a durable row was sent again"


@pytest.mark.parametrize("moment", ["uploaded", "created", "validated", "finished"])
def test_kills_between_the_steps(tmp_path: Path, upstream: Upstream, moment: str) -> None:
    ids = [f"r{number}" for number in range(50)]
    with BatchServer(tmp_path / "s", upstream.base_url) as server:
        with client(server) as sdk:
            content = jsonl([row(custom_id) for custom_id in ids])
            file = sdk(lambda api: api.files.create(file=("in.jsonl", content), purpose="batch"))
            if moment == "uploaded":
                server.kill()
                server.start()
            batch = sdk(
                lambda api: api.batches.create(
                    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
                )
            )
            if moment == "validated":
                wait_until(lambda: retrieve(sdk, batch.id).status != "validating")
            if moment == "finished":
                first = ended(sdk, batch.id)
        server.kill()
        server.start()
        with client(server) as sdk:
            end = ended(sdk, batch.id)
            end.check(ids)
            assert end.counts == (50, 50, 0)
            if moment == "finished":
                assert end == first
                assert set(upstream.counts().values()) == {1}


def half_done(folder: Path, upstream: Upstream, ids: list[str]) -> str:
    """A batch of which the rows but the last are done, and no server runs any more."""
    with in_process(folder, upstream) as sdk:
        batch = create(sdk, [*(row(custom_id) for custom_id in ids[:-1]), row(ids[-1], LATE)])
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == len(ids) - 1)
        upstream.wait_for_requests(len(ids))
    return str(batch.id)


def torn_tail(data: bytes) -> bytes:
    return data + b'{"id":"batch_req_1","custom_id":"r9","response":{"status_c'


def torn_in_the_last_line(data: bytes) -> bytes:
    return data[:-20]


def broken_line(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    lines[2] = b"\x00" * 40 + b"\n"
    return b"".join(lines)


def line_without_id(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    lines[0] = b'{"id":"batch_req_1","response":null,"error":null}\n'
    return b"".join(lines)


TORN = {
    "half-a-line-behind": (torn_tail, 0),
    "only-the-newline-missing": (lambda data: data[:-1], 1),
    "the-last-line-cut": (torn_in_the_last_line, 1),
    "nul-bytes-in-the-middle": (broken_line, 1),
    "a-line-of-nobody": (line_without_id, 1),
    "only-half-a-line": (lambda data: data[:30], 9),
    "empty": (lambda data: b"", 9),
}


@pytest.mark.parametrize(("tear", "lost"), TORN.values(), ids=TORN)
def test_a_torn_file_is_mended(tmp_path: Path, upstream: Upstream, tear: Any, lost: int) -> None:
    ids = [f"r{number}" for number in range(10)]
    batch_id = half_done(tmp_path, upstream, ids)
    path = result_path(tmp_path, batch_id)
    path.write_bytes(tear(path.read_bytes()))
    with in_process(tmp_path, upstream) as sdk:
        end = ended(sdk, batch_id)
    end.check(ids)
    assert end.counts == (10, 10, 0)
    assert path.read_bytes().count(b"\n") == 10
    # The rows whose lines were torn are sent again, and the one that was never answered.
    assert len(upstream.requests()) == 10 + 1 + lost


def test_results_stay_where_the_input_file_is_broken_at_the_next_start(tmp_path: Path, upstream: Upstream) -> None:
    ids = [f"r{number}" for number in range(10)]
    batch_id = half_done(tmp_path, upstream, ids)
    (path,) = (tmp_path / "files").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:200] + b"\0" * 20 + content[220:])
    with in_process(tmp_path, upstream) as sdk:
        problem = wait_until(lambda: health(sdk)["problem"])
        assert batch_id in problem
        assert retrieve(sdk, batch_id).status == "in_progress"
        path.write_bytes(content)
        ended(sdk, batch_id).check(ids)
    assert len(upstream.requests()) == 10 + 1


def test_an_expired_batch_stays_expired_when_its_end_was_cut_off(
    tmp_path: Path, upstream: Upstream, held_clock: HeldClock
) -> None:
    with in_process(tmp_path, upstream) as sdk:
        begun = create(sdk, [row("a"), row("late", "[[fault:status:503:Retry-After=1]]")], "1s")
        wait_until(lambda: retrieve(sdk, begun.id).request_counts.completed == 1)
        held_clock.move(seconds=2)
        batch = ended(sdk, begun.id).batch
    assert batch.status == "expired"
    database = ServerDatabase(tmp_path / FILE_NAME)
    recorded = Records(database).batch(batch.id)
    assert recorded is not None
    cut = {"output_file_id": None, "error_file_id": None, "expired_at": None, "status": BatchStatus.FINALIZING}
    Records(database).save_batch(msgspec.structs.replace(recorded.batch, **cut))
    database.close()
    with in_process(tmp_path, upstream) as sdk:
        end = ended(sdk, batch.id)
    end.check(["a", "late"])
    assert end.batch.status == "expired"


def test_a_cancel_goes_on_after_a_kill(tmp_path: Path, upstream: Upstream) -> None:
    ids = [f"r{number}" for number in range(20)]
    batch_id = half_done(tmp_path, upstream, ids)
    database = ServerDatabase(tmp_path / FILE_NAME)
    recorded = Records(database).batch(batch_id)
    assert recorded is not None
    cut = msgspec.structs.replace(recorded.batch, status=BatchStatus.CANCELLING, cancelling_at=1)
    Records(database).save_batch(cut)
    database.close()
    with in_process(tmp_path, upstream) as sdk:
        end = ended(sdk, batch_id)
    end.check(ids)
    assert (end.batch.status, end.counts) == ("cancelled", (20, 19, 1))
    assert len(upstream.requests()) == 20


@pytest.mark.long
def test_the_first_look_after_a_kill_has_the_right_counts(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream()
    with BatchServer(tmp_path / "s", upstream.base_url) as server:
        with client(server) as sdk:
            # So many, and so long, that reading them takes longer than a client takes to ask.
            batch = create(sdk, [row(f"r{number}", "long " * 400) for number in range(20_000)])
            wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed > 12_000)
        server.kill()
        done = result_path(tmp_path / "s", batch.id).read_bytes().count(b"\n")
        server.start()
        with client(server) as sdk:
            counts = [retrieve(sdk, batch.id).request_counts, next(iter(sdk.every(lambda api: api.batches.list())))]
    assert (counts[0].total, counts[1].request_counts.total) == (20_000, 20_000)
    assert counts[0].completed >= done


def test_results_are_paged_on_by_another_process(tmp_path: Path, upstream: Upstream) -> None:
    ids = [f"r{number}" for number in range(30)]

    def page(sdk: Sdk, after: str | None) -> dict[str, Any]:
        query = {"limit": "10", **({"after": after} if after else {})}
        found: dict[str, Any] = sdk.raw.get(f"/v1/batches/{batch_id}/results", params=query).json()
        return found

    told: list[str] = []
    with BatchServer(tmp_path / "s", upstream.base_url) as server:
        with client(server) as sdk:
            batch_id = run_batch(sdk, [row(custom_id) for custom_id in ids]).batch.id
        after = None
        for _ in range(3):
            with client(server) as sdk:
                found = page(sdk, after)
            told += [line["custom_id"] for line in found["data"]]
            after = found["last_id"]
            server.kill()
            server.start()
    assert told == ids


def test_a_server_of_a_newer_orch_is_not_opened(tmp_path: Path, upstream: Upstream) -> None:
    database = ServerDatabase(tmp_path / FILE_NAME)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StorageError, match="written by a newer orch"), in_process(tmp_path, upstream):
        pass


FULL = 150_000


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("way_out", ["room", "restart", "kill"])
def test_a_full_disk(tmp_path: Path, upstream: Upstream, way_out: str) -> None:
    """The output file reaches the limit; results wait in memory or are asked for again, and none is torn."""
    ids = [f"r{number}" for number in range(1000)]
    with BatchServer(tmp_path / "s", upstream.base_url) as server, client(server) as sdk:
        file_id = upload_alone(sdk, ids)
        server.limit_files(FULL)
        batch = start(sdk, file_id)
        wait_until(lambda: health(sdk)["status"] == "storage")
        assert "File too large" in health(sdk)["problem"]
        # What fits is kept: of the room that there is, less than one row stays empty.
        assert FULL - 1000 < result_path(server.folder, batch.id).stat().st_size <= FULL
        kept, sent = whole_rows(server.folder, batch.id), upstream.counts()
        assert kept < set(ids)
        assert retrieve(sdk, batch.id).status == "in_progress"
        if way_out == "room":
            server.limit_files(-1)
        else:
            server.stop() if way_out == "restart" else server.kill()
            server.start()
        end = ended(sdk, batch.id)
        wait_until(lambda: health(sdk)["status"] == "ok")
    end.check(ids)
    assert end.counts == (1000, 1000, 0)
    assert {c: upstream.counts()[c] for c in kept} == {c: sent[c] for c in kept}


def upload_alone(sdk: Sdk, ids: list[str]) -> str:
    content = jsonl([row(custom_id) for custom_id in ids])
    return str(sdk(lambda api: api.files.create(file=("in.jsonl", content), purpose="batch")).id)


def start(sdk: Sdk, file_id: str) -> Any:
    return sdk(
        lambda api: api.batches.create(
            input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    )


def test_a_disk_too_full_for_the_database(tmp_path: Path, upstream: Upstream) -> None:
    """The end of a batch cannot be recorded: it waits, says so, and ends when there is room."""
    with BatchServer(tmp_path / "s", upstream.base_url) as server, client(server) as sdk:
        batch = create(sdk, [row("a"), row("b", "[[fault:slow:300]]")])
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 1)
        # The result of the second row still fits into its file, the record of the end not into the database.
        server.limit_files(20_000)
        problem = wait_until(lambda: health(sdk)["problem"])
        assert "waits" in problem
        assert "database" in problem
        assert retrieve(sdk, batch.id).status in ("in_progress", "finalizing")
        server.limit_files(-1)
        end = ended(sdk, batch.id)
        end.check(["a", "b"])
        wait_until(lambda: health(sdk)["problem"] is None)


@pytest.mark.parametrize("what", ["file", "batch"])
def test_what_cannot_be_stored_is_refused_whole(tmp_path: Path, upstream: Upstream, what: str) -> None:
    with BatchServer(tmp_path / "s", upstream.base_url) as server, client(server) as sdk:
        file_id = upload_alone(sdk, ["a"])
        files = sorted(path.name for path in (server.folder / "files").iterdir())
        server.limit_files(1000)
        content = jsonl([row(f"r{number}") for number in range(100)])
        large = tmp_path / "large.jsonl"
        large.write_bytes(content)
        backend = ApiBatches("local", over_unix_socket(server.socket))
        error = sdk.refused(
            (lambda api: api.files.create(file=("in.jsonl", content), purpose="batch"))
            if what == "file"
            else (
                lambda api: api.batches.create(
                    input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
                )
            )
        )
        assert (error.status_code, error.code, error.type) == (507, "storage", "server_error")
        assert "The server cannot write" in error.message
        with pytest.raises(StorageError, match="cannot upload: The server cannot write"):
            backend.upload(large, "in.jsonl")
        backend.close()
        server.limit_files(-1)
        assert sorted(path.name for path in (server.folder / "files").iterdir()) == files
        assert sdk(lambda api: api.batches.list()).data == []
        assert list((server.folder / "batches").glob("*")) == []
        ended(sdk, start(sdk, file_id).id).check(["a"])
