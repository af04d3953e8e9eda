"""`/v1/files`, asked by the official SDK: wire-format A0 to A2."""

from __future__ import annotations

import contextlib
import io
import json
import socket
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from tests.contract.conftest import Served
from tests.support.batchapi import CHAT, Sdk, create, ended, jsonl, retrieve, row, upload
from tests.support.clock import later
from tests.support.process import wait_until

CONTENT = jsonl([row(f"r{number}") for number in range(20)])
DAY = 86_400


def given(sdk: Sdk, name: str = "in.jsonl", content: bytes = CONTENT, purpose: Any = "batch", **more: Any) -> Any:
    return sdk(lambda api: api.files.create(file=(name, content), purpose=purpose, **more))


def test_a_new_file_has_every_field(sdk: Sdk) -> None:
    file = given(sdk)
    assert file.id.startswith("file-")
    assert (file.object, file.bytes, file.filename, file.purpose) == ("file", len(CONTENT), "in.jsonl", "batch")
    assert (file.status, file.status_details) == ("processed", None)
    assert file.expires_at == file.created_at + 30 * DAY
    assert sdk(lambda api: api.files.retrieve(file.id)) == file
    assert sdk(lambda api: api.files.wait_for_processing(file.id)) == file


def test_content_comes_back_byte_for_byte(sdk: Sdk) -> None:
    content = b"\xef\xbb\xbf{}\r\n\x00\xff no JSON at all, and no newline"
    file = given(sdk, content=content)
    assert sdk(lambda api: api.files.content(file.id)).content == content


def test_an_empty_file_is_a_file(sdk: Sdk) -> None:
    file = given(sdk, content=b"")
    assert file.bytes == 0
    assert sdk(lambda api: api.files.content(file.id)).content == b""


@pytest.mark.parametrize(
    ("wanted", "status", "start", "end"),
    [("bytes=0-9", 206, 0, 10), ("bytes=100-", 206, 100, None), ("bytes=-7", 206, -7, None)],
    ids=["first", "rest", "last"],
)
def test_a_range_of_the_content(sdk: Sdk, wanted: str, status: int, start: int, end: int | None) -> None:
    file = given(sdk)
    answer = sdk(lambda api: api.files.content(file.id, extra_headers={"Range": wanted}))
    assert answer.response.status_code == status
    assert answer.content == CONTENT[start:end]
    assert answer.response.headers["content-range"].endswith(f"/{len(CONTENT)}")


@pytest.mark.parametrize(("content", "wanted"), [(CONTENT, "bytes=999999-"), (b"", "bytes=0-"), (b"x", "bytes=-0")])
def test_a_range_behind_the_end_is_refused(sdk: Sdk, content: bytes, wanted: str) -> None:
    file = given(sdk, content=content)
    error = sdk.refused(lambda api: api.files.content(file.id, extra_headers={"Range": wanted}))
    assert (error.status_code, error.type) == (416, "invalid_request_error")
    assert error.response.headers["content-range"] == f"bytes */{len(content)}"


@pytest.mark.parametrize("wanted", ["bytes=0-1,4-5", "bytes=9-3", "bytes=-", "bytes=x-y", "rows=0-1", "bytes", ""])
def test_a_range_that_is_not_understood_gives_the_whole(sdk: Sdk, wanted: str) -> None:
    file = given(sdk)
    answer = sdk(lambda api: api.files.content(file.id, extra_headers={"Range": wanted}))
    assert (answer.response.status_code, answer.content) == (200, CONTENT)


def test_a_download_can_be_taken_up_again(sdk: Sdk) -> None:
    url = f"/v1/files/{given(sdk).id}/content"
    head = sdk.raw.head(url)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(CONTENT)))
    same = sdk.raw.get(url, headers={"Range": "bytes=10-", "If-Range": head.headers["etag"]})
    assert (same.status_code, same.content) == (206, CONTENT[10:])
    other = sdk.raw.get(url, headers={"Range": "bytes=10-", "If-Range": '"another"'})
    assert (other.status_code, other.content) == (200, CONTENT)


