"""Rules of Claude models that hold at every provider of them. Pure."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from orchestrator.policy.dialect.draft import Draft
from orchestrator.policy.dialect.families import claude_most_tokens, claude_of
from orchestrator.policy.dialect.rules import Bounded, By, NotAbove, NotTaken, NotTogether, TableRule

NO_SAMPLING_SINCE = (4, 7)
BOUNDS = ("max_completion_tokens", "max_tokens")


def takes_sampling(model: str) -> bool:
    """Return True for models with temperature, top_p and top_k. A name without a version may accept them."""
    claude = claude_of(model)
    return claude is None or claude.version < NO_SAMPLING_SINCE


def takes_no_sampling(draft: Draft) -> bool:
    """Return True for models without temperature, top_p and top_k."""
    return not takes_sampling(draft.model)


def takes_one_of_temperature_and_top_p(draft: Draft) -> bool:
    """Return True for models that refuse a temperature beside `top_p`."""
    claude = claude_of(draft.model)
    return claude is not None and claude.since(opus=(4, 1), other=(4, 5))


def leave_out_default_top_p(draft: Draft) -> None:
    """Drop a `top_p` or temperature of 1, which is the default."""
    for name in ("temperature", "top_p"):
        if draft.fields.get(name) == 1:
            del draft.fields[name]


def bound_answer(draft: Draft) -> None:
    """Lower a bound to the model's maximum: it never answers in more tokens."""
    claude = claude_of(draft.model)
    most = None if claude is None else claude_most_tokens(claude)
    for name in BOUNDS:
        Bounded(name, most=most).apply(draft)


def check_stops(draft: Draft) -> None:
    """Note the loss of stops of white space only. With `drop`, the other stops stay."""
    stop = draft.fields.get("stop")
    stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list | tuple) else []
    remaining = [one for one in stops if not isinstance(one, str) or one.strip()]
    if len(remaining) == len(stops):
        return
    draft.lose("stop", "takes no stop of white space alone")
    if draft.drop and remaining:
        draft.fields["stop"] = remaining


def claude_rules(providers: Collection[str], models: str) -> tuple[TableRule, ...]:
    """Return the rules of Claude models for these providers; `models` is the pattern of their names there."""
    rule = partial(TableRule, providers, models)
    return (
        rule(
            NotTaken(("temperature", "top_p", "top_k")),
            "szczyglis-dev/py-gpt#184, promptfoo/promptfoo#10307; pydantic-ai's profiles",
            when=takes_no_sampling,
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
