"""Rules of Claude models that hold at every provider of Claude. Pure."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from orchestrator.policy.dialect.draft import Draft, is_number, named
from orchestrator.policy.dialect.families import Claude, claude_efforts, claude_most_tokens, claude_of
from orchestrator.policy.dialect.rules import Bounded, By, NotAbove, NotTaken, NotTogether, TableRule

NO_SAMPLING_SINCE = (4, 7)
_THINKS_SINCE = (3, 7)
_MIN_TOP_P = 0.95
_MIN_BUDGET = 1_024
"""Smallest thinking budget, in tokens."""
BOUNDS = ("max_completion_tokens", "max_tokens")


def takes_sampling(model: str) -> bool:
    """True for models that accept temperature, top_p and top_k, and for names without a version."""
    claude = claude_of(model)
    return claude is None or claude.version < NO_SAMPLING_SINCE


def takes_one_of_temperature_and_top_p(draft: Draft) -> bool:
    """True for models that refuse a request with both temperature and `top_p`."""
    claude = claude_of(draft.model)
    return claude is not None and claude.since(opus=(4, 1), other=(4, 5))


def leave_out_default_top_p(draft: Draft) -> None:
    """Drop a `top_p` or temperature of 1, which is the default."""
    for name in ("temperature", "top_p"):
        if draft.fields.get(name) == 1:
            del draft.fields[name]


def bound_answer(draft: Draft) -> None:
    """Lower an answer's token limit to the model's maximum, which no answer exceeds."""
    claude = claude_of(draft.model)
    most = None if claude is None else claude_most_tokens(claude)
    for name in BOUNDS:
        Bounded(name, most=most).apply(draft)


def check_stops(draft: Draft) -> None:
    """Note the loss of stop sequences that are only whitespace. With `drop`, the other stop sequences stay."""
    stop = draft.fields.get("stop")
    stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list | tuple) else []
    remaining = [one for one in stops if not isinstance(one, str) or one.strip()]
    if len(remaining) == len(stops):
        return
    draft.lose("stop", "takes no stop of whitespace alone")
    if draft.drop and remaining:
        draft.fields["stop"] = remaining


def _always_thinks(model: Claude) -> bool:
    """True if thinking cannot be turned off. Such a model cannot be forced to call a tool either."""
    return model.line in ("fable", "mythos") or model.since(opus=(5, 5), sonnet=(5, 5))


def takes_no_schema(draft: Draft) -> bool:
    """True for models without structured outputs."""
    model = claude_of(draft.model)
    return model is not None and not model.since(opus=(4, 1), other=(4, 5))


def check_effort(draft: Draft) -> None:
    """Note the loss of an effort that the model does not accept. `none` turns thinking off if the model allows it."""
    effort, model = draft.fields.get("reasoning_effort"), claude_of(draft.model)
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
    """Note the loss of thinking that the model does not support, and of fields that thinking rules out."""
    thinking, model = draft.fields.get("thinking"), claude_of(draft.model)
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
        draft.lose("temperature", "takes no temperature with thinking")
    top_p = draft.fields.get("top_p")
    if is_on and is_number(top_p) and top_p < _MIN_TOP_P:
        draft.lose("top_p", f"takes a top_p of at least {_MIN_TOP_P} with thinking")
    if is_on and draft.fields.get("top_k") is not None:
        draft.lose("top_k", "takes no top_k with thinking")


def _check_budget(draft: Draft, thinking: dict[str, object], model: Claude) -> None:
    if model.version >= NO_SAMPLING_SINCE:
        draft.lose("thinking", "takes no thinking budget, only adaptive thinking and a reasoning_effort")
        if draft.drop:
            draft.fields["thinking"] = {"type": "adaptive"}
        return
    budget = thinking.get("budget_tokens")
    bound = next((draft.fields[name] for name in BOUNDS if is_number(draft.fields.get(name))), None)
    if not isinstance(budget, int) or budget < _MIN_BUDGET:
        draft.lose("thinking", f"takes a thinking budget of at least {_MIN_BUDGET:,} tokens")
    elif bound is not None and budget >= bound:
        draft.lose("thinking", f"takes only a thinking budget below max_tokens ({budget:,} and {bound:,})")


def forces_no_tool(draft: Draft) -> bool:
    """True if the model cannot be forced to call a tool: it always thinks, or the request sets a thinking budget."""
    model = claude_of(draft.model)
    has_budget = named(draft.fields.get("thinking"), "type") == "enabled"
    return model is not None and (has_budget or _always_thinks(model))


def claude_rules(providers: Collection[str], models: str) -> tuple[TableRule, ...]:
    """Return the rules of Claude models for these providers. `models` is the pattern of the models' names there."""
    rule = partial(TableRule, providers, models)
    return (
        rule(
            NotTaken(("temperature", "top_p", "top_k")),
            "szczyglis-dev/py-gpt#184, promptfoo/promptfoo#10307; pydantic-ai's profiles",
            when=lambda draft: not takes_sampling(draft.model),
        ),
        rule(NotAbove("temperature", 1), "Anthropic's reference of messages"),
        rule(By(leave_out_default_top_p), "Anthropic's reference: 1 is what holds without the field"),
        rule(
            NotTogether("temperature", "top_p"),
            "BerriAI/litellm#15097, aws-samples/bedrock-access-gateway#191",
            when=takes_one_of_temperature_and_top_p,
        ),
        rule(By(bound_answer), "a recorded refusal; Anthropic's model pages"),
        rule(By(check_stops), "BerriAI/litellm#3286"),
    )