def test_a_deleted_file_is_gone(sdk: Sdk) -> None:
    file = given(sdk)
    gone = sdk(lambda api: api.files.delete(file.id))
    assert (gone.id, gone.object, gone.deleted) == (file.id, "file", True)
    for call in (
        lambda api: api.files.retrieve(file.id),
        lambda api: api.files.content(file.id),
        lambda api: api.files.delete(file.id),
    ):
        error = sdk.refused(call)
        assert isinstance(error, openai.NotFoundError)
        assert (error.param, error.code, error.type) == ("id", None, "invalid_request_error")
        assert f"No such File object: {file.id}" in error.message


def test_a_file_that_a_batch_reads_is_not_deleted(sdk: Sdk) -> None:
    batch = create(sdk, [row("hangs", "[[fault:hang]]")])
    error = sdk.refused(lambda api: api.files.delete(batch.input_file_id))
    assert isinstance(error, openai.ConflictError)
    assert error.response.headers["x-should-retry"] == "false"
    sdk(lambda api: api.batches.cancel(batch.id))
    wait_until(lambda: retrieve(sdk, batch.id).status == "cancelled")
    assert sdk(lambda api: api.files.delete(batch.input_file_id)).deleted


def test_lists_have_cursors(sdk: Sdk) -> None:
    ids = [given(sdk, purpose="evals", name=f"{number}").id for number in range(5)]
    newest = ids[::-1]
    page = sdk(lambda api: api.files.list(limit=2, purpose="evals"))
    assert [file.id for file in page.data] == newest[:2]
    assert page.has_more is True
    behind = sdk(lambda api: api.files.list(limit=2, purpose="evals", after=newest[1]))
    assert [file.id for file in behind.data] == newest[2:4]
    every = sdk.every(lambda api: api.files.list(limit=2, purpose="evals"))
    assert [file.id for file in every][:5] == newest
    assert {file.purpose for file in every} == {"evals"}
    oldest_first = sdk.every(lambda api: api.files.list(limit=3, purpose="evals", order="asc"))
    assert [file.id for file in oldest_first] == [file.id for file in every][::-1]
    raw = sdk.raw.get("/v1/files", params={"limit": 2, "purpose": "evals"}).json()
    assert (raw["object"], raw["first_id"], raw["last_id"]) == ("list", newest[0], newest[1])


def test_the_last_page_says_so(sdk: Sdk) -> None:
    given(sdk, purpose="vision", name="x")
    oldest = sdk.every(lambda api: api.files.list(purpose="vision"))[-1].id
    page = sdk(lambda api: api.files.list(purpose="vision", after=oldest))
    assert (page.data, page.has_more) == ([], False)


def test_who_pages_through_files_may_delete_them(sdk: Sdk) -> None:
    ids = [given(sdk, purpose="assistants", name=f"{number}").id for number in range(5)]
    page = sdk(lambda api: api.files.list(limit=2, purpose="assistants"))
    assert [file.id for file in page.data] == ids[:2:-1]
    for file in page.data:
        sdk(lambda api, file=file: api.files.delete(file.id))
    behind = sdk(lambda api: api.files.list(limit=2, purpose="assistants", after=ids[3]))
    assert [file.id for file in behind.data] == [ids[2], ids[1]]
    older = sdk(lambda api: api.files.list(purpose="assistants", order="asc", after=ids[3]))
    assert older.data == []


@pytest.mark.parametrize(
    ("query", "param"), [({"after": "file-unknown"}, "after"), ({"order": "newest"}, "order")], ids=["after", "order"]
)
def test_lists_that_cannot_be_meant(sdk: Sdk, query: dict[str, str], param: str) -> None:
    error = sdk.refused(lambda api: api.files.list(extra_query=query))
    assert isinstance(error, openai.BadRequestError)
    assert (error.param, error.code) == (param, "invalid_value")


@pytest.mark.parametrize(("purpose", "lifetime"), [("batch", 30 * DAY), ("user_data", None)])
def test_how_long_a_file_lives(sdk: Sdk, purpose: str, lifetime: int | None) -> None:
    file = given(sdk, purpose=purpose)
    assert file.expires_at == (None if lifetime is None else file.created_at + lifetime)


