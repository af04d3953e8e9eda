"""Recorded answers of real providers, against what their own libraries read in them. Skipped where there are none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import genai_prices
import msgspec
import pytest

from orchestrator.backends.anthropic.results import _FINISHES, completion
from orchestrator.core.answers import AnswerHead, read_answer
from orchestrator.core.errors import InputError
from orchestrator.core.model import Price, Usage
from orchestrator.policy.answer_text import Answer, answer_of
from orchestrator.policy.pricing import Tier, rates

RECORDED = Path(__file__).parents[2] / "../shared/real-traffic/recorded.jsonl"
KINDS = ("chat", "responses", "completions", "embeddings", "anthropic", "bedrock_invoke")
MESSAGES = ("anthropic", "bedrock_invoke")
EVENING = datetime(2026, 11, 25, 20, tzinfo=UTC)
HALF = Decimal("0.5")
NEAR = Decimal("1e-9")

pytestmark = pytest.mark.skipif(not RECORDED.exists(), reason="the recordings are not here")


def pairs() -> Iterator[tuple[int, dict[str, Any]]]:
    with RECORDED.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            pair = json.loads(line)
            if pair["status"] == 200 and pair["kind"] in KINDS and pair["expected"]:
                yield number, pair


def read(pair: Mapping[str, Any]) -> tuple[AnswerHead, Answer]:
    body = completion(pair["response"]) if pair["kind"] in MESSAGES else pair["response"]
    raw = msgspec.Raw(json.dumps(body).encode())
    return read_answer(raw), answer_of(raw)


def test_texts_ends_and_refusals_are_those_that_were_recorded() -> None:
    wrong = []
    for number, pair in pairs():
        wanted = pair["expected"]
        _, answer = read(pair)
        if pair["kind"] == "embeddings":
            found: Any = len(json.loads(bytes(answer.data))) if answer.data is not None else 0
            expected: Any = wanted["vectors"]
        else:
            end = _FINISHES.get(wanted["end"], wanted["end"]) if pair["kind"] in MESSAGES else wanted["end"]
            found = answer.text or None, answer.finish_reason, answer.refusal
            expected = wanted["text"] or None, end, wanted["refusal"]
        if found != expected:
            wrong.append((number, found, expected))
    assert wrong == []


def test_tokens_are_those_that_were_recorded() -> None:
    wrong = []
    for number, pair in pairs():
        wanted = pair["expected"]["tokens"]
        if wanted is None:
            continue
        tokens = read(pair)[0].tokens
        found = {
            "input": tokens.input, "cached": tokens.cached, "cache_write": tokens.cache_write,
            "cache_write_1h": tokens.cache_write_1h, "output": tokens.output, "reasoning": tokens.reasoning,
        }  # fmt: skip
        if found != wanted and not is_billed_as(pair, found):
            wrong.append((number, found, wanted))
    assert wrong == []


def is_billed_as(pair: Mapping[str, Any], found: Mapping[str, int]) -> bool:
    """True if xAI's own bill in the answer has the thoughts in the output, which two `expected` of a gateway's leave
    out, against two of xAI's own of the same shape."""
    ticks = pair["response"]["usage"].get("cost_in_usd_ticks")
    if ticks is None or found["output"] != pair["expected"]["tokens"]["output"] + found["reasoning"]:
        return False
    usage = Usage(input_tokens=found["input"], cached_tokens=found["cached"], output_tokens=found["output"])
    price = rates("x-ai", pair["model"], tier=Tier.STANDARD, at=EVENING).price(usage)
    return abs(price.cost - ticks * Decimal("1e-10")) < NEAR


@pytest.mark.parametrize("tier", [Tier.STANDARD, Tier.BATCH])
def test_money_is_what_the_price_table_makes_of_what_was_recorded(tier: Tier) -> None:
    wrong = []
    for number, pair in pairs():
        wanted = (pair["expected"]["usd"] or {}).get(tier)
        # The list names qwen-3-coder at Cerebras without any price, which is $0 there; here it is an error.
        if wanted is None or (Decimal(wanted) == 0 and pair["provider"] == "cerebras"):
            continue
        head, _ = read(pair)
        found = price_of(pair, head, tier)
        if abs(found.cost - Decimal(wanted)) > NEAR:
            wrong.append((number, found, wanted))
    assert wrong == []


def price_of(pair: Mapping[str, Any], head: AnswerHead, tier: Tier) -> Price:
    """What an answer costs. The recordings do not always know whose model it was; then its name says so."""
    known = partial(rates, model=pair["model"], tier=tier, at=EVENING, discount=HALF, answered=head.model)
    try:
        found = known(pair["provider"])
    except InputError:
        found = known(genai_prices.calc_price(genai_prices.Usage(), head.model or pair["model"]).provider.id)
    return found.price(Usage(*(head.billed or head.tokens)))
