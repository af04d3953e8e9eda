"""Dialect of Anthropic: rules for fields of a chat completion that become fields of its Messages. Pure."""

from __future__ import annotations

from functools import partial

from orchestrator.backends.anthropic.schemas import fit_schema, is_taken
from orchestrator.core.errors import InputError
from orchestrator.policy.dialect.claude_rules import BOUNDS, NO_SAMPLING_SINCE, claude_rules
from orchestrator.policy.dialect.draft import Draft, is_number, named
from orchestrator.policy.dialect.families import Claude, claude_efforts, claude_of
from orchestrator.policy.dialect.recipient import ANTHROPIC_CHAT
from orchestrator.policy.dialect.rules import NEUTRAL, By, NotForced, NotTaken, TableRule
from orchestrator.policy.dialect.structured import FIELD, ask_in_prompt, schema_of

_THINKS_SINCE = (3, 7)
_MIN_TOP_P = 0.95
MIN_BUDGET = 1_024
"""Smallest thinking budget, in tokens."""


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
"""Anthropic's names of settings that a task spells differently. With both names, one value would be lost."""
LEFT_OUT = frozenset(
    {
        "logprobs", "top_logprobs", "metadata", "store", "service_tier", "prediction", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention",
    }
)  # fmt: skip
"""Fields without effect on the answer. They are left out, and a message names them."""


def _model(draft: Draft) -> Claude | None:
    return claude_of(draft.model)


def _always_thinks(model: Claude) -> bool:
    """Return True if thinking cannot be turned off. Such a model cannot be forced to call a tool either."""
    return model.line in ("fable", "mythos") or model.since(opus=(5, 5), sonnet=(5, 5))


def check_fields(draft: Draft) -> None:
    """Note the loss of fields without a counterpart in Anthropic's Messages."""
    for name, value in list(draft.fields.items()):
        is_set = value is not None and not (name in NEUTRAL and value == NEUTRAL[name])
        if is_set and name not in TRANSLATED and name not in LEFT_OUT:
            task_name = _TASK_NAMES.get(name)
            draft.lose(name, f"takes no {name}" if task_name is None else f"takes {name} as {task_name}")
    if named(draft.fields.get("response_format"), "type") == "json_object":
        draft.lose("response_format", "takes no json_object, only a json_schema")


def takes_no_schema(draft: Draft) -> bool:
    """Return True for models without structured outputs."""
    model = _model(draft)
    return model is not None and not model.since(opus=(4, 1), other=(4, 5))


def check_effort(draft: Draft) -> None:
    """Note the loss of an effort that the model does not accept. `none` turns thinking off if the model allows it."""
    effort, model = draft.fields.get("reasoning_effort"), _model(draft)
    if effort is None or model is None:
        return
    if effort == "none":
        if _always_thinks(model):
            draft.lose("reasoning_effort", "always thinks, and takes no reasoning_effort none")
        return
    level = "low" if effort == "minimal" else effort
    known = claude_efforts(model)
    is_disabled = named(draft.fields.get("thinking"), "type") == "disabled"
    if is_disabled and model.since(opus=(5, 0)):
        known -= {"xhigh", "max"}
    if level not in known:
        words = f", only {', '.join(sorted(known))}" if known else ""
        draft.lose("reasoning_effort", f"takes no reasoning_effort {effort}{words}")


def check_thinking(draft: Draft) -> None:
    """Note the loss of a kind of thinking that the model does not support, and of sampling fields beside thinking."""
    thinking, model = draft.fields.get("thinking"), _model(draft)
    if not isinstance(thinking, dict) or model is None:
        return
    if thinking.get("type") in ("enabled", "adaptive") and model.version < _THINKS_SINCE:
        draft.lose("thinking", "takes no thinking")
    elif thinking.get("type") == "disabled" and _always_thinks(model):
        draft.lose("thinking", "always thinks, and takes no thinking of type disabled")
    elif thinking.get("type") == "adaptive" and not model.since(opus=(4, 6), sonnet=(4, 6), other=(5, 0)):
        draft.lose("thinking", "takes no adaptive thinking")
    elif thinking.get("type") == "enabled":
        _check_budget(draft, thinking, model)
    is_on = named(draft.fields.get("thinking"), "type") in ("enabled", "adaptive")
    if is_on and draft.fields.get("temperature", 1) != 1:
        draft.lose("temperature", "takes no temperature beside thinking")
    top_p = draft.fields.get("top_p")
    if is_on and is_number(top_p) and top_p < _MIN_TOP_P:
        draft.lose("top_p", f"takes a top_p of at least {_MIN_TOP_P} beside thinking")
    if is_on and draft.fields.get("top_k") is not None:
        draft.lose("top_k", "takes no top_k beside thinking")


def _check_budget(draft: Draft, thinking: dict[str, object], model: Claude) -> None:
    if model.version >= NO_SAMPLING_SINCE:
        draft.lose("thinking", "takes no budget of thinking, only adaptive thinking and a reasoning_effort")
        if draft.drop:
            draft.fields["thinking"] = {"type": "adaptive"}
        return
    budget = thinking.get("budget_tokens")
    bound = next((draft.fields[name] for name in BOUNDS if is_number(draft.fields.get(name))), None)
    if not isinstance(budget, int) or budget < MIN_BUDGET:
        draft.lose("thinking", f"takes a budget of thinking of at least {MIN_BUDGET:,} tokens")
    elif bound is not None and budget >= bound:
        draft.lose("thinking", f"takes no budget of thinking that is not below max_tokens ({budget:,} and {bound:,})")


def forces_no_tool(draft: Draft) -> bool:
    """Return True if the model always thinks, or has a budget for it. Adaptive thinking yields to a forced call."""
    model = _model(draft)
    has_budget = named(draft.fields.get("thinking"), "type") == "enabled"
    return model is not None and (has_budget or _always_thinks(model))


def ask_anthropic(draft: Draft) -> None:
    """Convert the schema for Anthropic. Without such a form, the prompt asks for it."""
    asked = schema_of(draft)
    if asked is None:
        return
    try:
        schema = fit_schema(asked["schema"], FIELD)
    except InputError:
        schema = {}
    if not schema or not is_taken(schema):
        ask_in_prompt(draft)
        return
    draft.fields[FIELD] = {"type": "json_schema", "json_schema": {**asked, "schema": schema}}


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
    _rule(By(ask_anthropic), "Anthropic's guide to structured outputs"),
)
