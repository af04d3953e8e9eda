"""Lines of results stay whole for every reader, whatever the characters of an answer."""

from __future__ import annotations

import json
from decimal import Decimal

import httpx2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.jsonl import single_line
from orchestrator.core.model import FinishedRow, RequestState, Span, Usage
from orchestrator.policy.merged_rows import batch_row, merged_row
from orchestrator.server.dispatch.result_lines import answer_line, error_line

SEPARATORS = "\u2028\u2029\x85"


def sdk_lines(content: bytes) -> list[str]:
    """The lines as the HTTP client of the SDKs splits them."""
    return list(
        httpx2.Response(200, content=content, headers={"Content-Type": "text/plain; charset=utf-8"}).iter_lines()
    )


@given(st.text(st.sampled_from(SEPARATORS + 'a"\\\u2027\u0084Ã\u2026\U0001f600')))
def test_a_line_stays_one_line_and_means_the_same(text: str) -> None:
    line = single_line(msgspec.json.encode({"a": text, text: 1}))
    assert len(line.decode().splitlines()) == 1
    assert json.loads(line) == {"a": text, text: 1}


def test_lines_without_separators_are_the_same_bytes() -> None:
    for line in (b'{"a":1}', '{"a":"\u2026 Ã \u20ac"}'.encode()):
        assert single_line(line) is line


@pytest.mark.parametrize("mark", SEPARATORS)
def test_result_lines_of_the_server(mark: str) -> None:
    custom_id = json.dumps(f"a{mark}b", ensure_ascii=False).encode()
    body = json.dumps({"choices": [{"message": {"content": f"x{mark}y"}}]}, ensure_ascii=False).encode()
    lines = [answer_line(custom_id, 200, body, None), error_line(custom_id, "upstream_error", f"no{mark}no", None)]
    found = [json.loads(line) for line in sdk_lines(b"\n".join(lines) + b"\n")]
    assert [line["custom_id"] for line in found] == [f"a{mark}b"] * 2
    assert found[0]["response"]["body"]["choices"][0]["message"]["content"] == f"x{mark}y"
    assert found[1]["error"]["message"] == f"no{mark}no"


@pytest.mark.parametrize("mark", SEPARATORS)
def test_merged_rows_in_both_styles(mark: str) -> None:
    text = f"x{mark}y"
    row = FinishedRow(
        0, text, text, "t", "m", "p", None, RequestState.SUCCEEDED, 1, Span(0, 1), None, None, None, Usage(), None,
        Decimal(0), None, None, None, None, None,
    )  # fmt: skip
    result = json.dumps(
        {"custom_id": "0", "response": {"status_code": 200, "body": {"choices": [{"message": {"content": text}}]}}},
        ensure_ascii=False,
    ).encode()
    lines = [merged_row(row, result, None), batch_row(row, result), batch_row(row, None)]
    found = [json.loads(line) for line in sdk_lines(b"\n".join(lines) + b"\n")]
    assert [line["custom_id"] for line in found] == [text] * 3
    assert (found[0]["document"], found[0]["output"]) == (text, text)