@pytest.mark.parametrize("form", ["sdk", "brackets", "dots", "seconds alone"])
def test_a_lifetime_of_ones_own(sdk: Sdk, form: str) -> None:
    if form == "sdk":
        file = given(sdk, expires_after={"anchor": "created_at", "seconds": 3600})
        assert file.expires_at == file.created_at + 3600
        return
    fields = {
        "brackets": {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"},
        "dots": {"expires_after.anchor": "created_at", "expires_after.seconds": "3600"},
        "seconds alone": {"expires_after.seconds": "3600"},
    }[form]
    answer = sdk.raw.post("/v1/files", data={"purpose": "batch", **fields}, files={"file": ("a.jsonl", b"{}")})
    assert answer.json()["expires_at"] == answer.json()["created_at"] + 3600


def test_an_expired_file_is_gone_before_it_is_removed(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    file, kept = given(sdk, purpose="evals", expires_after={"anchor": "created_at", "seconds": 3600}), given(sdk)
    later(monkeypatch, minutes=59)
    assert sdk(lambda api: api.files.retrieve(file.id)) == file
    assert file.id in stored(sdk)
    later(monkeypatch, minutes=61)
    for call in (
        lambda api: api.files.retrieve(file.id),
        lambda api: api.files.content(file.id),
        lambda api: api.files.delete(file.id),
    ):
        assert isinstance(sdk.refused(call), openai.NotFoundError)
    assert file.id not in stored(sdk)
    assert kept.id in stored(sdk)


def test_an_expired_file_is_no_input(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    anchored = {"anchor": "created_at", "seconds": 3600}
    file = sdk(
        lambda api: api.files.create(file=("a.jsonl", jsonl([row("a")])), purpose="batch", expires_after=anchored)
    )
    later(monkeypatch, minutes=61)
    fields = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    batch = ended(sdk, sdk(lambda api: api.batches.create(**fields)).id).batch
    assert (batch.status, [(error.code, error.param) for error in batch.errors.data]) == (
        "failed",
        [("invalid_request", "file_id")],
    )


@pytest.mark.parametrize(
    ("name", "purpose", "more", "param", "code", "text"),
    [
        ("a.csv", "batch", {}, None, None, "Invalid file format for Batch API. Must be .jsonl"),
        ("a.jsonl", "", {}, "purpose", "missing_required_parameter", "Missing required parameter: 'purpose'."),
        ("a.jsonl", "inference", {}, "purpose", "invalid_value", "Supported values are: 'assistants', 'batch', "),
        ("a.jsonl", "batch", {"seconds": 3599}, "expires_after.seconds", "invalid_value", "3600 to 2592000"),
        ("a.jsonl", "batch", {"seconds": 2592001}, "expires_after.seconds", "invalid_value", "3600 to 2592000"),
        ("a.jsonl", "batch", {"seconds": "1h"}, "expires_after.seconds", "invalid_value", "3600 to 2592000"),
        (
            "a.jsonl",
            "batch",
            {"anchor": "now", "seconds": 3600},
            "expires_after.anchor",
            "invalid_value",
            "created_at",
        ),
        (
            "a.jsonl",
            "batch",
            {"anchor": "created_at"},
            "expires_after.seconds",
            "missing_required_parameter",
            "Missing required parameter: 'expires_after.seconds'.",
        ),
    ],
    ids=["ending", "no-purpose", "purpose", "too-short", "too-long", "no-number", "anchor", "no-seconds"],
)
def test_uploads_that_are_refused(
    sdk: Sdk, name: str, purpose: str, more: dict[str, Any], param: str | None, code: str | None, text: str
) -> None:
    fields = {"expires_after": {"anchor": "created_at", **more}} if more else {}
    before = stored(sdk)
    error = sdk.refused(
        lambda api: api.files.create(file=(name, CONTENT), purpose=purpose, **fields)  # type: ignore[arg-type]
    )
    assert isinstance(error, openai.BadRequestError)
    assert (error.type, error.param, error.code) == ("invalid_request_error", param, code)
    assert text in error.message
    assert stored(sdk) == before


def test_a_file_above_the_limit_is_refused(sdk: Sdk) -> None:
    before = stored(sdk)
    error = sdk.refused(lambda api: api.files.create(file=("a.jsonl", b"x" * 100_001), purpose="batch"))
    assert error.status_code == 413
    assert "100000 bytes maximum" in error.message
    assert stored(sdk) == before


@pytest.mark.parametrize("length", ["told", "untold"])
def test_an_upload_far_above_the_limit_hears_why(sdk: Sdk, served: Served, length: str) -> None:
    """The answer arrives although it is known long before the client has sent everything."""

    def body() -> Iterator[bytes]:
        yield HEAD
        for _ in range(200):
            yield b"x" * 100_000
        yield TAIL

    headers = {"content-type": "multipart/form-data; boundary=B"}
    if length == "told":
        headers["content-length"] = str(len(HEAD) + 20_000_000 + len(TAIL))
    before = on_disk(served)
    answer = sdk.raw.post("/v1/files", content=body(), headers=headers)
    assert answer.status_code == 413
    assert "100000 bytes maximum" in answer.json()["error"]["message"]
    assert on_disk(served) == before


def on_disk(served: Served) -> list[str]:
    return sorted(path.name for path in (served.folder / "files").iterdir())


def stored(sdk: Sdk) -> list[str]:
    return [file.id for file in sdk.every(lambda api: api.files.list())]


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--B\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


HEAD = part("purpose", b"batch") + part("file", b"", '; filename="a.jsonl"')[:-2]
TAIL = b"\r\n--B--\r\n"
FORM = {"content-type": "multipart/form-data; boundary=B"}


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        ({"content-type": "application/json"}, b"{}", "must be multipart/form-data"),
        ({}, HEAD + TAIL, "must be multipart/form-data"),
        ({"content-type": "multipart/form-data"}, HEAD + TAIL, "must be multipart/form-data"),
        ({"content-type": f"multipart/form-data; boundary={'B' * 300}"}, HEAD + TAIL, "Boundary length 300"),
        (FORM, HEAD + b"\r\n" + part("file", b"{}", '; filename="b.jsonl"') + TAIL, "several parts named 'file'"),
        (FORM, part("purpose", b"batch") * 2 + HEAD + TAIL, "several fields named 'purpose'"),
        (FORM, part("note", b"x" * 70_000) + HEAD + TAIL, "field is too long"),
        (FORM, b"".join(part(f"f{n}", b"x" * 999) for n in range(300)) + HEAD + TAIL, "too much besides its file"),
        (FORM, HEAD + TAIL + b"x" * 300_000, "too much besides its file"),
        (FORM, b"--B\r\n" + b"X-More: y\r\n" * 100 + b"\r\n", "header count"),
        (FORM, b"--B\r\nContent-Disposition: " + b"y" * 100_000, "header size"),
        (FORM, b"--B\r\nContent Disposition: form-data\r\n\r\n", "invalid character"),
        (FORM, part("data", b"{}", '; filename="a.jsonl"') + TAIL, "Missing required parameter: 'file'."),
        ({"content-type": "multipart/form-data; boundary=B"}, b"", "Missing required parameter: 'file'."),
        ({"content-type": "multipart/form-data; boundary=B"}, b"no form at all", "Invalid upload"),
        (
            {"content-type": "multipart/form-data; boundary=B"},
            b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B\r\nContent-Disposition: '
            b'form-data; name="file"; filename="a.jsonl"\r\n\r\n{"cut": ',
            "ends before",
        ),
    ],
    ids=[
        "json", "no-type", "no-boundary", "long-boundary", "two-files", "field-twice", "long-field", "many-fields",
        "epilogue", "many-headers", "long-header", "bad-header", "other-name", "empty", "no-form", "cut",
    ],
)  # fmt: skip
def test_bodies_that_are_no_upload(sdk: Sdk, served: Served, headers: dict[str, str], body: bytes, text: str) -> None:
    before = on_disk(served)
    answer = sdk.raw.post("/v1/files", content=body, headers=headers)
    assert answer.status_code == 400
    assert text.lower() in answer.json()["error"]["message"].lower()
    assert on_disk(served) == before


def test_an_upload_that_breaks_off_leaves_nothing(sdk: Sdk, served: Served) -> None:
    before = on_disk(served)
    with contextlib.closing(connected(served.address)) as connection:
        head = "POST /v1/files HTTP/1.1\r\nHost: orch\r\nContent-Type: multipart/form-data; boundary=B\r\n"
        connection.sendall(f"{head}Content-Length: 50000\r\n\r\n".encode() + HEAD + b"x" * 10_000)
        wait_until(lambda: len(on_disk(served)) == len(before) + 1)
    wait_until(lambda: on_disk(served) == before)
    assert given(sdk).bytes == len(CONTENT)


def connected(address: Path | str) -> socket.socket:
    if isinstance(address, Path):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(address))
        return connection
    url = urlsplit(address)
    return socket.create_connection((url.hostname, url.port))


