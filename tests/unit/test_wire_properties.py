"""What holds for every line, file and answer, whoever wrote it: nothing raises, is lost or is changed."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from orchestrator.core import answers, batch_api, request_lines
from orchestrator.core.answers import AnswerHead, TokenCounts
from orchestrator.core.batch_api import LineError, ResultLine
from orchestrator.core.request_lines import CheckedLine
from orchestrator.server.dispatch.result_lines import answer_line, error_line
from tests.support.examples import ample

CHAT = "/v1/chat/completions"
CODES = {
    "invalid_json_line",
    "invalid_request",
    "invalid_url",
    "missing_required_parameter",
    "streaming_unsupported",
}
BOM = b"\xef\xbb\xbf"
WHITE_SPACE = b" \t\r\n"

# NUL, quotes, backslashes, line separators and the last plane are what a writer of JSON gets wrong.
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\0"\\/\u2028\x7f\ufeff\U0010ffff'))
LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=10
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=4)
PROVENANCE = st.none() | st.just(batch_api.Provenance("http://u/v1", 12, 0.5, 2))


@st.composite
def written(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> bytes:
    """A value as one of the writers of JSON puts it: escaped or not, close together or spread over lines."""
    return json.dumps(
        draw(values), ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, None, 0, 2]))
    ).encode()


@st.composite
def good_lines(draw: st.DrawFn) -> bytes:
    """A good line with other fields in between, on one line."""
    fields = {
        "custom_id": draw(TEXT.filter(bool)),
        "method": "POST",
        "url": CHAT,
        "body": {**draw(OBJECT), "model": draw(TEXT.filter(bool)), "messages": [draw(JSON)], "stream": False},
    }
    more = {key: value for key, value in draw(OBJECT).items() if key not in fields}
    order = draw(st.permutations([*fields, *more]))
    whole = {**fields, **more}
    return json.dumps({key: whole[key] for key in order}, ensure_ascii=draw(st.booleans())).encode()


@st.composite
def damaged(draw: st.DrawFn, sources: st.SearchStrategy[bytes]) -> bytes:
    """What is left of some bytes after a few were cut out, put in or doubled."""
    data = draw(sources)
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        middle = draw(
            st.binary(max_size=4)
            | st.sampled_from(
                [b"\\ud800", b"\\udc00", b"\0", BOM, b"9" * 5000, b"1e999999", b"[" * 5000, b"\xff", b'"']
            )
            | st.just(data[start:end] * 2)
        )
        data = data[:start] + middle + data[end:]
    return data


@pytest.mark.slow
@settings(max_examples=ample(300))
@given(st.binary() | damaged(good_lines()), st.sampled_from([CHAT, "/v1/embeddings", None]))
@example(b"[" * 100_000, CHAT)
@example(b'{"body":' * 30_000, CHAT)
@example(b'{"custom_id":' + b"9" * 10_000 + b"}", CHAT)
@example(b'{"custom_id":1e999999}', CHAT)
@example(b'{"custom_id":"a","custom_id":"b"}', CHAT)
@example(b"\0" * 100, CHAT)
def test_any_bytes_are_a_checked_line_or_one_error(raw: bytes, endpoint: str | None) -> None:
    found = request_lines.check_line(raw, endpoint)
    if isinstance(found, LineError):
        assert found.code in CODES
        assert found.message.endswith(".")
        assert found.line is None, "who reads the file knows the number"
        msgspec.json.encode(found)  # it becomes a part of the batch object
        return
    assert found.custom_id
    assert found.model
    assert found.url == endpoint or endpoint is None
    assert bytes(found.body) in raw
    with suppress(RecursionError):
        told = json.loads(raw, parse_int=str, parse_float=str)
        assert found.custom_id == told["custom_id"]
        assert json.loads(bytes(found.body), parse_int=str, parse_float=str) == told["body"]


@pytest.mark.slow
@settings(max_examples=ample(150))
@given(good_lines())
def test_a_good_line_is_taken_whatever_stands_in_its_texts(raw: bytes) -> None:
    found = request_lines.check_line(raw, CHAT)
    assert isinstance(found, CheckedLine), found
    told = json.loads(raw)
    assert (found.custom_id, found.model) == (told["custom_id"], told["body"]["model"])
    assert json.loads(bytes(found.body)) == told["body"]


@pytest.mark.slow
@settings(max_examples=ample(100))
@given(good_lines(), st.sampled_from([b"\\ud800", b"\\udfff", b"\\ud83dx", b"\\udc00\\ud800", b"\xed\xa0\x80"]))
def test_half_a_surrogate_pair_is_refused_wherever_it_stands(raw: bytes, half: bytes) -> None:
    place = raw.index(b'": "') + len(b'": "')
    found = request_lines.check_line(raw[:place] + half + b"x" + raw[place:], CHAT)
    assert isinstance(found, LineError)
    assert found.code == "invalid_json_line"


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(st.lists(st.binary(max_size=8) | st.sampled_from([b"\n", b"\r\n", b"\r", b" \t", BOM, b"\0", b"\x85"])))
@example([BOM, BOM, b"\n"])
@example([b" \n", BOM, b"{}"])
@example([b"\x0b\n", b"\x1f", b"\n"])
def test_every_byte_of_a_file_is_in_a_line_or_blank(parts: list[bytes]) -> None:
    data = b"".join(parts)
    rest = bytearray(data)
    before = (0, 0)
    for number, offset, raw in request_lines.lines(io.BytesIO(data)):
        assert (number, offset) > before, "numbers and places rise"
        before = (number, offset + len(raw))
        assert data[offset : offset + len(raw)] == raw
        assert data[:offset].count(b"\n") == number - 1
        assert raw.strip(WHITE_SPACE)
        assert b"\n" not in raw
        rest[offset : offset + len(raw)] = b" " * len(raw)
    assert not bytes(rest).removeprefix(BOM).strip(WHITE_SPACE), "bytes that are in no line"


@pytest.mark.slow
@settings(max_examples=ample(150))
@given(written(TEXT), written(OBJECT), st.integers(100, 599), PROVENANCE)
def test_an_answer_keeps_its_content_on_one_line(
    written_id: bytes, body: bytes, status: int, orch: batch_api.Provenance | None
) -> None:
    custom_id = json.loads(written_id)
    line = answer_line(written_id, status, body, orch)
    assert not {b"\n", b"\r"} & {line[place : place + 1] for place in range(len(line))}
    found = msgspec.json.decode(line, type=ResultLine)
    assert found.response is not None
    assert (found.custom_id, found.response.status_code, found.error, found.orch) == (custom_id, status, None, orch)
    assert json.loads(bytes(found.response.body)) == json.loads(body)
    assert json.loads(line)["custom_id"] == custom_id, "read by others as by us"
    assert found.id
    assert found.response.request_id


@settings(max_examples=ample(100))
@given(written(TEXT), TEXT, TEXT, PROVENANCE)
def test_an_error_keeps_its_words_on_one_line(
    written_id: bytes, code: str, message: str, orch: batch_api.Provenance | None
) -> None:
    custom_id = json.loads(written_id)
    line = error_line(written_id, code, message, orch)
    assert b"\n" not in line
    assert b"\r" not in line
    found = msgspec.json.decode(line, type=ResultLine)
    assert (found.custom_id, found.response, found.orch) == (custom_id, None, orch)
    assert found.error == {"code": code, "message": message} == json.loads(line)["error"]


class Named(msgspec.Struct):
    """A line of which the custom_id is read as it was written."""

    custom_id: msgspec.Raw


@pytest.mark.slow
@settings(max_examples=ample(150))
@given(good_lines(), written(OBJECT))
def test_a_custom_id_comes_back_byte_for_byte(raw: bytes, body: bytes) -> None:
    """But for what ends a line in Unicode, which is escaped: readers that split there would lose the row."""
    line = answer_line(msgspec.json.decode(raw, type=Named).custom_id, 200, body, None)
    sent, returned = json.loads(raw)["custom_id"], json.loads(line)["custom_id"]
    assert returned.encode() == sent.encode()
    told = bytes(msgspec.json.decode(line, type=Named).custom_id)
    for mark in ("\x85", "\u2028", "\u2029"):
        assert mark.encode() not in line
        raw = raw.replace(mark.encode(), f"\\u{ord(mark):04x}".encode())
    assert told in raw


@pytest.mark.long
@settings(max_examples=ample(200))
@given(st.binary() | damaged(written(OBJECT)) | written(JSON))
@example(b'{"usage":{"prompt_tokens":' + b"9" * 5000 + b"}}")
@example(b'{"usage":{"prompt_tokens":1e400}}')
@example(b'{"usage":{"prompt_tokens":-1}}')
@example(b'{"a":' + b"[" * 100_000)
@example(b'{"model":"\xff"}')
@example(b'{"usage":[1],"model":"\\ud800"}')
def test_any_answer_has_a_usage_or_is_refused(body: bytes) -> None:
    try:
        head = answers.read_answer(body)
        assert answers.answer_tokens(body) == head.tokens
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Those three are what a reader of an answer catches.
        return
    assert body.lstrip().startswith(b"{")
    assert head.model is None or isinstance(head.model, str)
    assert head.tier is None or isinstance(head.tier, str)
    assert min(head.tokens) >= 0


COUNT = st.integers(0, answers.MOST_TOKENS - 1)
FEW = st.integers(0, 20)


def usage_object(chat: bool, counts: Sequence[int], total: int | None) -> dict[str, Any]:
    """A usage object in one of the two spellings: `counts` as a TokenCounts has them."""
    fed, cached, given_, thought, written = counts[:5]
    names = ("prompt_tokens", "completion_tokens") if chat else ("input_tokens", "output_tokens")
    return {
        names[0]: fed,
        names[1]: given_,
        "total_tokens": total,
        f"{names[0]}_details": {"cached_tokens": cached, "cache_write_tokens": written},
        f"{names[1]}_details": {"reasoning_tokens": thought},
    }


@pytest.mark.slow
@settings(max_examples=ample(100))
@given(OBJECT, TEXT, TEXT, st.lists(COUNT, min_size=2, max_size=2), st.booleans(), st.data())
def test_usage_is_found_among_whatever_else_an_answer_says(
    more: dict[str, Any], model: str, tier: str, wholes: list[int], chat: bool, data: st.DataObject
) -> None:
    assume(not {"usage", "model", "service_tier", "error"} & more.keys())
    fed, given_ = wholes
    cached = data.draw(st.integers(0, fed))
    thought, unwritten = data.draw(st.integers(0, given_)), data.draw(st.integers(0, fed - cached))
    counts = TokenCounts(fed, cached, given_, thought, fed - cached - unwritten)
    usage = usage_object(chat, counts, fed + given_)
    answer = {**more, "model": model, "service_tier": tier, "usage": usage}
    assert answers.read_answer(data.draw(written(st.just(answer)))) == AnswerHead(counts, model, tier)


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(st.booleans(), st.lists(COUNT | FEW, min_size=5, max_size=5), st.none() | COUNT | st.integers())
def test_parts_are_never_more_than_their_whole(chat: bool, counts: list[int], total: int | None) -> None:
    tokens = answers.answer_tokens(json.dumps({"usage": usage_object(chat, counts, total)}).encode())
    assert tokens.cached + tokens.cache_write <= tokens.input < answers.MOST_TOKENS
    assert tokens.reasoning <= tokens.output < answers.MOST_TOKENS
    assert tokens == answers.NO_TOKENS or (tokens.input >= counts[0] and tokens.output >= counts[2])


@given(st.booleans(), FEW, FEW, FEW)
def test_reasoning_that_only_the_total_shows_is_billed(chat: bool, fed: int, given_: int, thought: int) -> None:
    inside = usage_object(chat, (fed, 0, given_ + thought, thought, 0), fed + given_ + thought)
    beside = usage_object(chat, (fed, 0, given_, thought, 0), fed + given_ + thought)
    read = [answers.answer_tokens(json.dumps({"usage": usage}).encode()) for usage in (inside, beside)]
    assert read[0] == read[1] == TokenCounts(fed, 0, given_ + thought, thought)
