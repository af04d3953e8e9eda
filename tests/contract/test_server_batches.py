"""`/v1/batches`, asked by the official SDK: wire-format A3 to A5, and the bodies of errors."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import openai
import pytest

from orchestrator.core.batch_api import ENDPOINTS
from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from tests.conftest import MakeUpstream
from tests.contract.conftest import Served
from tests.support.batchapi import CHAT, Sdk, create, ended, retrieve, row, run_batch, sdk_at, upload
from tests.support.process import wait_until

KEYS = set(
    "id object endpoint model errors input_file_id completion_window status output_file_id error_file_id created_at "
    "in_progress_at expires_at finalizing_at completed_at failed_at expired_at cancelling_at cancelled_at "
    "request_counts usage metadata".split()
)
HANG = "[[fault:hang]]"


def asked(sdk: Sdk, **changes: Any) -> Any:
    """A create with changed fields; one given as None is left out."""
    fields = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h", **changes}
    body = {name: value for name, value in fields.items() if value is not None}
    return sdk.raw.post("/v1/batches", json=body)


def in_progress(sdk: Sdk, batch_id: str, served: Served, marker: str) -> None:
    """Wait until a row of a batch is at the upstream."""
    wait_until(lambda: served.upstream.counts()[marker])
    assert retrieve(sdk, batch_id).status == "in_progress"


def test_a_new_batch_has_every_key(sdk: Sdk) -> None:
    file_id = upload(sdk, [row("a")])
    raw = asked(sdk, input_file_id=file_id, metadata={"who": "me"}).json()
    assert set(raw) == KEYS
    assert raw["id"].startswith("batch_")
    assert (raw["object"], raw["status"], raw["endpoint"]) == ("batch", "validating", CHAT)
    assert (raw["input_file_id"], raw["completion_window"]) == (file_id, "24h")
    assert raw["expires_at"] == raw["created_at"] + 86_400
    assert raw["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert raw["metadata"] == {"who": "me"}
    assert {name for name, value in raw.items() if value is None} == KEYS - {
        "id", "object", "endpoint", "input_file_id", "completion_window", "status", "created_at", "expires_at",
        "request_counts", "metadata",
    }  # fmt: skip
    ended(sdk, raw["id"])


def test_a_batch_to_its_end(sdk: Sdk) -> None:
    ids = [f"r{number}" for number in range(30)]
    end = run_batch(sdk, [row(custom_id) for custom_id in ids])
    end.check(ids)
    batch = end.batch
    assert (batch.status, batch.model, batch.errors) == ("completed", "test-model", None)
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert [batch.failed_at, batch.expired_at, batch.cancelling_at, batch.cancelled_at] == [None] * 4
    assert set(sdk.raw.get(f"/v1/batches/{batch.id}").json()) == KEYS
    output = sdk(lambda api: api.files.retrieve(batch.output_file_id))
    assert (output.purpose, output.status) == ("batch_output", "processed")
    assert output.filename == f"{batch.id}_output.jsonl"
    assert output.bytes == len(sdk(lambda api: api.files.content(output.id)).content)


def test_lists_have_cursors(sdk: Sdk) -> None:
    batches = [create(sdk, [row("a")]) for _ in range(5)]
    newest = [batch.id for batch in reversed(batches)]
    page = sdk(lambda api: api.batches.list(limit=2))
    assert [batch.id for batch in page.data] == newest[:2]
    assert page.has_more is True
    assert [batch.id for batch in sdk(lambda api: api.batches.list(limit=2, after=newest[1])).data] == newest[2:4]
    every = [batch.id for batch in sdk.every(lambda api: api.batches.list(limit=3))]
    assert every[:5] == newest
    assert len(set(every)) == len(every)
    last = sdk(lambda api: api.batches.list(after=every[-1]))
    assert (last.data, last.has_more) == ([], False)
    for batch in batches:
        ended(sdk, batch.id)


@pytest.mark.parametrize("limit", ["0", "101", "many"])
def test_limits_that_are_refused(sdk: Sdk, limit: str) -> None:
    error = sdk.refused(lambda api: api.batches.list(extra_query={"limit": limit}))
    assert isinstance(error, openai.BadRequestError)
    assert (error.param, error.code) == ("limit", "invalid_value")


def test_a_cursor_that_names_no_batch(sdk: Sdk) -> None:
    error = sdk.refused(lambda api: api.batches.list(after="batch_no"))
    assert isinstance(error, openai.BadRequestError)
    assert (error.param, error.code) == ("after", "invalid_value")
    assert "batch_no" in error.message


def test_a_batch_that_is_not_there(sdk: Sdk) -> None:
    for call in (lambda api: api.batches.retrieve("batch_no"), lambda api: api.batches.cancel("batch_no")):
        error = sdk.refused(call)
        assert isinstance(error, openai.NotFoundError)
        assert (error.type, error.param, error.code) == ("invalid_request_error", None, None)
        assert "No batch found with id 'batch_no'." in error.message


REFUSED = {
    "no-file": (
        {"input_file_id": None}, "input_file_id", "missing_required_parameter",
        "Missing required parameter: 'input_file_id'.",
    ),
    "no-endpoint": ({"endpoint": None}, "endpoint", "missing_required_parameter", "Missing required parameter"),
    "no-window": (
        {"completion_window": None}, "completion_window", "missing_required_parameter", "Missing required parameter",
    ),
    "file-is-number": ({"input_file_id": 7}, "input_file_id", "invalid_type", "expected a string"),
    "file-is-true": ({"input_file_id": True}, "input_file_id", "invalid_type", "expected a string"),
    "endpoint": (
        {"endpoint": "/v1/x"}, "endpoint", "invalid_value", "Invalid value: '/v1/x'. Supported values are: '/v1/resp",
    ),
    "window": ({"completion_window": "soon"}, "completion_window", "invalid_value", "Invalid value: 'soon'"),
    "window-digits": ({"completion_window": "1\N{THAI DIGIT TWO}h"}, "completion_window", "invalid_value", "Use"),
    "window-zero": ({"completion_window": "0h"}, "completion_window", "invalid_value", "Invalid value: '0h'"),
    "metadata-list": (
        {"metadata": {"tags": ["a"]}}, "metadata.tags", "invalid_type",
        "Invalid type for 'metadata.tags': expected a string, but got an array instead.",
    ),
    "metadata-object": ({"metadata": {"a": {}}}, "metadata.a", "invalid_type", "got an object instead"),
    "metadata-number": ({"metadata": {"a": 1}}, "metadata.a", "invalid_type", "got an integer instead"),
    "metadata-decimal": ({"metadata": {"a": 1.5}}, "metadata.a", "invalid_type", "got a decimal instead"),
    "metadata-truth": ({"metadata": {"a": True}}, "metadata.a", "invalid_type", "got a boolean instead"),
    "metadata-null": ({"metadata": {"a": None}}, "metadata.a", "invalid_type", "got null instead"),
    "metadata-text": ({"metadata": "a"}, "metadata", "invalid_type", "expected an object"),
    "metadata-pairs": ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata", None, "at most 16 pairs"),
    "metadata-key": ({"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 65, None, "too long"),
    "metadata-value": ({"metadata": {"k": "v" * 513}}, "metadata.k", None, "too long"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "param", "code", "text"), REFUSED.values(), ids=REFUSED)
def test_creates_that_are_refused(sdk: Sdk, changes: dict[str, Any], param: str, code: str | None, text: str) -> None:
    before = [batch.id for batch in sdk(lambda api: api.batches.list(limit=100)).data]
    given = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h", **changes}
    left_out = {name: value for name, value in given.items() if value is not None}
    error = sdk.refused(lambda api: api.post("/batches", body=left_out, cast_to=object))
    assert isinstance(error, openai.BadRequestError)
    assert (error.type, error.param, error.code) == ("invalid_request_error", param, code)
    assert text in error.message
    assert [batch.id for batch in sdk(lambda api: api.batches.list(limit=100)).data] == before


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000], ids=repr)
def test_bodies_that_are_no_object(sdk: Sdk, body: bytes) -> None:
    answer = sdk.raw.post("/v1/batches", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_metadata_as_large_as_allowed_comes_back(sdk: Sdk) -> None:
    metadata = {f"{number:02}" + "k" * 62: "ü" * 512 for number in range(16)}
    batch = create(sdk, [row("a")], metadata=metadata)
    assert batch.metadata == metadata
    assert ended(sdk, batch.id).batch.metadata == metadata


@pytest.mark.parametrize(("window", "seconds"), [("1h", 3600), ("90m", 5400), ("7d", 604_800), ("45s", 45)])
def test_windows_other_than_a_day(sdk: Sdk, window: str, seconds: int) -> None:
    batch = run_batch(sdk, [row("a")], window).batch
    assert (batch.completion_window, batch.expires_at) == (window, batch.created_at + seconds)


def test_a_file_that_is_not_there_fails_the_batch(sdk: Sdk) -> None:
    created = sdk(lambda api: api.batches.create(input_file_id="file-no", endpoint=CHAT, completion_window="24h"))
    assert created.status == "validating"
    end = ended(sdk, created.id)
    (error,) = end.batch.errors.data
    assert (error.code, error.param, error.line) == ("invalid_request", "file_id", None)
    assert "file-no" in error.message
    assert (end.batch.status, end.counts) == ("failed", (0, 0, 0))


def test_a_file_of_another_purpose_fails_the_batch(sdk: Sdk) -> None:
    file = sdk(lambda api: api.files.create(file=("a.jsonl", b"{}"), purpose="user_data"))
    created = sdk(lambda api: api.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h"))
    batch = ended(sdk, created.id).batch
    assert (batch.status, batch.errors.data[0].code, batch.errors.data[0].param) == (
        "failed", "invalid_request", "file_id"
    )  # fmt: skip
    assert batch.failed_at >= batch.created_at
    assert (batch.output_file_id, batch.error_file_id) == (None, None)


def test_cancel_keeps_what_is_done(sdk: Sdk, served: Served) -> None:
    done, hanging = [f"done-{n}" for n in range(3)], [f"hang-{sdk.client.__class__.__name__}-{n}" for n in range(3)]
    lines = [row(custom_id) for custom_id in done] + [row(custom_id, HANG) for custom_id in hanging]
    batch = create(sdk, lines)
    in_progress(sdk, batch.id, served, hanging[0])
    wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == len(done))
    asked_to = sdk(lambda api: api.batches.cancel(batch.id))
    assert asked_to.status in ("cancelling", "cancelled")
    assert asked_to.cancelling_at is not None
    end = ended(sdk, batch.id)
    end.check([*done, *hanging])
    assert (end.batch.status, end.counts) == ("cancelled", (6, 3, 3))
    assert end.batch.cancelled_at >= end.batch.cancelling_at
    assert {line["custom_id"] for line in end.output} == set(done)
    for line in end.errors:
        assert line["response"] is None
        assert line["error"] == {
            "code": "batch_cancelled",
            "message": "This request was not executed because the batch was cancelled.",
        }
    again = sdk(lambda api: api.batches.cancel(batch.id))
    assert again.status == "cancelled"


def test_cancel_right_after_create(sdk: Sdk) -> None:
    ids = [f"r{number}" for number in range(50)]
    batch = create(sdk, [row(custom_id) for custom_id in ids])
    sdk(lambda api: api.batches.cancel(batch.id))
    end = ended(sdk, batch.id)
    end.check(ids)
    assert end.batch.status == "cancelled"


def test_cancel_before_a_bad_line_is_found(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    settings = Settings(upstreams=(make_upstream().base_url,))
    with ServerThread(tmp_path / "s", settings) as server, sdk_at(server.socket) as sdk:
        file_id = upload(sdk, [row("a")])
        # The server reads its input from a pipe, so that it is still at it when the batch is cancelled.
        (stored,) = (tmp_path / "s").rglob(f"{file_id}*")
        stored.unlink()
        os.mkfifo(stored)
        fields = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        batch = sdk(lambda api: api.batches.create(**fields))
        assert sdk(lambda api: api.batches.cancel(batch.id)).status == "cancelling"
        stored.write_bytes(b"{broken")
        batch = ended(sdk, batch.id).batch
    assert (batch.status, batch.failed_at, batch.errors) == ("cancelled", None, None)
    assert batch.cancelled_at >= batch.cancelling_at
    assert (batch.output_file_id, batch.error_file_id) == (None, None)


@pytest.mark.slow
def test_cancel_while_the_result_files_are_made(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    upstream = make_upstream()
    upstream.kill()
    settings = Settings(upstreams=(upstream.base_url,))
    with ServerThread(tmp_path / "s", settings) as server, sdk_at(server.socket) as sdk:
        batch = create(sdk, [row("a")])
        wait_until(lambda: retrieve(sdk, batch.id).status == "in_progress")
        output = tmp_path / "s" / "batches" / batch.id / "output.jsonl"
        away = output.rename(tmp_path / "away")
        upstream.restart()
        wait_until(lambda: retrieve(sdk, batch.id).status == "finalizing")
        assert sdk(lambda api: api.batches.cancel(batch.id)).status == "cancelling"
        away.rename(output)
        end = ended(sdk, batch.id)
    assert (end.batch.status, end.counts) == ("cancelled", (1, 1, 0))
    assert end.batch.finalizing_at <= end.batch.cancelling_at <= end.batch.cancelled_at
    assert [line["custom_id"] for line in end.output] == ["a"]


@pytest.mark.parametrize("kind", ["completed", "failed"])
def test_cancel_of_what_is_over_is_a_conflict(sdk: Sdk, kind: str) -> None:
    batch = run_batch(sdk, [row("a")] if kind == "completed" else [b"{"]).batch
    answer = sdk.raw.post(f"/v1/batches/{batch.id}/cancel")
    error = sdk.refused(lambda api: api.batches.cancel(batch.id))
    assert isinstance(error, openai.ConflictError)
    assert (error.type, error.param, error.code) == ("invalid_request_error", None, None)
    assert f"Cannot cancel a batch with status '{kind}'." in error.message
    assert answer.headers["x-should-retry"] == "false"
    assert retrieve(sdk, batch.id) == batch


def test_empty_bodies_with_a_json_type(sdk: Sdk) -> None:
    json_type = {"content-type": "application/json"}
    batch = create(sdk, [row("a", HANG)])
    answer = sdk.raw.post(f"/v1/batches/{batch.id}/cancel", content=b"", headers=json_type)
    assert answer.status_code == 200
    ended(sdk, batch.id)
    assert sdk.raw.request("DELETE", f"/v1/files/{batch.input_file_id}", headers=json_type).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("GET", "/v1/batches/batch_no", 404),
        ("GET", "/v1/nothing", 404),
        ("PUT", "/v1/batches", 405),
        ("POST", "/v1/files", 400),
    ],
)
def test_every_answer_has_a_request_id(sdk: Sdk, method: str, path: str, status: int) -> None:
    ids = set()
    for _ in range(2):
        answer = sdk.raw.request(method, path)
        assert answer.status_code == status
        assert re.fullmatch(r"req_[0-9a-f]{24}", answer.headers["x-request-id"])
        ids.add(answer.headers["x-request-id"])
        if status != 200:
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] == "invalid_request_error"
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/files", "GET, HEAD, POST"),
        ("POST", "/v1/files/file-x", "DELETE, GET, HEAD"),
        ("DELETE", "/v1/batches/batch_x", "GET, HEAD"),
    ],
)
def test_a_method_that_is_refused_hears_which_are_not(sdk: Sdk, method: str, path: str, allowed: str) -> None:
    answer = sdk.raw.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_an_error_of_the_sdk_names_its_request(sdk: Sdk) -> None:
    error = sdk.refused(lambda api: api.batches.retrieve("batch_no"))
    assert error.request_id is not None
    assert error.request_id.startswith("req_")


def test_models(sdk: Sdk) -> None:
    assert [model.id for model in sdk.every(lambda api: api.models.list())] == ["test-model"]


def test_every_endpoint_of_ours_is_taken(sdk: Sdk) -> None:
    for endpoint in ENDPOINTS:
        answer = asked(sdk, endpoint=endpoint)
        assert answer.json()["endpoint"] == endpoint
        ended(sdk, answer.json()["id"])