@pytest.mark.parametrize("limit", ["0", "10001", "-1", "ten", ""])
def test_limits_that_are_refused(sdk: Sdk, limit: str) -> None:
    error = sdk.refused(lambda api: api.files.list(extra_query={"limit": limit}))
    assert isinstance(error, openai.BadRequestError)
    assert (error.param, error.code) == ("limit", "invalid_value")


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd.jsonl", "passwd.jsonl"),
        ("a/b\\c.jsonl", "c.jsonl"),
        ("ünïcödé 名.jsonl", "ünïcödé 名.jsonl"),
        ("a; b=100%.jsonl", "a; b=100%.jsonl"),
        ("t\x7fab.JSONL", "tab.JSONL"),
        ("x" * 2000 + ".jsonl", "x" * 249 + ".jsonl"),
    ],
)
def test_a_name_is_only_a_name(sdk: Sdk, name: str, kept: str) -> None:
    file = given(sdk, name=name)
    assert file.filename == kept
    answer = sdk(lambda api: api.files.content(file.id))
    assert answer.content == CONTENT
    told = Message()
    told["content-disposition"] = answer.response.headers["content-disposition"]
    assert told.get_content_disposition() == "attachment"
    assert told.get_filename() == kept


def test_an_upload_of_bytes_alone_is_named_upload(sdk: Sdk) -> None:
    file = sdk(lambda api: api.files.create(file=b"x", purpose="user_data"))
    assert file.filename == "upload"


