"""Dialect of Bedrock: reports fields without a counterpart before orch sends anything."""

from __future__ import annotations

from functools import partial

from orchestrator.backends.bedrock.requests import KNOWN
from orchestrator.policy.dialect.claude_rules import claude_rules
from orchestrator.policy.dialect.rules import By, NotAbove, NotMore, NotTaken, OnlyFields, TableRule
from orchestrator.policy.dialect.structured import ask_in_prompt

_rule = partial(TableRule, ("bedrock",), "")
_of = partial(TableRule, ("bedrock",), read="2026-11-30")

BEDROCK_RULES = (
    _rule(By(ask_in_prompt), "BoundaryML/baml#3036: batches enforce no schema, take no tools"),
    _rule(OnlyFields(KNOWN, " in a batch"), "botocore 1.43: ConverseRequest has no such field"),
    _rule(NotAbove("temperature", 1), "botocore 1.43: temperature is from 0 to 1"),
    _rule(NotMore("stop", 2500), "botocore 1.43: up to 2,500 stop sequences"),
    *claude_rules(("bedrock",), ".*claude"),
    _of(r".*(xai\.grok|openai\.gpt-[5-9])", NotTaken(("temperature", "top_p")), "NousResearch/hermes-agent#111043"),
    _of(r".*(openai\.gpt-oss|qwen\.)", NotTaken(("stop",)), "crewAIInc/crewAI#3317: no stopSequences"),
)
