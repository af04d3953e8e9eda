"""The Batch API's shapes: what a request line may be, where lines lie, and how usage is read."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.core import answers, batch_api, request_lines
from orchestrator.core.answers import AnswerHead, TokenCounts
from orchestrator.core.batch_api import BatchUsage, InputTokensDetails, LineError, OutputTokensDetails
from orchestrator.core.durations import window_seconds
from orchestrator.core.request_lines import CheckedLine
from tests.support.examples import ample

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hallo"}]}
LINE: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": CHAT, "body": BODY}


def line(**changes: Any) -> bytes:
    return json.dumps(LINE | changes).encode()


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in LINE.items() if key != name}).encode()


def raw_body(text: bytes) -> bytes:
    return b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":' + text + b"}"


BAD_LINES = {
    "no JSON": (b"hello", "invalid_json_line", None),
    "half a line": (line()[:-1], "invalid_json_line", None),
    "something behind": (line() + b"x", "invalid_json_line", None),
    "a list": (b"[1]", "invalid_json_line", None),
    "a string": (b'"a"', "invalid_json_line", None),
    "no UTF-8 in the id": (line().replace(b'"a"', b'"\xff"'), "invalid_json_line", None),
    "no UTF-8 in a text": (raw_body(b'{"model":"m","messages":["\xff"]}'), "invalid_json_line", None),
    "half a surrogate pair": (line().replace(b'"a"', b'"\\ud800"'), "invalid_json_line", None),
    "a control character": (raw_body(b'{"model":"m","messages":["\x01"]}'), "invalid_json_line", None),
    "NaN": (raw_body(b'{"model":"m","messages":[NaN]}'), "invalid_json_line", None),
    "nested too deeply": (
        raw_body(b'{"model":"m","messages":' + b"[" * 9999 + b"]" * 9999 + b"}"),
        "invalid_json_line",
        None,
    ),
    "a number of 5,000 digits": (raw_body(b"1").replace(b'"a"', b"1" * 5000), "invalid_json_line", None),
    "no custom_id": (without("custom_id"), "missing_required_parameter", "custom_id"),
    "an empty custom_id": (line(custom_id=""), "missing_required_parameter", "custom_id"),
    "a custom_id that is a number": (line(custom_id=7), "invalid_request", "custom_id"),
    "no method": (without("method"), "missing_required_parameter", "method"),
    "another method": (line(method="GET"), "invalid_request", "method"),
    "no url": (without("url"), "missing_required_parameter", "url"),
    "another url": (line(url="/v1/embeddings"), "invalid_url", "url"),
    "no body": (without("body"), "missing_required_parameter", "body"),
    "body null": (line(body=None), "missing_required_parameter", "body"),
    "body empty": (raw_body(b"{ }"), "missing_required_parameter", "body"),
    "body a list": (line(body=[1]), "invalid_request", "body"),
    "body a string": (line(body="x"), "invalid_request", "body"),
    "body false": (line(body=False), "invalid_request", "body"),
    "no model": (line(body={"messages": BODY["messages"]}), "invalid_request", "body.model"),
    "an empty model": (line(body=BODY | {"model": ""}), "invalid_request", "body.model"),
    "a model that is a list": (line(body=BODY | {"model": ["m"]}), "invalid_request", "body.model"),
    "stream": (line(body=BODY | {"stream": True}), "streaming_unsupported", "body.stream"),
    "no messages": (line(body={"model": "m"}), "invalid_request", "body.messages"),
    "messages null": (line(body=BODY | {"messages": None}), "invalid_request", "body.messages"),
    "messages empty": (raw_body(b'{"model":"m","messages":[ ]}'), "invalid_request", "body.messages"),
    "too long": (b" " * batch_api.MAX_LINE_BYTES + b"{}", "invalid_json_line", None),
}


@pytest.mark.parametrize(("raw", "code", "param"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_bad_line_is_told_with_openais_code_and_parameter(raw: bytes, code: str, param: str | None) -> None:
    found = request_lines.check_line(raw, CHAT)
    assert isinstance(found, LineError)
    assert (found.code, found.param) == (code, param)


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ("custom_id", "Missing required parameter: 'custom_id'."),
        ("url", "Missing required parameter: 'url'."),
        ("body", "Missing required parameter: 'body'."),
    ],
)
def test_a_missing_parameter_is_told_in_openais_words(param: str, message: str) -> None:
    assert request_lines.check_line(without(param), CHAT) == LineError("missing_required_parameter", message, param)


def test_a_duplicate_is_told_in_openais_words() -> None:
    assert request_lines.duplicate_error("x") == LineError(
        "duplicate_custom_id",
        "The custom_id 'x' for this request is a duplicate of another request. "
        "The custom_id parameter must be unique for each request in a batch.",
        "custom_id",
    )


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(line(), id="plain"),
        pytest.param(line(body=BODY | {"stream": False}), id="stream false"),
        pytest.param(line(custom_id="ä b/c: 日本 " + "x" * 200), id="an id of anything"),
        pytest.param(json.dumps({**LINE, "extra": [1]}).encode(), id="a field more"),
        pytest.param(json.dumps(dict(reversed(LINE.items()))).encode(), id="another order"),
        pytest.param(b"  " + line() + b" \t", id="spaces around"),
    ],
)
def test_a_good_line_keeps_its_body_byte_for_byte(raw: bytes) -> None:
    found = request_lines.check_line(raw, CHAT)
    assert isinstance(found, CheckedLine)
    assert found.custom_id == json.loads(raw)["custom_id"]
    assert (found.url, found.model) == (CHAT, "m")
    assert bytes(found.body) in raw
    assert json.loads(bytes(found.body)) == json.loads(raw)["body"]


def test_without_a_batch_endpoint_lines_may_differ_but_stay_under_v1() -> None:
    embedding = line(url="/v1/embeddings", body={"model": "e", "input": "x"})
    assert isinstance(request_lines.check_line(embedding), CheckedLine)
    assert isinstance(request_lines.check_line(line()), CheckedLine)
    elsewhere = request_lines.check_line(line(url="http://elsewhere/v1/chat/completions"))
    assert isinstance(elsewhere, LineError)
    assert elsewhere.code == "invalid_url"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=ample(150))
@given(st.binary(max_size=60) | st.builds(lambda changes: line(**changes), st.fixed_dictionaries(
    {}, optional={"custom_id": JSON, "method": JSON, "url": JSON, "body": JSON | st.fixed_dictionaries(
        {}, optional={"model": JSON, "stream": JSON, "messages": JSON})})))  # fmt: skip
def test_no_line_makes_check_line_raise(raw: bytes) -> None:
    found = request_lines.check_line(raw, CHAT)
    if isinstance(found, CheckedLine):
        assert found.custom_id
        assert found.model
        assert json.loads(raw)["method"] == "POST"
    else:
        assert found.message.endswith(".")


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b" ", b"\t", b"{}", b"\xef\xbb\xbf", b"\xff", b"ab\x00"])))
@example([b"\xef\xbb\xbf", b"a", b"\n"])
@example([b"a", b"\n", b"\n", b"b"])
def test_lines_reads_back_exactly_and_loses_no_byte(parts: list[bytes]) -> None:
    data = b"".join(parts)
    found = list(request_lines.lines(io.BytesIO(data)))
    assert list(request_lines.lines(io.BufferedReader(io.BytesIO(data), 4))) == found  # type: ignore[arg-type]
    for number, offset, raw in found:
        assert data[offset : offset + len(raw)] == raw
        assert data[:offset].count(b"\n") == number - 1
        assert b"\n" not in raw
        assert not raw.endswith(b"\r")
        assert raw.strip()
    # What a text editor would call the lines that are not blank, a BOM left out.
    expected = [part.rstrip(b"\r") for part in data.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    assert [raw for _, _, raw in found] == [part for part in expected if part.strip()]


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["no BOM", "BOM"])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"], ids=["no newline", "LF", "CRLF"])
def test_the_longest_line_that_is_allowed_is_read_whole(bom: bytes, end: bytes) -> None:
    longest = line(body=BODY | {"pad": ""})
    longest = longest.replace(b'"pad": ""', b'"pad": "' + b"x" * (batch_api.MAX_LINE_BYTES - len(longest)) + b'"')
    [(_, offset, raw)] = request_lines.lines(io.BytesIO(bom + longest + end))
    assert (offset, len(raw)) == (len(bom), batch_api.MAX_LINE_BYTES)
    assert isinstance(request_lines.check_line(raw, CHAT), CheckedLine)


@pytest.mark.slow
def test_a_line_that_is_too_long_is_refused_and_the_next_one_is_found() -> None:
    data = b"\xef\xbb\xbf" + b"x" * (batch_api.MAX_LINE_BYTES + 3_000_000) + b"\n" + line() + b"\n"
    (_, _, huge), (number, offset, raw) = request_lines.lines(io.BytesIO(data))
    assert batch_api.MAX_LINE_BYTES < len(huge) < batch_api.MAX_LINE_BYTES + 10
    assert isinstance(request_lines.check_line(huge, CHAT), LineError)
    assert (number, raw) == (2, line())
    assert data[offset : offset + len(raw)] == raw


class Counted(io.BufferedReader):
    """Counts the lines that were read one by one."""

    read_lines = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        self.read_lines += 1
        return super().readline(size)


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \n", b"\t \r\n"])
def test_a_file_of_blank_lines_is_not_read_line_by_line(blank: bytes) -> None:
    data = b"first\n" + blank * 100_000 + b" second\n" + blank * 100_000
    file = Counted(io.BytesIO(data), 1 << 16)  # type: ignore[arg-type]
    assert list(request_lines.lines(file)) == list(request_lines.lines(io.BytesIO(data)))
    assert file.read_lines < 100


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("24h", 86_400), ("90m", 5_400), ("7d", 604_800), ("45s", 45), ("1h", 3_600),
     ("0h", None), ("h", None), ("24", None), ("24H", None), (" 24h", None), ("24h ", None), ("-1h", None),
     ("1.5h", None), ("1h30m", None), ("", None), ("99999999d", None)],
)  # fmt: skip
def test_completion_windows(text: str, seconds: int | None) -> None:
    assert window_seconds(text) == seconds


@settings(max_examples=ample(50))
@given(st.sets(st.text(max_size=20), min_size=2, max_size=30))
def test_id_keys_differ_and_fit_64_bits(ids: set[str]) -> None:
    keys = {request_lines.id_key(custom_id) for custom_id in ids}
    assert len(keys) == len(ids)
    assert all(0 <= key < 2**64 for key in keys)


USAGES = {
    "chat": (
        {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14,
         "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 5, "audio_tokens": 0},
         "completion_tokens_details": {"reasoning_tokens": 2, "accepted_prediction_tokens": 1}},
        (10, 3, 4, 2, 5),
    ),
    "responses": (
        {"input_tokens": 10, "output_tokens": 4,
         "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 5},
         "output_tokens_details": {"reasoning_tokens": 2}},
        (10, 3, 4, 2, 5),
    ),
    "embeddings": ({"prompt_tokens": 8, "total_tokens": 8}, (8, 0, 0, 0, 0)),
    "details null": ({"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": None}, (1, 0, 1, 0, 0)),
    "cached null": ({"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": None}}, (1, 0, 0, 0, 0)),
    "null": (None, (0, 0, 0, 0, 0)),
    "another shape": ("many", (0, 0, 0, 0, 0)),
    "negative": ({"prompt_tokens": -5}, (0, 0, 0, 0, 0)),
    "cached beside the details, Mistral": (
        {"prompt_tokens": 64, "num_cached_tokens": 32, "completion_tokens": 6, "total_tokens": 70}, (64, 32, 6, 0, 0),
    ),
    "cached beside the details, Moonshot": (
        {"prompt_tokens": 64, "cached_tokens": 32, "completion_tokens": 6, "total_tokens": 70}, (64, 32, 6, 0, 0),
    ),
    "cached beside the details, Inception": (
        {"prompt_tokens": 64, "cached_input_tokens": 32, "reasoning_tokens": 9, "completion_tokens": 6,
         "total_tokens": 79}, (64, 32, 15, 9, 0),
    ),
    "cached beside the details, DeepSeek": (
        {"prompt_tokens": 64, "prompt_cache_hit_tokens": 32, "prompt_cache_miss_tokens": 32, "completion_tokens": 6},
        (64, 32, 6, 0, 0),
    ),
    "Anthropic's own count": (
        {"input_tokens": 10, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 3, "output_tokens": 6},
        (17, 4, 6, 0, 3),
    ),
    "a gateway's count of Anthropic's": (
        {"prompt_tokens": 17, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 3, "completion_tokens": 6,
         "total_tokens": 23},
        (17, 4, 6, 0, 3),
    ),
    "cached beside the prompt, as the total shows": (
        {"prompt_tokens": 100, "completion_tokens": 6, "total_tokens": 186,
         "prompt_tokens_details": {"cached_tokens": 80}},
        (180, 80, 6, 0, 0),
    ),
    "more parts than the whole, as the total shows": (
        {"prompt_tokens": 100, "completion_tokens": 6, "total_tokens": 106,
         "prompt_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 80}},
        (100, 80, 6, 0, 20),
    ),
    "an odd part": (
        {"prompt_tokens": 10, "completion_tokens": 6,
         "prompt_tokens_details": {"cached_tokens": {}, "audio_tokens": 4},
         "completion_tokens_details": "none", "server_tool_use": []},
        (10, 0, 6, 0, 0, 0, 4),
    ),
    "every kind": (
        {"prompt_tokens": 100, "completion_tokens": 60, "total_tokens": 160,
         "prompt_tokens_details": {"cache_write_tokens": 30, "cache_write_1h_tokens": 20, "audio_tokens": 7,
                                   "image_tokens": 8},
         "completion_tokens_details": {"audio_tokens": 5, "image_tokens": 6},
         "server_tool_use": {"web_search_requests": 2}},
        (100, 0, 60, 0, 30, 20, 7, 5, 8, 6, 2),
    ),
    "more than a database holds": ({"prompt_tokens": 2**31, "completion_tokens": 1}, (0, 0, 0, 0, 0)),
    # Trap: xAI leaves reasoning out of completion_tokens, and only the total shows it.
    "reasoning beside the completion": (
        {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 16,
         "completion_tokens_details": {"reasoning_tokens": 2}},
        (10, 0, 6, 2, 0),
    ),
    "perplexity's reasoning": (
        {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14, "reasoning_tokens": 2,
         "num_search_queries": 1},
        (10, 0, 6, 2, 0, 0, 0, 0, 0, 0, 1),
    ),
    "perplexity's cached tokens": (
        {"input_tokens": 10, "output_tokens": 4, "input_tokens_details": {"cache_read_input_tokens": 3}},
        (10, 3, 4, 0, 0),
    ),
    "reasoning that is all of it": (
        {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14,
         "completion_tokens_details": {"reasoning_tokens": 4}},
        (10, 0, 4, 4, 0),
    ),
    "more reasoning than completion": (
        {"prompt_tokens": 10, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 7}},
        (10, 0, 11, 7, 0),
    ),
    # Doubleword counts more thoughts than tokens, and its total has the tokens alone.
    "more reasoning than the total allows": (
        {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14,
         "completion_tokens_details": {"reasoning_tokens": 7}},
        (10, 0, 4, 4, 0),
    ),
    "reasoning where the total has no output": (
        {"prompt_tokens": 10, "completion_tokens": 0, "total_tokens": 10,
         "completion_tokens_details": {"reasoning_tokens": 7}},
        (10, 0, 7, 7, 0),
    ),
    "a total that is told as text": (
        {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": "16",
         "completion_tokens_details": {"reasoning_tokens": 2}},
        (10, 0, 6, 2, 0),
    ),
    "a total that is not a number": (
        {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": ["16"],
         "completion_tokens_details": {"reasoning_tokens": 2}},
        (10, 0, 4, 2, 0),
    ),
    "more cached than fed": (
        {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 5}},
        (45, 30, 0, 0, 5),
    ),
    "all of it cached or written": (
        {"prompt_tokens": 35, "prompt_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 5}},
        (35, 30, 0, 0, 5),
    ),
    "sums that no database holds": (
        {"prompt_tokens": 1, "completion_tokens": 2**31 - 1,
         "completion_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 2**31 + 1},
        (0, 0, 0, 0, 0),
    ),
    "parts whose sum no database holds": (
        {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2**31 - 1}},
        (1, 0, 0, 0, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("usage", "counts"), USAGES.values(), ids=USAGES.keys())
def test_usage_is_read_under_each_of_its_spellings(usage: object, counts: tuple[int, ...]) -> None:
    body = json.dumps({"model": "m", "usage": usage}).encode()
    assert answers.answer_tokens(body) == TokenCounts(*counts)
    head = answers.read_answer(body)
    assert head._replace(billed=None) == AnswerHead(TokenCounts(*counts), "m")
    assert (head.billed is None) == (usage != USAGES["cached beside the details, Mistral"][0])


def test_what_was_cached_before_it_had_a_price_is_paid_in_full() -> None:
    usage, counts = USAGES["cached beside the details, Mistral"]
    head = answers.read_answer(json.dumps({"usage": usage}).encode())
    assert head.billed == TokenCounts(*counts)._replace(cached=0)


HEADS = {
    "all there is": (b'{"model":"m","service_tier":"flex","error":null}', AnswerHead(model="m", tier="flex")),
    "a tier in the usage, Mistral": (
        b'{"model":"m","usage":{"service_tier":"flex"}}',
        AnswerHead(model="m", tier="flex"),
    ),
    "nothing": (b"{}", AnswerHead()),
    "of other types": (b'{"model":7,"service_tier":["x"],"usage":{"prompt_tokens":1}}', AnswerHead(TokenCounts(1))),
    "an error": (b'{"error":{"code":"c"}}', AnswerHead(error={"code": "c"})),
    "beside usage that is none": (
        b'{"model":"m","service_tier":"flex","usage":7,"error":"e"}',
        AnswerHead(model="m", tier="flex", error="e"),
    ),
}


@pytest.mark.parametrize(("body", "head"), HEADS.values(), ids=HEADS.keys())
def test_what_an_answer_says_of_itself(body: bytes, head: AnswerHead) -> None:
    assert answers.read_answer(body) == head


@pytest.mark.parametrize("body", [b"null", b"[]", b'"x"', b"{", b""])
@pytest.mark.parametrize("read", [answers.read_answer, answers.answer_tokens], ids=["whole", "tokens"])
def test_an_answer_that_is_no_object_has_no_usage(read: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read(body)


def test_tokens_as_the_usage_of_a_batch() -> None:
    assert answers.usage_of(TokenCounts(10, 3, 4, 2, 5)) == BatchUsage(
        10, InputTokensDetails(3), 4, OutputTokensDetails(2), total_tokens=14
    )


@pytest.mark.parametrize(("uncertain", "more"), [(0, {}), (2, {"uncertain": 2})], ids=["none", "two"])
def test_sends_without_an_answer_are_told_where_there_are_any(uncertain: int, more: dict[str, int]) -> None:
    told = json.loads(msgspec.json.encode(batch_api.Provenance("http://u/v1", 12, 0.5, 3, uncertain)))
    assert told == {"upstream": "http://u/v1", "latency_ms": 12, "upstream_seconds": 0.5, "attempts": 3, **more}


def test_every_key_of_a_batch_is_written_nulls_included() -> None:
    batch = batch_api.Batch(
        id="batch_1", endpoint=CHAT, input_file_id="file-1", completion_window="24h",
        status=batch_api.BatchStatus.VALIDATING, created_at=1,
    )  # fmt: skip
    written = json.loads(msgspec.json.encode(batch))
    assert set(written) == set(batch_api.Batch.__struct_fields__)
    assert written["object"] == "batch"
    assert written["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert written["output_file_id"] is None


def test_the_final_statuses() -> None:
    final = {status.value for status in batch_api.BatchStatus if status.is_final}
    assert final == {"completed", "failed", "expired", "cancelled"}
