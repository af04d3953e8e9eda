"""Dialect of Anthropic: how fields of a chat completion become fields of Anthropic's Messages. Pure."""

from __future__ import annotations

from functools import partial

from orchestrator.policy.dialect.claude_rules import (
    check_effort,
    check_thinking,
    claude_rules,
    forces_no_tool,
    takes_no_schema,
)
from orchestrator.policy.dialect.closed_schemas import ask_closed
from orchestrator.policy.dialect.draft import Draft, named
from orchestrator.policy.dialect.recipient import ANTHROPIC_CHAT
from orchestrator.policy.dialect.rules import NEUTRAL, By, NotForced, NotTaken, TableRule
from orchestrator.policy.dialect.structured import ask_in_prompt

TRANSLATED = frozenset(
    {
        "model", "messages", "max_tokens", "max_completion_tokens", "stop", "temperature", "top_p", "top_k", "tools",
        "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort", "user", "safety_identifier",
        "thinking", "cache_control",
    }
)  # fmt: skip
_TASK_NAMES = {
    "stop_sequences": "`stop`",
    "output_config": "`reasoning_effort`, and the task's `schema`",
    "output_format": "the task's `schema`",
}
"""Anthropic's names for settings that a task spells differently. If a task used both, one value would be lost."""
LEFT_OUT = frozenset(
    {
        "logprobs", "top_logprobs", "metadata", "store", "service_tier", "prediction", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention",
    }
)  # fmt: skip
"""Fields that do not affect the answer. They are omitted, and a message names them."""


def check_fields(draft: Draft) -> None:
    """Record fields that would be lost because Anthropic's Messages has no counterpart."""
    for name, value in list(draft.fields.items()):
        is_set = value is not None and not (name in NEUTRAL and value == NEUTRAL[name])
        if is_set and name not in TRANSLATED and name not in LEFT_OUT:
            task_name = _TASK_NAMES.get(name)
            draft.lose(name, f"takes no {name}" if task_name is None else f"takes {name} as {task_name}")
    if named(draft.fields.get("response_format"), "type") == "json_object":
        draft.lose("response_format", "takes no json_object, only a json_schema")


_PROVIDERS = ("anthropic", ANTHROPIC_CHAT)
_rule = partial(TableRule, _PROVIDERS, "")
_chat_rule = partial(TableRule, (ANTHROPIC_CHAT,), "")

ANTHROPIC_RULES = (
    *claude_rules(_PROVIDERS, ""),
    _rule(
        NotTaken(("seed", "n", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs")),
        "Anthropic's reference of messages: no such fields",
    ),
    _rule(By(check_fields), "Anthropic's reference of messages"),
    _rule(By(check_effort), "Oaklight/llm-rosetta#289; a recorded refusal of xhigh"),
    _rule(By(check_thinking), "freecodexyz/free-code#32, mnfst/modelparams.dev#214"),
    _rule(NotForced(), "pydantic-ai's profiles; Anthropic's guide to tools", when=forces_no_tool),
    _rule(By(ask_in_prompt), "laurent22/joplin#15801; pydantic-ai's profiles", when=takes_no_schema),
    _chat_rule(By(ask_in_prompt), "Anthropic's page on the OpenAI SDK: response_format is ignored"),
    _chat_rule(NotTaken(("reasoning_effort",)), "the same page: it is ignored"),
    _rule(By(ask_closed), "Anthropic's guide to structured outputs"),
)
