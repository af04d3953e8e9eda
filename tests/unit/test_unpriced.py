"""What an answer used that no price covers is named in its row, and makes its price an estimate."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from orchestrator.backends.anthropic.results import completion
from orchestrator.core.answers import answer_tokens
from orchestrator.core.batch_api import ResultLine
from orchestrator.core.model import FinishedRow, Outcome, Price, RequestState, Span, Usage
from orchestrator.policy.merged_rows import merged_row
from orchestrator.policy.pricing import Tier, rates, row_price
from orchestrator.policy.results import FoundLine, outcome
from orchestrator.policy.unpriced import _CALLS, _COUNTS, _TOOLS, may_have_unpriced, unpriced

NOW = datetime(2026, 11, 25, tzinfo=UTC)
TEXT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}
USAGE = {"input_tokens": 1000, "output_tokens": 10, "total_tokens": 1010}


def response(*items: Any, **usage: Any) -> dict[str, Any]:
    return {"object": "response", "status": "completed", "output": [*items, TEXT], "usage": {**USAGE, **usage}}


SHAPES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "tokens only": (response(), ()),
    "searches": (response({"type": "web_search_call"}, {"type": "web_search_call"}), ("web_search_call",)),
    "several tools": (
        response({"type": "file_search_call"}, {"type": "code_interpreter_call"}),
        ("code_interpreter_call", "file_search_call"),
    ),
    "counted in a nested usage": (
        response(server_side_tool_usage_details={"web_search_calls": 2, "image_generation_calls": 0}),
        ("web_search_calls",),
    ),
    "sources of a live search": ({"usage": {"prompt_tokens": 1, "num_sources_used": 3}}, ("num_sources_used",)),
    "moving pictures": ({"usage": {"prompt_tokens_details": {"video_tokens": 258}}}, ("video_tokens",)),
    "a gateway's own tools": (
        {"usage": {"server_tool_use_details": {"tool_calls_executed": 1}}}, ("tool_calls_executed",)),
    "tools of a compound system": (
        {"choices": [{"message": {"content": "x", "executed_tools": [{"type": "search"}]}}]}, ("executed_tools",)),
    "a compound system without tools": ({"choices": [{"message": {"executed_tools": []}}, 1]}, ()),
    "a compaction": (completion({"usage": {"input_tokens": 9, "output_tokens": 2, "iterations": [
        {"type": "compaction", "input_tokens": 5000, "output_tokens": 70},
        {"type": "message", "input_tokens": 9, "output_tokens": 2}]}}), ("iteration_tokens",)),
    "steps that are in the sums": (completion({"usage": {"input_tokens": 9, "output_tokens": 2, "iterations": [
        {"type": "message", "input_tokens": 4, "output_tokens": 1}, 3,
        {"type": "message", "input_tokens": 5, "output_tokens": 1}]}}), ()),
    "code that ran": (completion({"usage": {"server_tool_use": {"code_execution_requests": 1}}}),
                      ("code_execution_requests",)),
    "a count that nobody knows": (response(search_units=3), ("search_units",)),
    "one within the details": (
        {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"document_tokens": 44}}}, ("document_tokens",)),
    "pictures by their number": ({"usage": {"prompt_tokens": 9, "num_pictures": 2}}, ("num_pictures",)),
    "times and costs": ({"usage": {"prompt_tokens": 9, "queue_time": 1.5, "cost": 2, "total_ms": 12}}, ()),
    "parts of what is counted": ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"text_tokens": 9},
        "completion_tokens_details": {"accepted_prediction_tokens": 4}, "prompt_cache_miss_tokens": 9}}, ()),
    "nothing of it": (response(num_server_side_tools_used=0), ()),
    "the user's own function": (response({"type": "function_call", "name": "web_search_call"}), ()),
    "only named in the text": ({"choices": [{"message": {"content": '{"type": "web_search_call"}'}}]}, ()),
    "an odd usage": ({"output": "x", "usage": ["web_search_call"]}, ()),
}  # fmt: skip


TOTALS: dict[str, tuple[dict[str, Any], bool]] = {
    "thoughts in the total alone": ({"prompt_tokens": 35, "completion_tokens": 12, "total_tokens": 109}, True),
    "its parts": ({"prompt_tokens": 35, "completion_tokens": 12, "total_tokens": 47}, False),
    "a total below its parts": ({"prompt_tokens": 35, "completion_tokens": 12, "total_tokens": 40}, False),
    "thoughts beside the completion": (
        {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 334,
         "completion_tokens_details": {"reasoning_tokens": 320}}, False),
    "a cache beside the prompt": (
        {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 112, "cache_read_input_tokens": 100}, False),
    "a total alone": ({"total_tokens": 12}, False),
    "a total as text": ({"prompt_tokens": 35, "completion_tokens": 12, "total_tokens": "109"}, False),
}  # fmt: skip


@pytest.mark.parametrize(("usage", "is_beyond"), TOTALS.values(), ids=TOTALS.keys())
def test_tokens_that_are_in_the_total_alone_are_named(usage: dict[str, Any], is_beyond: bool) -> None:
    text = {"content": 'a "total_tokens": 99999 of its own'}
    raw = json.dumps({"choices": [{"message": text, "finish_reason": "stop"}], "usage": usage}).encode()
    told = answer_tokens(raw)
    assert unpriced(raw, told.input + told.output) == (("uncounted_tokens",) if is_beyond else ())
    price, names = priced_and_named({"choices": [{"message": text, "finish_reason": "stop"}], "usage": usage})
    assert names == (["uncounted_tokens"] if is_beyond else None)
    assert price.unpriced == is_beyond


@pytest.mark.parametrize(("body", "names"), SHAPES.values(), ids=SHAPES.keys())
def test_what_no_price_covers_is_named(body: dict[str, Any], names: tuple[str, ...]) -> None:
    assert unpriced(json.dumps(body).encode()) == names


SEARCHES: dict[str, dict[str, Any]] = {
    "anthropic": completion({"usage": {"server_tool_use": {"web_search_requests": 3, "web_fetch_requests": 1}}}),
    "openrouter": {"usage": {"prompt_tokens": 1, "server_tool_use_details": {"web_search_requests": 3}}},
    "perplexity": {"usage": {"prompt_tokens": 1, "num_search_queries": 3}},
    "as text, beside something odd": {"usage": {"server_tool_use": {"web_search_requests": "3"}, "y": 1e999}},
}


@pytest.mark.parametrize("body", SEARCHES.values(), ids=SEARCHES)
def test_web_searches_are_counted_as_each_provider_tells_them(body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode().replace(b"Infinity", b"1e999")
    assert answer_tokens(raw).web_searches == 3
    used = Usage(*answer_tokens(raw))
    price = rates("perplexity", "sonar-deep-research", tier=Tier.STANDARD, at=NOW).price(used)
    free = rates("openai", "o1-mini", tier=Tier.STANDARD, at=NOW).price(used)
    assert (price.unpriced, free.unpriced, free.estimated) == (False, True, True)


@pytest.mark.parametrize("name", [*_CALLS, *_COUNTS, _TOOLS])
def test_a_body_with_any_of_the_names_is_decoded_for_it(name: str) -> None:
    assert may_have_unpriced(f'{{"usage": {{"{name}": 1}}}}'.encode())


@pytest.mark.parametrize(
    "body",
    [
        {"usage": {"a": {"b": {"c": 1}, "video_tokens": 2}}},
        {"choices": [{"usage": {"prompt_tokens": 1}}], "usage": {"video_tokens": 2}},
        {"object": "usage", "usage": {"video_tokens": 2}},
    ],
    ids=["three levels", "two usages", "the word as a value"],
)
def test_a_usage_in_an_unusual_place_or_shape_is_read(body: dict[str, Any]) -> None:
    assert unpriced(json.dumps(body).encode()) == ("video_tokens",)


def test_a_body_that_cannot_be_read_names_nothing() -> None:
    assert unpriced(b'{"output": [{"type": "web_search_call"') == ()


@pytest.mark.parametrize("items", [(), ({"type": "web_search_call"},)], ids=["tokens only", "a search"])
def test_its_row_says_so_and_its_price_is_an_estimate(items: tuple[dict[str, Any], ...]) -> None:
    price, names = priced_and_named(response(*items))
    assert price.cost == Decimal("0.000054"), "the tokens alone"
    assert (price.estimated, names) == ((True, ["web_search_call"]) if items else (False, None))


def priced_and_named(body: dict[str, Any]) -> tuple[Price, list[str] | None]:
    """What a row with this answer costs, and what its merged row names as left out."""
    line = json.dumps({"custom_id": "a", "response": {"status_code": 200, "body": body}}).encode()
    found = FoundLine(Span(0, len(line)), msgspec.json.decode(line, type=ResultLine))
    answered = outcome(0, "output", found, None)
    assert isinstance(answered, Outcome)
    price = row_price("openai", "gpt-5-nano", answered, asked=Tier.STANDARD, at=NOW)
    row = FinishedRow(
        0, "a", "d", "t", "m", "p", None, RequestState.SUCCEEDED, 0, None, None, None, None, answered.usage, None,
        price.cost, None, None, None, None, None,
    )  # fmt: skip
    return price, json.loads(merged_row(row, line, None))["provenance"].get("unpriced")
