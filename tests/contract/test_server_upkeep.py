"""What is over its time goes: files, uploads, and what finished batches leave on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from orchestrator.core.batch_api import File
from orchestrator.server.in_process import ServerThread
from orchestrator.server.records import Records
from orchestrator.server.service import Service
from orchestrator.server.settings import Settings
from tests.support.batchapi import Sdk, create, ended, jsonl, retrieve, row, run_batch, sdk_at
from tests.support.clock import later
from tests.support.process import Upstream, upstreams, wait_until

HOUR = {"anchor": "created_at", "seconds": 3600}
CONTENT = jsonl([row("a")])


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with upstreams(tmp_path_factory.mktemp("upstream")) as make:
        yield make(model=["test-model"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "s"


def server(folder: Path, upstream: Upstream, upkeep_seconds: float = 60.0) -> ServerThread:
    settings = Settings(upstreams=(upstream.base_url,), retry_delay=0.02, upkeep_seconds=upkeep_seconds)
    return ServerThread(folder, settings)


def given(sdk: Sdk, **more: Any) -> Any:
    return sdk(lambda api: api.files.create(file=("in.jsonl", CONTENT), purpose="batch", **more))


def names(folder: Path, kind: str) -> set[str]:
    return {path.name for path in (folder / kind).iterdir()}


def test_expired_files_are_removed_at_the_start(
    folder: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(folder, upstream) as running, sdk_at(running.socket) as sdk:
        file, kept = given(sdk, expires_after=HOUR), given(sdk)
    later(monkeypatch, minutes=59)
    with server(folder, upstream) as running, sdk_at(running.socket) as sdk:
        assert sdk(lambda api: api.files.content(file.id)).content == CONTENT
    later(monkeypatch, minutes=61)
    with server(folder, upstream) as running, sdk_at(running.socket) as sdk:
        wait_until(lambda: names(folder, "files") == {kept.id})
        assert isinstance(sdk.refused(lambda api: api.files.retrieve(file.id)), openai.NotFoundError)
        assert sdk(lambda api: api.files.content(kept.id)).content == CONTENT


def test_they_are_removed_while_the_server_runs_too(
    folder: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(folder, upstream, 0.01) as running, sdk_at(running.socket) as sdk:
        given(sdk, expires_after=HOUR)
        upload = sdk(
            lambda api: api.uploads.create(
                bytes=5, filename="a.jsonl", mime_type="application/jsonl", purpose="batch"
            )
        )
        sdk(lambda api: api.uploads.parts.create(upload.id, data=b"12345"))
        assert (len(names(folder, "files")), len(names(folder, "uploads"))) == (1, 1)
        later(monkeypatch, minutes=61)
        wait_until(lambda: not names(folder, "files") and not names(folder, "uploads"))


def test_an_upload_that_expired_keeps_its_word_and_loses_its_parts(
    folder: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"bytes": 5, "filename": "a.jsonl", "mime_type": "application/jsonl", "purpose": "batch"}
    with server(folder, upstream) as running, sdk_at(running.socket) as sdk:
        upload = sdk(lambda api: api.uploads.create(**fields))
        part = sdk(lambda api: api.uploads.parts.create(upload.id, data=b"12345"))
    later(monkeypatch, minutes=61)
    with server(folder, upstream) as running, sdk_at(running.socket) as sdk:
        wait_until(lambda: not names(folder, "uploads"))
        error = sdk.refused(lambda api: api.uploads.complete(upload.id, part_ids=[part.id]))
        assert (error.status_code, "its status is 'expired'" in error.message) == (409, True)
    later(monkeypatch, hours=26)
    with server(folder, upstream) as running, sdk_at(running.socket) as sdk:
        # Long behind its time nobody remembers it.
        wait_until(lambda: sdk.refused(lambda api: api.uploads.cancel(upload.id)).status_code == 404)


def test_a_file_that_a_running_batch_reads_stays(
    folder: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over restarts too, until the batch's end; then it goes."""
    with server(folder, upstream) as running, sdk_at(running.socket) as sdk:
        content = jsonl([row("a"), row("hangs", "[[fault:hang]]")])
        file = sdk(lambda api: api.files.create(file=("in.jsonl", content), purpose="batch", expires_after=HOUR))
        batch = sdk(
            lambda api: api.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
        )
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 1)
    later(monkeypatch, minutes=61)
    with server(folder, upstream, 0.01) as running, sdk_at(running.socket) as sdk:
        other = given(sdk, expires_after=HOUR)
        later(monkeypatch, minutes=122)
        wait_until(lambda: other.id not in names(folder, "files"))
        assert names(folder, "files") == {file.id}
        sdk(lambda api: api.batches.cancel(batch.id))
        ended(sdk, batch.id).check(["a", "hangs"])
        wait_until(lambda: not names(folder, "files"))


