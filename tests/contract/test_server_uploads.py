"""`/v1/uploads`, asked by the official SDK: wire-format A2, and what a disk without room says."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from tests.contract.conftest import Served
from tests.support.batchapi import CHAT, Sdk, ended, jsonl, row, sdk_at, upload
from tests.support.batchserver import BatchServer
from tests.support.clock import later
from tests.support.process import upstreams, wait_until

DAY = 86_400
MAX_PART = 64 * 1024 * 1024
MAX_UPLOAD = 8 * 1024**3
ROWS = [f"r{number}" for number in range(50)]
CONTENT = jsonl([row(custom_id) for custom_id in ROWS])


def begun(sdk: Sdk, size: int = len(CONTENT), **more: Any) -> Any:
    fields = {"bytes": size, "filename": "in.jsonl", "mime_type": "application/jsonl", "purpose": "batch", **more}
    return sdk(lambda api: api.uploads.create(**fields))


def add(sdk: Sdk, upload_id: str, data: bytes) -> Any:
    return sdk(lambda api: api.uploads.parts.create(upload_id, data=data))


def complete(sdk: Sdk, upload_id: str, *part_ids: str, **more: Any) -> Any:
    return sdk(lambda api: api.uploads.complete(upload_id, part_ids=part_ids, **more))


def parts_on_disk(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "uploads").iterdir())


def files_on_disk(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "files").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("given", ["path", "bytes"])
def test_the_sdks_own_way_end_to_end(sdk: Sdk, served: Served, tmp_path: Path, given: str) -> None:
    """In parts, with a checksum; and the file is the input of a batch."""
    before = parts_on_disk(served.folder)
    fields: dict[str, Any] = {"mime_type": "application/jsonl", "purpose": "batch", "part_size": 1000}
    if given == "path":
        (tmp_path / "in.jsonl").write_bytes(CONTENT)
        fields["file"] = tmp_path / "in.jsonl"
    else:
        fields |= {"file": CONTENT, "filename": "in.jsonl", "bytes": len(CONTENT)}
    md5 = hashlib.md5(CONTENT).hexdigest()
    done = sdk(lambda api: api.uploads.upload_file_chunked(**fields, md5=md5))
    assert (done.object, done.status, done.bytes, done.purpose) == ("upload", "completed", len(CONTENT), "batch")
    assert (done.filename, done.expires_at) == ("in.jsonl", done.created_at + 3600)
    assert (done.file.bytes, done.file.filename, done.file.purpose) == (len(CONTENT), "in.jsonl", "batch")
    assert done.file.expires_at == done.file.created_at + 30 * DAY
    assert sdk(lambda api: api.files.retrieve(done.file.id)) == done.file
    assert sdk(lambda api: api.files.content(done.file.id)).content == CONTENT
    assert parts_on_disk(served.folder) == before
    batch = sdk(lambda api: api.batches.create(input_file_id=done.file.id, endpoint=CHAT, completion_window="24h"))
    ended(sdk, batch.id).check(ROWS)


def test_a_new_upload_has_every_field(sdk: Sdk) -> None:
    new = begun(sdk, 7, purpose="user_data", filename="../a\tb\x00.bin", mime_type="application/x")
    assert new.id.startswith("upload_")
    assert (new.object, new.status, new.bytes, new.purpose) == ("upload", "pending", 7, "user_data")
    assert (new.filename, new.expires_at, new.file) == ("ab.bin", new.created_at + 3600, None)
    part = add(sdk, new.id, b"1234567")
    assert part.id.startswith("part_")
    assert (part.object, part.upload_id) == ("upload.part", new.id)
    assert new.created_at <= part.created_at
    assert complete(sdk, new.id, part.id).file.expires_at is None


def test_how_long_the_file_is_kept(sdk: Sdk) -> None:
    new = begun(sdk, 1, expires_after={"anchor": "created_at", "seconds": 7200})
    file = complete(sdk, new.id, add(sdk, new.id, b"x").id).file
    assert file.expires_at == file.created_at + 7200


def test_parts_come_side_by_side_and_go_in_the_order_named(sdk: Sdk) -> None:
    pieces = [os.urandom(300_000) for _ in range(6)]
    new = begun(sdk, sum(map(len, pieces)), purpose="user_data")
    if isinstance(sdk.client, openai.AsyncOpenAI):

        async def all_at_once(api: openai.AsyncOpenAI) -> list[Any]:
            return list(await asyncio.gather(*(api.uploads.parts.create(new.id, data=piece) for piece in pieces)))

        parts = sdk(all_at_once)
    else:
        with ThreadPoolExecutor(len(pieces)) as pool:
            parts = list(pool.map(lambda piece: add(sdk, new.id, piece), pieces))
    assert len({part.id for part in parts}) == len(pieces)
    done = complete(sdk, new.id, *(part.id for part in reversed(parts)))
    assert sdk(lambda api: api.files.content(done.file.id)).content == b"".join(reversed(pieces))


def test_a_part_that_nobody_names_is_left_out(sdk: Sdk, served: Served) -> None:
    """A client that tries a part again may have it stored twice."""
    before = parts_on_disk(served.folder)
    new = begun(sdk, 4)
    first, second, twice = (add(sdk, new.id, data) for data in (b"ab", b"cd", b"cd"))
    assert len(parts_on_disk(served.folder)) == len(before) + 3
    done = complete(sdk, new.id, first.id, twice.id)
    assert second.id not in (first.id, twice.id)
    assert sdk(lambda api: api.files.content(done.file.id)).content == b"abcd"
    assert parts_on_disk(served.folder) == before


def test_a_complete_that_is_sent_again_gets_the_same_answer(sdk: Sdk) -> None:
    new = begun(sdk, 2)
    part = add(sdk, new.id, b"{}")
    done = complete(sdk, new.id, part.id)
    assert complete(sdk, new.id, part.id) == done
    assert [file.id for file in sdk.every(lambda api: api.files.list())].count(done.file.id) == 1


def test_two_completes_at_once_make_one_file(served: Served) -> None:
    with sdk_at(served.address) as sdk:
        new = begun(sdk, 20 * len(CONTENT))
        parts = [add(sdk, new.id, CONTENT).id for _ in range(20)]
        before = files_on_disk(served.folder)
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(lambda _: complete(sdk, new.id, *parts), range(4)))
        assert len({one.file.id for one in done}) == 1
        assert len(files_on_disk(served.folder)) == len(before) + 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (lambda ids: (ids[:1], None), "the parts have 2 bytes, but 4 were announced"),
        (lambda ids: ((*ids, ids[0]), None), "is named twice"),
        (lambda ids: ((ids[0], "part_unknown"), None), "no part 'part_unknown'"),
        (lambda ids: (ids, hashlib.md5(b"cdab").hexdigest()), "the md5 checksum of the bytes is e2fc714c47"),
    ],
    ids=["size", "twice", "unknown", "md5"],
)  # fmt: skip
def test_parts_that_do_not_make_the_file(sdk: Sdk, served: Served, given: Any, text: str) -> None:
    """The upload stays pending, and can be completed with what is right."""
    new = begun(sdk, 4)
    ids = [add(sdk, new.id, data).id for data in (b"ab", b"cd")]
    files, parts = files_on_disk(served.folder), parts_on_disk(served.folder)
    part_ids, md5 = given(ids)
    error = sdk.refused(lambda api: api.uploads.complete(new.id, part_ids=part_ids, **({"md5": md5} if md5 else {})))
    assert isinstance(error, openai.BadRequestError)
    assert text in error.message
    assert (files_on_disk(served.folder), parts_on_disk(served.folder)) == (files, parts)
    assert complete(sdk, new.id, *ids, md5=hashlib.md5(b"abcd").hexdigest().upper()).status == "completed"


def test_a_part_of_another_upload_is_no_part(sdk: Sdk) -> None:
    one, other = begun(sdk, 2), begun(sdk, 2)
    part = add(sdk, other.id, b"{}")
    error = sdk.refused(lambda api: api.uploads.complete(one.id, part_ids=[part.id]))
    assert f"no part '{part.id}'" in error.message


def test_a_cancelled_upload(sdk: Sdk, served: Served) -> None:
    before = parts_on_disk(served.folder)
    new = begun(sdk, 2)
    part = add(sdk, new.id, b"{}")
    gone = sdk(lambda api: api.uploads.cancel(new.id))
    assert (gone.id, gone.status, gone.file) == (new.id, "cancelled", None)
    assert parts_on_disk(served.folder) == before
    assert sdk(lambda api: api.uploads.cancel(new.id)) == gone
    for call in (
        lambda api: api.uploads.parts.create(new.id, data=b"{}"),
        lambda api: api.uploads.complete(new.id, part_ids=[part.id]),
    ):
        error = sdk.refused(call)
        assert isinstance(error, openai.ConflictError)
        assert error.response.headers["x-should-retry"] == "false"
        assert "its status is 'cancelled'" in error.message
    assert parts_on_disk(served.folder) == before


def test_a_completed_upload_takes_nothing_more(sdk: Sdk) -> None:
    new = begun(sdk, 2)
    complete(sdk, new.id, add(sdk, new.id, b"{}").id)
    for call in (
        lambda api: api.uploads.parts.create(new.id, data=b"{}"),
        lambda api: api.uploads.cancel(new.id),
    ):
        error = sdk.refused(call)
        assert isinstance(error, openai.ConflictError)
        assert "its status is 'completed'" in error.message


def test_an_upload_has_an_hour(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    new = begun(sdk, 2)
    later(monkeypatch, minutes=59)
    part = add(sdk, new.id, b"{}")
    later(monkeypatch, minutes=61)
    for call in (
        lambda api: api.uploads.parts.create(new.id, data=b"{}"),
        lambda api: api.uploads.complete(new.id, part_ids=[part.id]),
        lambda api: api.uploads.cancel(new.id),
    ):
        error = sdk.refused(call)
        assert isinstance(error, openai.ConflictError)
        assert "its status is 'expired'" in error.message


@pytest.mark.parametrize(
    "call",
    [
        lambda api: api.uploads.parts.create("upload_unknown", data=b"x"),
        lambda api: api.uploads.complete("upload_unknown", part_ids=["part_x"]),
        lambda api: api.uploads.cancel("upload_unknown"),
    ],
    ids=["part", "complete", "cancel"],
)
def test_an_unknown_upload(sdk: Sdk, call: Any) -> None:
    error = sdk.refused(call)
    assert isinstance(error, openai.NotFoundError)
    assert (error.param, error.type) == ("id", "invalid_request_error")
    assert "No such Upload object: upload_unknown" in error.message


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"bytes": None}, "bytes", "missing_required_parameter"),
        ({"bytes": 0}, "bytes", "invalid_value"),
        ({"bytes": -1}, "bytes", "invalid_value"),
        ({"bytes": True}, "bytes", "invalid_value"),
        ({"bytes": 1.5}, "bytes", "invalid_value"),
        ({"bytes": "1"}, "bytes", "invalid_value"),
        ({"bytes": MAX_UPLOAD + 1}, "bytes", "invalid_value"),
        ({"bytes": 10**30}, "bytes", "invalid_value"),
        ({"filename": ""}, "filename", "missing_required_parameter"),
        ({"filename": ["a.jsonl"]}, "filename", "invalid_type"),
        ({"filename": "a.csv"}, None, None),
        ({"mime_type": None}, "mime_type", "missing_required_parameter"),
        ({"purpose": None}, "purpose", "missing_required_parameter"),
        ({"purpose": "batch_output"}, "purpose", "invalid_value"),
        ({"expires_after": 3600}, "expires_after", "invalid_type"),
        ({"expires_after": {"seconds": 3600}}, "expires_after.anchor", "invalid_value"),
        ({"expires_after": {"anchor": "created_at"}}, "expires_after.seconds", "missing_required_parameter"),
        ({"expires_after": {"anchor": "created_at", "seconds": "3600"}}, "expires_after.seconds", "invalid_value"),
        ({"expires_after": {"anchor": "created_at", "seconds": 3599}}, "expires_after.seconds", "invalid_value"),
    ],
)
def test_uploads_that_are_refused(sdk: Sdk, fields: dict[str, Any], param: str | None, code: str | None) -> None:
    body = {"bytes": 2, "filename": "a.jsonl", "mime_type": "application/jsonl", "purpose": "batch", **fields}
    answer = sdk.raw.post("/v1/uploads", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"], error["code"]) == (
        400,
        "invalid_request_error",
        param,
        code,
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [({}, "part_ids"), ({"part_ids": []}, "part_ids"), ({"part_ids": "part_x"}, "part_ids"),
     ({"part_ids": [1]}, "part_ids"), ({"part_ids": ["x"], "md5": "no"}, "md5"),
     ({"part_ids": ["x"], "md5": 1}, "md5")],
)  # fmt: skip
def test_completes_that_are_refused(sdk: Sdk, body: dict[str, Any], param: str) -> None:
    new = begun(sdk, 2)
    answer = sdk.raw.post(f"/v1/uploads/{new.id}/complete", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.slow
def test_a_part_that_is_too_large(sdk: Sdk, served: Served) -> None:
    before = parts_on_disk(served.folder)
    new = begun(sdk, MAX_UPLOAD)

    def body() -> Iterator[bytes]:
        yield b'--B\r\nContent-Disposition: form-data; name="data"; filename="upload"\r\n\r\n'
        for _ in range(65):
            yield b"x" * (1024 * 1024)
        yield b"\r\n--B--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=B"}
    answer = sdk.raw.post(f"/v1/uploads/{new.id}/parts", content=body(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "invalid_request_error")
    assert f"{MAX_PART} bytes maximum" in answer.json()["error"]["message"]
    assert parts_on_disk(served.folder) == before


def test_a_part_without_data(sdk: Sdk, served: Served) -> None:
    before = parts_on_disk(served.folder)
    new = begun(sdk, 2)
    answer = sdk.raw.post(f"/v1/uploads/{new.id}/parts", files={"file": ("a", b"{}")})
    assert answer.status_code == 400
    assert "Missing required parameter: 'data'." in answer.json()["error"]["message"]
    assert parts_on_disk(served.folder) == before


BIG = 40 * 1024 * 1024


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("blow", ["kill", "full disk"])
def test_a_complete_that_is_cut_off_is_done_again(tmp_path: Path, blow: str) -> None:
    """At a kill or on a full disk nothing is half done: no file, every part, and the same call then succeeds."""
    with upstreams(tmp_path) as make, BatchServer(tmp_path / "s", make().base_url) as server:
        with sdk_at(server.socket) as sdk:
            new = begun(sdk, 3 * BIG, purpose="user_data")
            parts = [add(sdk, new.id, bytes([letter]) * BIG).id for letter in b"abc"]
            if blow == "kill":
                calls = threading.Thread(target=complete_cut_off, args=(server, new.id, parts))
                calls.start()
                wait_until(lambda: files_on_disk(server.folder))
                server.kill()
                calls.join()
            else:
                server.limit_files(BIG + 1000)
                error = sdk.refused(lambda api: api.uploads.complete(new.id, part_ids=parts))
                assert (error.status_code, error.code) == (507, "storage")
                assert files_on_disk(server.folder) == []
                server.kill()
        (server.folder / "uploads" / "part_that_no_record_names").write_bytes(b"x")
        server.start()
        assert parts_on_disk(server.folder) in (sorted(parts), [])
        with sdk_at(server.socket) as sdk:
            md5 = hashlib.md5(b"a" * BIG + b"b" * BIG + b"c" * BIG).hexdigest()
            done = complete(sdk, new.id, *parts, md5=md5)
            assert (done.status, done.file.bytes) == ("completed", 3 * BIG)
            assert files_on_disk(server.folder) == [done.file.id]
            assert parts_on_disk(server.folder) == []


def complete_cut_off(server: BatchServer, upload_id: str, parts: list[str]) -> None:
    with sdk_at(server.socket) as sdk, pytest.raises(openai.APIConnectionError):
        sdk.client.with_options(max_retries=0).uploads.complete(upload_id, part_ids=parts)


@pytest.mark.parametrize("what", ["part", "upload", "file"])
def test_a_disk_that_is_full_in_the_middle(tmp_path: Path, what: str) -> None:
    with (
        upstreams(tmp_path) as make,
        BatchServer(tmp_path / "s", make().base_url) as server,
        sdk_at(server.socket) as sdk,
    ):
        new = begun(sdk)
        server.limit_files(1000)
        call = {
            "part": lambda api: api.uploads.parts.create(new.id, data=CONTENT),
            "upload": lambda api: api.uploads.create(
                bytes=5, filename="a.jsonl", mime_type="application/jsonl", purpose="batch"
            ),
            "file": lambda api: api.files.create(file=("a.jsonl", b"x" * 5_000_000), purpose="batch"),
        }[what]
        error = sdk.refused(call)
        assert (error.status_code, error.code, error.type) == (507, "storage", "server_error")
        assert error.response.headers["x-should-retry"] == "false"
        assert (parts_on_disk(server.folder), files_on_disk(server.folder)) == ([], [])
        server.limit_files(-1)
        assert complete(sdk, new.id, add(sdk, new.id, CONTENT).id).file.bytes == len(CONTENT)


GIB = 1024**3


def test_below_the_room_that_stays_free_nothing_is_taken_in(tmp_path: Path) -> None:
    """And by itself it goes on once there is room; what runs and what is stored is none the worse meanwhile."""
    folder = tmp_path / "s"
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    with upstreams(tmp_path) as make:
        settings = Settings(upstreams=(make(model=["test-model"]).base_url,), min_free_bytes=free - GIB)
        with ServerThread(folder, settings) as server, sdk_at(server.socket) as sdk:
            file_id, new = upload(sdk, [row("a")]), begun(sdk)
            with (tmp_path / "ballast").open("wb") as ballast:
                os.posix_fallocate(ballast.fileno(), 0, 2 * GIB)
            for call in (
                lambda api: api.files.create(file=("in.jsonl", CONTENT), purpose="batch"),
                lambda api: api.uploads.create(
                    bytes=5, filename="a.jsonl", mime_type="application/jsonl", purpose="batch"
                ),
                lambda api: api.uploads.parts.create(new.id, data=CONTENT),
                lambda api: api.uploads.complete(new.id, part_ids=["part_x"]),
                lambda api: api.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h"),
            ):
                error = sdk.refused(call)
                assert (error.status_code, error.code, error.type) == (507, "storage", "server_error")
                assert error.response.headers["x-should-retry"] == "false"
                assert f"{free - GIB:,} more must stay free" in error.message
            assert files_on_disk(folder) == [file_id]
            assert sdk(lambda api: api.files.content(file_id)).content == jsonl([row("a")])
            (tmp_path / "ballast").unlink()
            assert complete(sdk, new.id, add(sdk, new.id, CONTENT).id).status == "completed"
            batch = sdk(lambda api: api.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h"))
            ended(sdk, batch.id).check(["a"])


@pytest.mark.long
def test_an_upload_without_room_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Its announced length decides: the client hears so while it still sends."""
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    settings = Settings(upstreams=("http://127.0.0.1:9/v1",), min_free_bytes=free - GIB, max_file_bytes=8 * GIB)
    with ServerThread(tmp_path / "s", settings) as server, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.socket))
        connection.settimeout(30)
        head = "POST /v1/files HTTP/1.1\r\nHost: orch\r\nContent-Type: multipart/form-data; boundary=B\r\n"
        connection.sendall(f"{head}Content-Length: {4 * GIB}\r\n\r\n--B\r\n".encode())
        with connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 507 ")
            told = next(line for line in answer if line.startswith(b"{") or b'"error"' in line)
            assert f"{4 * GIB:,} are needed".encode() in told
        assert files_on_disk(tmp_path / "s") == []
