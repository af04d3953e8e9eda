"""Dialect of Bedrock: fields without a counterpart, named before anything is sent."""

from __future__ import annotations

from functools import partial

from orchestrator.backends.bedrock.requests import LEFT_OUT, TAKEN
from orchestrator.policy.dialect import claude_rules, structured
from orchestrator.policy.dialect.rules import By, NotAbove, NotMore, NotTaken, NotTogether, OnlyFields, TableRule

_rule = partial(TableRule, ("bedrock",), "")
_of = partial(TableRule, ("bedrock",), read="2026-11-30")
_CLAUDE = ".*claude"
_SAMPLING = NotTaken(("temperature", "top_p"))

BEDROCK_RULES = (
    _rule(By(structured.ask_in_prompt), "BoundaryML/baml#3036: batches enforce no schema, take no tools"),
    _rule(OnlyFields(TAKEN | LEFT_OUT, " in a batch"), "botocore 1.43: ConverseRequest has no such field"),
    _rule(NotAbove("temperature", 1), "botocore 1.43: temperature is from 0 to 1"),
    _rule(NotMore("stop", 2500), "botocore 1.43: up to 2,500 stop sequences"),
    _of(
        _CLAUDE,
        _SAMPLING,
        "promptfoo/promptfoo#10307: `temperature` is deprecated",
        when=claude_rules.takes_no_sampling,
    ),
    _of(
        _CLAUDE, By(claude_rules.leave_out_default_top_p), "Anthropic's reference: 1 is what holds without the field"
    ),
    _of(
        _CLAUDE,
        NotTogether("temperature", "top_p"),
        "aws-samples/bedrock-access-gateway#191: cannot both be specified",
        when=claude_rules.takes_one_of_temperature_and_top_p,
    ),
    _of(_CLAUDE, By(claude_rules.check_stops), "BerriAI/litellm#3286"),
    _of(_CLAUDE, By(claude_rules.bound_answer), "Anthropic's model pages"),
    _of(
        r".*(xai\.grok|openai\.gpt-[5-9])", _SAMPLING, "NousResearch/hermes-agent#111043, run-llama/llama_index#23211"
    ),
    _of(
        r".*(openai\.gpt-oss|qwen\.)",
        NotTaken(("stop",)),
        "crewAIInc/crewAI#3317, langgenius/dify-official-plugins#1767: no stopSequences",
    ),
)
