"""Wherever the server reads what others wrote: nothing raises anything but what it says, whatever it is given."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from orchestrator.core import answers, batch_api, request_lines
from orchestrator.core.answers import NO_TOKENS
from orchestrator.core.batch_api import JSON_ERRORS, MAX_DEPTH
from orchestrator.core.error_body import MAX_MESSAGE
from orchestrator.core.retry_after import retry_after
from orchestrator.server import multipart
from orchestrator.server.api.content import content
from orchestrator.server.api.http import ApiError
from orchestrator.server.dispatch import body_changes, packing, torn_result_lines
from orchestrator.server.dispatch.client import MAX_RETRY_AFTER, Reply, is_object
from orchestrator.server.dispatch.concurrency_limiter import ConcurrencyLimiter
from orchestrator.server.dispatch.gauges import MOST, read_gauges
from orchestrator.server.dispatch.outcomes import outcome_of
from orchestrator.server.dispatch.pages import models_in, paths_in
from orchestrator.server.dispatch.rate_limiter import (
    LONGEST_HOLD,
    RateLimiter,
    Standings,
    read_standings,
    reset_seconds,
)
from orchestrator.server.dispatch.result_lines import error_body
from orchestrator.server.dispatch.retry import Action, End, RetryVerdict, account_problem
from orchestrator.server.dispatch.stats import Stats
from orchestrator.server.ordered_results import ResultSource, read_page
from orchestrator.server.unsuccessful_rows import CAUSES, copy_leftovers
from tests.support.examples import ample

NOW = datetime(2026, 12, 1, tzinfo=UTC)
NUMBERS = ["0", "-1", "1.5", "1e308", "1e999", "-1e999", "9" * 25, "9" * 5000, "2147483648", "5e-324", "nan", "inf"]
LEAVES = st.sampled_from([*NUMBERS, "true", "null", '"text"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\ud800"', '"\xff"'])
NAMES = st.sampled_from(
    [
        *("usage", "model", "error", "message", "code", "type", "detail", "data", "id", "index", "embedding", "loc"),
        *("prompt_tokens", "completion_tokens", "total_tokens", "input", "custom_id", "response", "status_code"),
        *("guided_json", "guided_regex", "structured_outputs", "extra_body", "priority", "max_tokens", "paths"),
    ]
)  # fmt: skip


def _object(fields: dict[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def _list(items: list[str]) -> str:
    return "[" + ",".join(items) + "]"


def _wrapped(value: str, depth: int) -> str:
    return '{"a":' * depth + value + "}" * depth


VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4).map(_list)
        | st.dictionaries(NAMES, inner, max_size=5).map(_object)
        | st.tuples(inner, st.sampled_from([1, MAX_DEPTH, 985, 1100])).map(lambda pair: _wrapped(*pair))
    ),
    max_leaves=12,
)
"""JSON, or nearly: numbers beyond what Python has, half characters, and nests deeper than a stack."""
TEXTS = st.dictionaries(NAMES, VALUES, max_size=5).map(_object) | VALUES
BYTES = TEXTS.map(lambda text: text.encode("latin-1")) | st.binary(max_size=200)
SPANS = st.sampled_from(["1s", "6m0s", "9" * 400 + "h", "-1s", "1_0"])
WORDS = st.text(max_size=30) | st.sampled_from(NUMBERS) | SPANS
DATES = st.sampled_from(
    [
        *("Mon, 01 Jan 99999999999 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:00 +99999999999999", "Wed, 21 Oct 2015"),
        *("Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 01 Jan 0001 00:00:00 +2359", "9999-12-31T23:59:59-23:59"),
        *("0001-01-01T00:00:00+23:59", "2026-12-01T00:00:10Z", "99999-01-01T00:00:00Z"),
    ]
)


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), WORDS | DATES))
def test_any_retry_after_is_seconds_or_nothing(headers: dict[str, str]) -> None:
    found = retry_after(headers.get, NOW, most=MAX_RETRY_AFTER)
    assert found is None or 0 <= found <= MAX_RETRY_AFTER


@given(WORDS | DATES)
def test_any_reset_is_seconds_or_nothing(text: str) -> None:
    found = reset_seconds(text, NOW)
    assert found is None or 0 <= found < math.inf


def test_a_header_of_endless_digits_is_looked_at_once() -> None:
    """In time that grows with its length: what is quadratic would hold up everybody for minutes."""
    text = "9" * 300_000 + "x"
    assert reset_seconds(text, NOW) is None
    assert retry_after({"retry-after": text}.get, NOW, most=MAX_RETRY_AFTER) is None


def named(family: str) -> list[str]:
    return [family.format(part, what) for part in ("limit", "remaining", "reset") for what in ("requests", "tokens")]


RATES = [*named("x-ratelimit-{0}-{1}"), *named("anthropic-ratelimit-{1}-{0}")]
SAID = st.dictionaries(st.sampled_from(RATES), WORDS | DATES)
COUNTS = st.integers(0, 2**32)


@given(st.lists(st.tuples(SAID, COUNTS, COUNTS), max_size=20))
def test_whatever_headers_and_usage_say_of_rates_rows_go_on(told: list[tuple[dict[str, str], int, int]]) -> None:
    """No wait is without end, and once it is over a row goes: an upstream cannot stop a batch for good."""
    rate_limiter, now = RateLimiter(), 0.0
    for headers, likely, used in told:
        now += rate_limiter.wait(now)
        assert rate_limiter.wait(now) == pytest.approx(0.0, abs=1e-3)
        ticket = rate_limiter.take(now, likely)
        said = read_standings(headers.get, NOW)
        if isinstance(said, Standings):
            rate_limiter.told(now, ticket, said)
        rate_limiter.settle(ticket, used)
        assert rate_limiter.wait(now) <= 4 * LONGEST_HOLD
        json.dumps(rate_limiter.state(now), allow_nan=False)


GAUGES = st.sampled_from(
    [f"vllm:{name}" for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")]
    + ["vllm:cache_config_info"]
)
CACHES = [f'{{num_gpu_blocks="{"9" * digits}",block_size="{"9" * digits}"}}' for digits in (2, 12, 5000)]
LABELS = st.sampled_from(["", "{}", *CACHES])
SAMPLES = st.builds("{}{} {}\n".format, GAUGES, LABELS, st.sampled_from([*NUMBERS, "1e308", "--", "e"]))
PAGES = st.lists(SAMPLES, max_size=8).map(lambda lines: "".join(lines).encode())


@given(st.lists(PAGES | st.binary(max_size=300), min_size=1, max_size=4))
def test_any_page_of_gauges_can_be_followed(pages: list[bytes]) -> None:
    limiter = ConcurrencyLimiter(1024)
    for now, page in enumerate(pages):
        found = read_gauges(page)
        if found is not None:
            assert 0 <= found[1] <= MOST
        limiter.observe(float(now), 5, None if found is None else found[0])
        assert 0 < limiter.limit <= 1024


def test_a_page_of_open_labels_is_looked_at_once() -> None:
    assert read_gauges(b'vllm:num_requests_running{a="1"\n' * 200_000) is None


@given(BYTES)
def test_any_page_of_models_or_paths_is_read_or_refused(page: bytes) -> None:
    with suppress(*JSON_ERRORS):
        assert all(isinstance(model["id"], str) for model in models_in(page))
    with suppress(*JSON_ERRORS):
        assert all(isinstance(path, str) for path in paths_in(page))


@given(BYTES, st.sampled_from(sorted(body_changes.PRIORITISED)), st.booleans())
def test_any_body_can_be_prepared_or_is_refused(body: bytes, endpoint: str, vllm: bool) -> None:
    assert body_changes.likely_tokens(body) <= len(body) + body_changes.MOST_GENERATED
    with suppress(body_changes.BodyError):
        sent = body_changes.prepare(body, endpoint=endpoint, vllm=vllm, model="m", priority=100, tier="flex")
        assert isinstance(sent, bytes)
    for status in (400, 422):
        body_changes.is_priority_refused(status, body)


@given(st.lists(BYTES, min_size=1, max_size=3), BYTES)
def test_any_row_is_packed_or_goes_alone_and_any_answer_is_split_or_refused(rows: list[bytes], answer: bytes) -> None:
    for row in rows:
        packing.read("/v1/embeddings", row)
    good = [packing.read("/v1/embeddings", b'{"model":"m","input":"%d"}' % number) for number in range(2)]
    known = [row for row in good if row is not None]
    with suppress(packing.PackError):
        assert len(packing.split(answer, known)) == 2


ENTRIES = b'{"data":[{"index":0,"embedding":[]},{"index":1,"embedding":[]}],'


@given(VALUES, VALUES)
@example("1e999", "{}")
def test_no_usage_and_no_id_cost_the_answers_of_a_pack(usage: str, name: str) -> None:
    answer = ENTRIES + f'"usage":{usage},"id":{name}}}'.encode("latin-1")
    if not is_object(answer):
        return
    rows = [packing.read("/v1/embeddings", b'{"model":"m","input":"%d"}' % number) for number in range(2)]
    assert len(packing.split(answer, [row for row in rows if row is not None])) == 2


@given(BYTES, st.integers(100, 999), st.sampled_from(End), st.sampled_from(Action))
def test_any_answer_is_one_line_that_is_read_again(body: bytes, status: int, end: End, action: Action) -> None:
    account_problem(status, body)
    answer = body if is_object(body) else b""
    if status < 300 and not answer:
        status = 500
    stats = Stats()
    reply, verdict = Reply(end, status, answer), RetryVerdict(action, "why")
    kind, written, tokens = outcome_of(msgspec.Raw(b'"a"'), reply, verdict, None, stats)
    assert b"\n" not in written
    line = msgspec.json.decode(written, type=batch_api.ResultLine)
    assert line.custom_id == "a"
    assert (kind == "output") == (status < 300 and action is Action.KEEP)
    assert stats.ended == 1
    if kind == "output":
        assert line.response is not None
        assert answers.answer_tokens(line.response.body) == tokens
    else:
        assert tokens == NO_TOKENS


def test_an_error_message_without_end_is_cut() -> None:
    for message in ('"' + "x" * 10**6 + '"', "[" + "1," * 10**6 + "1]"):
        reply = Reply(End.ANSWERED, 400, f'{{"error":{{"message":{message}}}}}'.encode())
        assert len(error_body(reply)) <= MAX_MESSAGE + 200


@pytest.mark.slow
@settings(max_examples=ample(40))
@given(st.lists(BYTES | st.just(b'{"custom_id":"a","response":{"status_code":200,"body":null}}'), max_size=6))
def test_any_result_file_is_recovered_paged_and_retried(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("results")
    for kind in ("output", "error"):
        (folder / f"{kind}.jsonl").write_bytes(b"\n".join([*lines, b"torn"]))
    (folder / "input").write_bytes(b"\n".join(lines))
    read_page(ResultSource(folder / "input", folder, {}), None, 10)
    copy_leftovers(folder / "input", folder / "error.jsonl", folder / "left", CAUSES)
    known = [row.custom_id for row in torn_result_lines.recover(folder / "output.jsonl")]
    assert known == [row.custom_id for row in torn_result_lines.recover(folder / "output.jsonl")]
    assert None not in known


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth_of, inner), default=0) if isinstance(value, dict | list) else 0


@given(
    st.recursive(
        st.text(st.sampled_from('"\\[]{}:,a')) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('"\\[]{}')), inner, max_size=3)
        ),
        max_leaves=30,
    ),
    st.booleans(),
    st.integers(1, 40),
)
def test_depth_is_found_without_recursion(value: Any, spread: bool, block: int) -> None:
    raw = json.dumps(value, indent=1 if spread else None).encode()
    depth = depth_of(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(request_lines, "_BLOCK", block)
        patched.setattr(request_lines, "_FEW_STEPS", 1 + block // 8)
        assert not request_lines.is_too_deep(raw, depth)
        assert depth == 0 or request_lines.is_too_deep(raw, depth - 1)


@given(BYTES)
def test_looking_for_depth_and_id_raises_nothing(raw: bytes) -> None:
    request_lines.is_too_deep(raw, 1)
    request_lines.find_custom_id(raw)


@given(st.text(), st.dictionaries(st.text(), st.text() | st.just({"custom_id": "inner"})), st.booleans())
def test_an_id_is_found_as_it_is_written(custom_id: str, more: dict[str, Any], first: bool) -> None:
    fields = {"custom_id": custom_id, **{key: value for key, value in more.items() if key != "custom_id"}}
    raw = json.dumps(fields if first else dict(reversed(fields.items()))).encode()
    found = request_lines.find_custom_id(raw)
    try:
        custom_id.encode()
    except UnicodeEncodeError:
        assert found is None
    else:
        assert found is not None
        assert json.loads(bytes(found)) == custom_id


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "raw",
    [
        *(b'{"a":"' + b'\\"' * 10**6, b'{"a":' + b'"' * 999_999, b"[" * 10**6),
        *(b'{"' + b"\\" * 999_999, b'"' * 10**6 + b"\\", b"[" + b"[[]]," * 10**6),
    ],
    ids=["quotes", "strings", "lists", "backslashes", "odd", "pairs"],
)
def test_damaged_lines_are_looked_at_once(raw: bytes) -> None:
    """In time that grows with the line: quadratic ones would take hours."""
    request_lines.find_custom_id(raw)
    request_lines.is_too_deep(raw * 3)


async def _stream(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


HEADERS = [
    b'Content-Disposition: form-data; name="file"; filename="a.jsonl"',
    b"Content-Disposition: form-data; name=purpose",
    b"content-disposition: form-data; name=\"file\"; filename*=utf-8''%ff",
    b'Content-Disposition: form-data; name="\xff"; filename="\\"',
    b"Content-Disposition: form-data; name=file; filename=" + b"n" * 9000,
    *(b"Content-Disposition:", b"x", b": y", b"\xff: \xff"),
]
PART = st.tuples(st.lists(st.sampled_from(HEADERS), max_size=3), st.binary(max_size=40)).map(
    lambda part: b"--b\r\n" + b"\r\n".join([*part[0], b"", part[1]]) + b"\r\n"
)
PARTS = st.lists(PART, max_size=4).map(lambda parts: b"".join([*parts, b"--b--\r\n"]))
LATIN = st.text(st.characters(max_codepoint=255), max_size=60)
KINDS = (st.sampled_from(["boundary=b", 'boundary="b', "boundary=" + "b" * 999, "boundary"]) | LATIN).map(
    lambda text: f"multipart/form-data; {text}"
)


@given(PARTS | st.binary(max_size=200), KINDS, st.sampled_from([1, 7, 1000]))
def test_any_form_is_taken_in_or_refused_and_then_leaves_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, kind: str, size: int
) -> None:
    path = tmp_path_factory.mktemp("form") / "file"
    try:
        found = asyncio.run(multipart.receive(_stream(data, size), kind, path, 1000))
    except (multipart.BadUpload, multipart.TooLarge):
        assert not path.exists()
    else:
        assert path.stat().st_size == found.bytes


@given(st.text(max_size=40) | st.from_regex(r"bytes=\s*\d*-\d*\s*", fullmatch=True))
def test_any_range_is_a_part_the_whole_or_behind_the_end(
    tmp_path_factory: pytest.TempPathFactory, wanted: str
) -> None:
    path: Path = tmp_path_factory.mktemp("range") / "file"
    path.write_bytes(b"0123456789")
    value = wanted.encode(errors="replace")
    scope = {"type": "http", "method": "GET", "headers": [(b"range", value)], "path": "/", "query_string": b""}
    try:
        answer = content(Request(scope), path, "tag", "name")
        status = answer.status_code
        answer._file.close()  # type: ignore[attr-defined]
    except ApiError as error:
        status = error.status
    assert status in (200, 206, 416)
