"""Fields that Claude models do not take as requested, a line each, with its source. Pure data."""

from __future__ import annotations

from orchestrator.policy.dialect import anthropic_rules as claude
from orchestrator.policy.dialect.recipient import ANTHROPIC_CHAT
from orchestrator.policy.dialect.rules import By, NotAbove, NotTaken, NotTogether, TableRule
from orchestrator.policy.dialect.structured import ask_anthropic, ask_in_prompt

_ANTHROPIC = ("anthropic", ANTHROPIC_CHAT)
_ANY = ""

ANTHROPIC_RULES = (
    TableRule(
        _ANTHROPIC,
        _ANY,
        NotTaken(("temperature", "top_p", "top_k")),
        "szczyglis-dev/py-gpt#184; pydantic-ai's profiles",
        when=claude.takes_no_sampling,
    ),
    TableRule(
        _ANTHROPIC,
        _ANY,
        NotTaken(("seed", "n", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs")),
        "Anthropic's reference of messages: no such fields",
    ),
    TableRule(_ANTHROPIC, _ANY, By(claude.check_fields), "Anthropic's reference of messages"),
    TableRule(_ANTHROPIC, _ANY, NotAbove("temperature", 1), "Anthropic's reference of messages"),
    TableRule(
        _ANTHROPIC,
        _ANY,
        By(claude.leave_out_default_top_p),
        "Anthropic's reference: 1 is what holds without the field",
    ),
    TableRule(
        _ANTHROPIC,
        _ANY,
        NotTogether("temperature", "top_p"),
        "BerriAI/litellm#15097",
        when=claude.takes_one_of_temperature_and_top_p,
    ),
    TableRule(_ANTHROPIC, _ANY, By(claude.check_effort), "Oaklight/llm-rosetta#289; a recorded refusal of xhigh"),
    TableRule(_ANTHROPIC, _ANY, By(claude.bound_answer), "a recorded refusal; Anthropic's model pages"),
    TableRule(_ANTHROPIC, _ANY, By(claude.check_thinking), "freecodexyz/free-code#32, mnfst/modelparams.dev#214"),
    TableRule(_ANTHROPIC, _ANY, By(claude.check_tool_choice), "pydantic-ai's profiles; Anthropic's guide to tools"),
    TableRule(_ANTHROPIC, _ANY, By(claude.check_stops), "BerriAI/litellm#3286"),
    TableRule(
        _ANTHROPIC,
        _ANY,
        By(ask_in_prompt),
        "laurent22/joplin#15801; pydantic-ai's profiles",
        when=claude.takes_no_schema,
    ),
    TableRule(
        (ANTHROPIC_CHAT,),
        _ANY,
        By(ask_in_prompt),
        "Anthropic's page on the OpenAI SDK: response_format is ignored",
    ),
    TableRule(
        (ANTHROPIC_CHAT,),
        _ANY,
        NotTaken(("reasoning_effort",)),
        "the same page: it is ignored",
    ),
    TableRule(_ANTHROPIC, _ANY, By(ask_anthropic), "Anthropic's guide to structured outputs"),
)