# What clients call a file that never had a name, and what people call one.
NAMES = [
    "upload",
    "batch",
    "tmpa1b2c3",
    "unknown_file",
    "in.ndjson",
    "in.json",
    "IN.JSONL",
    "night.2026-11-21",
    "in.jsonl.part",
    "v1.2",
    ".jsonl",
    "名",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_that_does_not_say_otherwise_is_batch_input(sdk: Sdk, name: str) -> None:
    assert given(sdk, name).filename == name
    part = {"bytes": 5, "mime_type": "application/jsonl", "purpose": "batch", "filename": name}
    assert sdk.raw.post("/v1/uploads", json=part).json()["filename"] == name


def test_a_batch_of_bytes_alone(sdk: Sdk) -> None:
    """As programs send it that build their rows in memory: the SDK calls the file `upload`."""
    for source in (CONTENT, io.BytesIO(CONTENT)):
        file = sdk(lambda api, source=source: api.files.create(file=source, purpose="batch"))
        assert file.filename == "upload"
        assert sdk(lambda api, file=file: api.files.wait_for_processing(file.id, max_wait_seconds=5)) == file
        fields = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        ended(sdk, sdk(lambda api, fields=fields: api.batches.create(**fields)).id).check(
            [f"r{number}" for number in range(20)]
        )


def test_fields_that_are_nothing_to_us_may_be_there_many_times(sdk: Sdk) -> None:
    more = (
        part("target_model_names", b"a") + part("target_model_names", b"b") + part("custom_llm_provider", b"openai")
    )
    body = more + part("purpose", b"batch") + part("file", CONTENT) + TAIL
    answer = sdk.raw.post("/v1/files", content=body, headers=FORM)
    assert (answer.status_code, answer.json()["filename"]) == (200, "upload")


def test_content_can_be_streamed(sdk: Sdk) -> None:
    file_id = upload(sdk, [row("a"), row("b")])

    def lines(api: openai.OpenAI) -> list[str]:
        with api.files.with_streaming_response.content(file_id) as answer:
            return list(answer.iter_lines())

    async def lines_async(api: openai.AsyncOpenAI) -> list[str]:
        async with api.files.with_streaming_response.content(file_id) as answer:
            return [line async for line in answer.iter_lines()]

    found = sdk(lines_async if isinstance(sdk.client, openai.AsyncOpenAI) else lines)
    assert [json.loads(line)["custom_id"] for line in found] == ["a", "b"]
