"""Chat completions as rows of Cohere's batches; names, batches, records and Avro files in OpenAI's shape."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends import HOME_KEY, SHARD_KEY, BatchOrder
from orchestrator.backends.cohere import PACKAGE
from orchestrator.backends.cohere.answers import completion, result_line
from orchestrator.backends.cohere.avro import records
from orchestrator.backends.cohere.batches import batch_name, batch_of, batch_page, spelled, unspelled
from orchestrator.backends.cohere.requests import translate
from orchestrator.backends.cohere.settings import CohereBackend
from orchestrator.backends.lenient_batches import remote_batch
from orchestrator.backends.package import BackendAccess
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.errors import InputError, UsageError

Json = dict[str, Any]
ASK = [{"role": "user", "content": "hello"}]
TOOL = {"name": "weather", "description": "Weather.", "parameters": {"type": "object", "properties": {}}}
SCHEMA = fastavro.parse_schema(
    {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}, {"name": "s", "type": "string"}]}
)


def order(shard: str, home: str = "") -> BatchOrder:
    return BatchOrder(shard, "in", "/v1/chat/completions", 86_400, 1, home, "command-a")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_name_is_spelled_in_small_letters_digits_and_hyphens_and_read_again(name: str) -> None:
    assert unspelled(spelled(name)) == name
    assert set(spelled(name)) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


@pytest.mark.parametrize("home", ["", "h1", "Home-x", "shard-home-1"])
@pytest.mark.parametrize("shard", ["letters-1.001", "a-home-b.002", "job_A-5d03a2c1.010"])
def test_a_batch_carries_its_shard_and_home_in_its_name(shard: str, home: str) -> None:
    told = {"id": "b", "status": "BATCH_STATUS_QUEUED", "name": batch_name(order(shard, home))}
    batch = remote_batch(batch_of({"batch": told}))
    assert (batch.shard, batch.home) == (shard, home or None)


@pytest.mark.parametrize("name", ["product-embeddings-job", "orch", "orch-shard-", "", None, 7, "orch-shard-a home"])
def test_a_foreign_name_is_no_shard_of_ours(name: object) -> None:
    assert remote_batch(batch_of({"id": "b", "status": "x", "name": name})).shard is None


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("BATCH_STATUS_QUEUED", BatchStatus.VALIDATING),
        ("BATCH_STATUS_IN_PROGRESS", BatchStatus.IN_PROGRESS),
        ("BATCH_STATUS_CANCELING", BatchStatus.CANCELLING),
        ("BATCH_STATUS_COMPLETED", BatchStatus.COMPLETED),
        ("BATCH_STATUS_FAILED", BatchStatus.FAILED),
        ("BATCH_STATUS_CANCELED", BatchStatus.CANCELLED),
        ("BATCH_STATUS_CANCELLED", BatchStatus.CANCELLED),
        ("BATCH_STATUS_UNSPECIFIED", BatchStatus.IN_PROGRESS),
    ],
)
def test_each_status_has_a_counterpart(word: str, status: BatchStatus) -> None:
    told = {"id": "b", "status": word, "output_dataset_id": "out", "input_dataset_id": "", "num_records": 10,
            "num_successful_records": 7, "num_failed_records": 3, "input_tokens": "30"}  # fmt: skip
    batch = remote_batch(batch_of({"batch": told}))
    assert (batch.status, batch.rows, batch.completed, batch.failed) == (status, 10, 7, 3)
    assert batch.output_file_id == ("out" if status.is_final else None)
    assert (batch.input_file_id, batch.input_tokens) == (None, 30)


def test_an_empty_list_may_be_left_out_and_any_other_answer_is_no_list() -> None:
    assert batch_page({}) == ({"data": [], "has_more": False}, None)
    assert batch_page({"batches": [], "next_page_token": "x"}) == ({"data": [], "has_more": True}, "x")
    for odd in ([], {"message": "no"}, None, 3):
        with pytest.raises(ValueError, match="not a list"):
            batch_page(odd)


def test_a_conversation_becomes_messages_of_lists() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Berlin"}'}}
    picture = {"type": "image_url", "image_url": {"url": "https://example.test/a.png"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look."}, picture]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Sunny"},
        {"role": "user", "content": "And?"},
    ]
    sent = translate({"model": "m", "messages": messages, "tools": [{"type": "function", "function": TOOL}]})
    assert sent == {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": [
                {"type": "text", "text": "Look."}, {"type": "image_url", "image_url": "https://example.test/a.png"}]},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Sunny"}]},
            {"role": "user", "content": [{"type": "text", "text": "And?"}]},
        ],
        "tools": [{"type": "function", "function": {**TOOL, "parameters": json.dumps(TOOL["parameters"])}}],
    }  # fmt: skip


def test_settings_go_out_under_coheres_names() -> None:
    body = {"top_p": 0.5, "top_k": 3, "seed": 7, "temperature": 0, "max_tokens": 9, "max_completion_tokens": 5}
    sent = translate({"messages": ASK, "user": "u", "reasoning_effort": "none", "tool_choice": "auto", **body})
    assert {name: value for name, value in sent.items() if name != "messages"} == {
        "p": 0.5, "k": 3, "seed": 7, "temperature": 0, "max_tokens": 5, "reasoning": False
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("stop", {"stop": ["x"]}),
        ("logprobs", {"logprobs": True}),
        ("tool_choice", {"tool_choice": "required"}),
        ("reasoning_effort", {"reasoning_effort": "high"}),
        ("tools", {"tools": [{"type": "function", "function": {**TOOL, "strict": True}}]}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": [
            {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}]}]}),
    ],
)  # fmt: skip
def test_what_a_row_cannot_say_is_named(field: str, body: Json) -> None:
    with pytest.raises(InputError) as refused:
        translate({"messages": ASK, **body})
    assert refused.value.field == field


def test_a_recorded_answer_costs_what_is_billed() -> None:
    usage = {"billed_units": {"input_tokens": 2406, "output_tokens": 2}, "cached_tokens": 2928,
             "tokens": {"input_tokens": 2935, "output_tokens": 4}}  # fmt: skip
    message = {"role": "assistant", "content": [{"type": "text", "text": "Hello!"}]}
    found = completion({"id": "a", "finish_reason": "COMPLETE", "message": message, "usage": usage})
    assert found["choices"][0]["message"]["content"] == "Hello!"
    assert found["choices"][0]["finish_reason"] == "stop"
    assert found["usage"] == {"prompt_tokens": 2406, "completion_tokens": 2, "total_tokens": 2408,
                              "prompt_tokens_details": {"cached_tokens": 2406}}  # fmt: skip


def test_calls_plans_and_thoughts_have_their_places() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    message = {"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": None}],
               "tool_plan": "I will call f.", "tool_calls": [call]}  # fmt: skip
    choice = completion({"finish_reason": "TOOL_CALL", "message": message})["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"] == [call]
    assert choice["message"]["reasoning_content"] == "Hm.I will call f."


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"custom_id": "a", "error": "Invalid request", "body": None}, "Invalid request"),
        ({"custom_id": "a", "error": "Invalid request", "body": {"id": None, "message": None}}, "Invalid request"),
        (
            {"custom_id": "a", "error": json.dumps({"message": "too long", "error_type": "TOO_MANY_TOKENS"})},
            "too long",
        ),
        ({"custom_id": "a", "error": "", "body": None}, "The backend returned a result of an unknown kind."),
    ],
)
def test_a_record_without_an_answer_is_an_error(record: Json, error: str) -> None:
    line = json.loads(result_line(record))
    assert (line["custom_id"], line["response"], line["error"]["message"]) == ("a", None, error)


@pytest.mark.parametrize("body", [{"id": "x", "message": {"content": []}}, '{"id": "x", "message": {"content": []}}'])
def test_a_record_with_an_answer_is_one_also_as_a_text(body: object) -> None:
    line = json.loads(result_line({"custom_id": "a", "error": "", "body": body}))
    assert (line["response"]["status_code"], line["response"]["request_id"]) == (200, "x")


# --- Avro


def avro(rows: list[Json], codec: str = "null") -> bytes:
    file = io.BytesIO()
    fastavro.writer(file, SCHEMA, rows, codec=codec, sync_interval=1)
    return file.getvalue()


def pieces(whole: bytes, size: int) -> Iterator[bytes]:
    return (whole[start : start + size] for start in range(0, len(whole), size))


@pytest.mark.parametrize("codec", ["null", "deflate"])
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_records_are_read_as_their_bytes_come(size: int, codec: str) -> None:
    rows = [{"n": number, "s": "x\n" * number} for number in range(20)]
    assert list(records(pieces(avro(rows, codec), size))) == rows
    assert list(records(pieces(avro([], codec), size))) == []


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_file_that_breaks_off_anywhere_gives_whole_records_and_an_error(codec: str) -> None:
    rows = [{"n": number, "s": f"answer {number}"} for number in range(6)]
    whole, ends = avro(rows, codec), set[int]()
    for cut in range(len(whole)):
        found: list[Json] = []
        try:
            found += records([whole[:cut]])
            ends.add(len(found))
        except ValueError:
            pass
        assert found == rows[: len(found)]
    # Between two blocks nothing says that more should come.
    assert ends <= {*range(len(rows))}


@given(st.binary(max_size=200), st.integers(0, 400))
def test_bytes_that_are_no_avro_file_are_an_error(noise: bytes, place: int) -> None:
    whole = avro([{"n": number, "s": "x"} for number in range(5)])
    with suppress(ValueError):
        list(records([whole[:place] + noise + whole[place:]]))


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_a_file_with_any_wrong_byte_is_an_error_or_an_answer(codec: str) -> None:
    whole = avro([{"n": number, "s": "x"} for number in range(2)], codec)
    for place in range(len(whole)):
        for wrong in (0, whole[place] ^ 1, whole[place] ^ 0x80, 0xFF):
            with suppress(ValueError):
                list(records([whole[:place] + bytes([wrong]) + whole[place + 1 :]]))


def test_a_compression_that_is_not_installed_is_named() -> None:
    whole = avro([{"n": 1, "s": "x"}]).replace(b"avro.codec\x08null", b"avro.codec\x0csnappy")
    with pytest.raises(ValueError, match="snappy"):
        list(records([whole]))


def test_without_the_extra_a_backend_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    settings = CohereBackend(kind="cohere", api_key_env="K")
    with pytest.raises(UsageError, match="needs the extra `cohere`") as refused:
        PACKAGE.open(settings, BackendAccess("it", "key"))
    assert "[cohere]" in str(refused.value.hint)


def test_metadata_has_the_keys_of_every_backend() -> None:
    told = {"id": "b", "status": "x", "name": batch_name(order("s.001", "h"))}
    assert batch_of(told)["metadata"] == {SHARD_KEY: "s.001", HOME_KEY: "h"}  # type: ignore[index]