def test_what_finished_batches_leave(folder: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty result files, and folders of batches that failed, whose files are deleted or that no record names."""
    with server(folder, upstream, 0.01) as running, sdk_at(running.socket) as sdk:
        done = run_batch(sdk, [row("a")])
        mixed = run_batch(sdk, [row("b"), row("c", "[[fault:status:400]]")])
        failed = run_batch(sdk, [b"no JSON"])
        hangs = create(sdk, [row("hangs", "[[fault:hang]]")])
        wait_until(lambda: names(folder, "batches") == {done.batch.id, mixed.batch.id, hangs.id})
        assert failed.batch.status == "failed"
        wait_until(lambda: names(folder, f"batches/{done.batch.id}") == {"output.jsonl"})
        assert names(folder, f"batches/{mixed.batch.id}") == {"output.jsonl", "error.jsonl"}
        assert sdk.raw.get(f"/v1/batches/{done.batch.id}/error").content == b""
        results = sdk.raw.get(f"/v1/batches/{done.batch.id}/results").json()
        assert [line["custom_id"] for line in results["data"]] == ["a"]
        sdk(lambda api: api.files.delete(done.batch.output_file_id))
        wait_until(lambda: names(folder, "batches") == {mixed.batch.id, hangs.id})
        mixed_again = ended(sdk, mixed.batch.id)
        assert {**mixed_again.by_id} == mixed.by_id
    (folder / "batches" / "batch_that_no_record_names").mkdir()
    with server(folder, upstream) as running, sdk_at(running.socket) as sdk:
        wait_until(lambda: names(folder, "batches") == {mixed.batch.id, hangs.id})
        sdk(lambda api: api.batches.cancel(hangs.id))
        ended(sdk, hangs.id).check(["hangs"])


FAR = 4_000_000_000


def in_service(folder: Path, act: Callable[[Service], Awaitable[None]]) -> None:
    async def main() -> None:
        service = Service(folder, Settings(upstreams=("http://127.0.0.1:9/v1",), dispatch=False))
        await service.open()
        try:
            await act(service)
        finally:
            await service.close()

    asyncio.run(main())


def test_more_files_than_one_step_takes(folder: Path) -> None:
    """All that is due goes, and only that."""

    async def act(service: Service) -> None:
        for number in range(250):
            add(service.records, folder, f"file-{number}", FAR + number)
        await service.upkeep.sweep(FAR + 199)
        assert names(folder, "files") == {f"file-{number}" for number in range(200, 250)}
        left = service.records.files("", None, 1000, ascending=True, purpose=None, now=0)
        assert [file.id for file in left] == [f"file-{number}" for number in range(200, 250)]

    in_service(folder, act)


def add(records: Records, folder: Path, file_id: str, expires_at: int) -> None:
    (folder / "files" / file_id).write_bytes(b"x")
    records.add_file(File(file_id, 1, 0, "a", "user_data", expires_at), f"files/{file_id}", "")
