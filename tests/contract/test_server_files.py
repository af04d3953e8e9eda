"""`/v1/files`, asked by the official SDK: wire-format A0 to A2."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.support.batchapi import Sdk, create, jsonl, retrieve, row, upload
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


def test_a_range_behind_the_end_is_refused(sdk: Sdk) -> None:
    file = given(sdk)
    error = sdk.refused(lambda api: api.files.content(file.id, extra_headers={"Range": "bytes=999999-"}))
    assert error.status_code == 416


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


@pytest.mark.parametrize(("purpose", "lifetime"), [("batch", 30 * DAY), ("user_data", None)])
def test_how_long_a_file_lives(sdk: Sdk, purpose: str, lifetime: int | None) -> None:
    file = given(sdk, purpose=purpose)
    assert file.expires_at == (None if lifetime is None else file.created_at + lifetime)


@pytest.mark.parametrize("form", ["sdk", "brackets", "dots"])
def test_a_lifetime_of_ones_own(sdk: Sdk, form: str) -> None:
    if form == "sdk":
        file = given(sdk, expires_after={"anchor": "created_at", "seconds": 3600})
        assert file.expires_at == file.created_at + 3600
        return
    name = {"brackets": "expires_after[seconds]", "dots": "expires_after.seconds"}[form]
    answer = sdk.raw.post("/v1/files", data={"purpose": "batch", name: "3600"}, files={"file": ("a.jsonl", b"{}")})
    assert answer.json()["expires_at"] == answer.json()["created_at"] + 3600


@pytest.mark.parametrize(
    ("name", "purpose", "more", "param", "code", "text"),
    [
        ("a.csv", "batch", {}, None, None, "Invalid file format for Batch API. Must be .jsonl"),
        ("a.jsonl", "", {}, "purpose", "missing_required_parameter", "Missing required parameter: 'purpose'."),
        ("a.jsonl", "batch", {"seconds": 3599}, "expires_after.seconds", None, "3600 to 2592000"),
        ("a.jsonl", "batch", {"seconds": 2592001}, "expires_after.seconds", None, "3600 to 2592000"),
    ],
    ids=["ending", "purpose", "too-short", "too-long"],
)
def test_uploads_that_are_refused(
    sdk: Sdk, name: str, purpose: str, more: dict[str, int], param: str | None, code: str | None, text: str
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


def stored(sdk: Sdk) -> list[str]:
    return [file.id for file in sdk.every(lambda api: api.files.list())]


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        ({"content-type": "application/json"}, b"{}", "must be multipart/form-data"),
        ({"content-type": "multipart/form-data; boundary=B"}, b"", "no part named 'file'"),
        ({"content-type": "multipart/form-data; boundary=B"}, b"no form at all", "Invalid upload"),
        (
            {"content-type": "multipart/form-data; boundary=B"},
            b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B\r\nContent-Disposition: '
            b'form-data; name="file"; filename="a.jsonl"\r\n\r\n{"cut": ',
            "ends before",
        ),
    ],
    ids=["json", "empty", "no-form", "cut"],
)
def test_bodies_that_are_no_upload(sdk: Sdk, headers: dict[str, str], body: bytes, text: str) -> None:
    answer = sdk.raw.post("/v1/files", content=body, headers=headers)
    assert answer.status_code == 400
    assert text in answer.json()["error"]["message"]


@pytest.mark.parametrize("limit", ["0", "10001", "-1", "ten", ""])
def test_limits_that_are_refused(sdk: Sdk, limit: str) -> None:
    error = sdk.refused(lambda api: api.files.list(extra_query={"limit": limit}))
    assert isinstance(error, openai.BadRequestError)
    assert (error.param, error.code) == ("limit", "invalid_value")


@pytest.mark.parametrize("name", ["../../etc/passwd.jsonl", "a/b\\c.jsonl", "ünïcödé 名.jsonl", "x" * 200 + ".jsonl"])
def test_a_name_is_only_a_name(sdk: Sdk, name: str) -> None:
    file = given(sdk, name=name)
    assert "/" not in file.filename
    assert "\\" not in file.filename
    assert file.filename.endswith(".jsonl")
    assert sdk(lambda api: api.files.content(file.id)).content == CONTENT


def test_an_upload_of_bytes_alone_is_named_upload(sdk: Sdk) -> None:
    file = sdk(lambda api: api.files.create(file=b"x", purpose="user_data"))
    assert file.filename == "upload"


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
