"""Lines that a batch cannot run with: wire-format A6. Each bad line is told, in the order of the file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.batchapi import CHAT, Sdk, ended, jsonl, row, run_batch


def line(**changes: Any) -> dict[str, Any]:
    """A good line with changed fields; one given as None is left out."""
    fields = {**row("good"), **changes}
    return {name: value for name, value in fields.items() if value is not None}


def body(**changes: Any) -> dict[str, Any]:
    """A good line with changed fields of its body; one given as None is left out."""
    fields = {**row("good")["body"], **changes}
    return line(body={name: value for name, value in fields.items() if value is not None})


BAD: dict[str, tuple[dict[str, Any] | bytes, str, str | None, str]] = {
    "not-json": (b"{broken", "invalid_json_line", None, "This line is not parseable as valid JSON."),
    "not-utf8": (b'{"custom_id":"\xff"}', "invalid_json_line", None, "not parseable"),
    "nul": (b"\x00\x00\x00", "invalid_json_line", None, "not parseable"),
    "list": (b"[1]", "invalid_json_line", None, "not parseable"),
    "deep": (b"[" * 20_000, "invalid_json_line", None, "not parseable"),
    "no-custom-id": (line(custom_id=None), "missing_required_parameter", "custom_id", "'custom_id'"),
    "no-method": (line(method=None), "missing_required_parameter", "method", "'method'"),
    "no-url": (line(url=None), "missing_required_parameter", "url", "'url'"),
    "no-body": (line(body=None), "missing_required_parameter", "body", "'body'"),
    "id-is-number": (line(custom_id=7), "invalid_request", "custom_id", "must be a string"),
    "method": (line(method="GET"), "invalid_request", "method", "must be 'POST'"),
    "url": (line(url="/v1/embeddings"), "invalid_url", "url", "does not match the batch endpoint"),
    "body-is-text": (line(body="x"), "invalid_request", "body", "must be a JSON object"),
    "no-model": (body(model=None), "invalid_request", "body.model", "Model parameter is required."),
    "model-is-number": (body(model=5), "invalid_request", "body.model", "must be a string"),
    "no-messages": (body(messages=None), "invalid_request", "body.messages", "Messages parameter is required."),
    "messages-empty": (body(messages=[]), "invalid_request", "body.messages", "Messages parameter is required."),
    "stream": (
        body(stream=True), "streaming_unsupported", "body.stream",
        "Chat Completions: Streaming is not supported in the Batch API.",
    ),
    "duplicate": (
        row("first"), "duplicate_custom_id", "custom_id", "The custom_id 'first' for this request is a duplicate",
    ),
    "other-model": (
        body(model="another"), "mismatched_model", "body.model",
        "The model 'another' for this request does not match the rest of the batch.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("bad", "code", "param", "text"), BAD.values(), ids=BAD)
def test_one_bad_line(sdk: Sdk, bad: dict[str, Any] | bytes, code: str, param: str | None, text: str) -> None:
    end = run_batch(sdk, [row("first"), bad, row("last")])
    batch = end.batch
    assert (batch.status, end.counts) == ("failed", (0, 0, 0))
    assert (batch.output_file_id, batch.error_file_id, batch.in_progress_at) == (None, None, None)
    assert batch.failed_at >= batch.created_at
    (error,) = batch.errors.data
    assert (error.line, error.code, error.param) == (2, code, param)
    assert text in error.message
    assert batch.errors.object == "list"


def test_every_bad_line_in_the_order_of_the_file(sdk: Sdk) -> None:
    end = run_batch(sdk, [row("first"), *(bad for bad, *_ in BAD.values()), row("last")])
    assert [(error.line, error.code, error.param) for error in end.batch.errors.data] == [
        (number, code, param) for number, (_, code, param, _) in enumerate(BAD.values(), 2)
    ]


def test_no_more_than_a_hundred_lines_are_told(sdk: Sdk) -> None:
    end = run_batch(sdk, [b"{"] * 150)
    assert [error.line for error in end.batch.errors.data] == list(range(1, 101))


def test_blank_lines_a_bom_and_crlf_are_nothing(sdk: Sdk) -> None:
    ids = ["a", "b", "c"]
    lines = [json.dumps(row(custom_id)).encode() + b"\r" for custom_id in ids]
    lines = [b"\xef\xbb\xbf" + lines[0], b"", lines[1], b"  \t\r", lines[2], b""]
    end = run_batch(sdk, lines)
    assert end.batch.status == "completed"
    end.check(ids)


def test_blank_lines_count_as_lines(sdk: Sdk) -> None:
    end = run_batch(sdk, [b"", row("a"), b"", b"{"])
    assert [error.line for error in end.batch.errors.data] == [4]


def test_the_last_line_needs_no_newline(sdk: Sdk) -> None:
    content = jsonl([row("a"), row("b")]).removesuffix(b"\n")
    file = sdk(lambda api: api.files.create(file=("a.jsonl", content), purpose="batch"))
    batch = sdk(lambda api: api.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h"))
    ended(sdk, batch.id).check(["a", "b"])


@pytest.mark.parametrize("content", [[], [b"", b"  ", b"\r"], [b"\xef\xbb\xbf"]], ids=["nothing", "blank", "bom"])
def test_an_empty_file(sdk: Sdk, content: list[dict[str, Any] | bytes]) -> None:
    end = run_batch(sdk, content)
    (error,) = end.batch.errors.data
    assert (end.batch.status, error.code, error.param, error.line) == ("failed", "empty_file", None, None)


def test_more_rows_than_allowed(sdk: Sdk) -> None:
    end = run_batch(sdk, [row(f"{number}") for number in range(201)])
    (error,) = end.batch.errors.data
    assert (end.batch.status, error.code, error.line) == ("failed", "too_many_tasks", None)
    assert "201 rows" in error.message
    assert "200" in error.message


@pytest.mark.parametrize(
    "custom_id",
    [
        "with spaces",
        "ünïcödé 名 🐙",
        "a" * 2000,
        'quote " and \\ slash',
        "line\nbreak\tand\x01control",
        "\u2028 ",
        "0",
    ],
)
def test_a_custom_id_comes_back_byte_for_byte(sdk: Sdk, custom_id: str) -> None:
    end = run_batch(sdk, [row(custom_id, user="x"), row("other", "[[fault:status:400]]")])
    assert [line["custom_id"] for line in end.output] == [custom_id]
    failed = run_batch(sdk, [row(custom_id, "[[fault:status:400]]")])
    assert [line["custom_id"] for line in failed.errors] == [custom_id]
