"""Dialect of Cohere: reports fields without a counterpart before orch sends anything."""

from __future__ import annotations

from functools import partial

from orchestrator.backends.cohere.requests import KNOWN
from orchestrator.policy.dialect.draft import Draft, is_number
from orchestrator.policy.dialect.rules import By, NotAbove, NotForced, OnlyFields, OnlyValues, TableRule
from orchestrator.policy.dialect.structured import ask_in_prompt

_LEAST = {"top_p": 0.01, "presence_penalty": 0, "frequency_penalty": 0}


def _lose_too_low(draft: Draft) -> None:
    for name, least in _LEAST.items():
        value = draft.fields.get(name)
        if is_number(value) and value < least:
            draft.lose(name, f"takes a {name} of at least {least:g}")


_rule = partial(TableRule, ("cohere",), "", read="2026-11-30")
_RANGE = "cohere 7.3.1: range of"

COHERE_RULES = (
    _rule(By(ask_in_prompt), "crmne/ruby_llm: rows of a batch have no response_format"),
    _rule(OnlyFields(KNOWN, " in a batch"), "crmne/ruby_llm: rows of a batch have no such field"),
    _rule(NotForced(), "crmne/ruby_llm: rows of a batch have no tool_choice"),
    _rule(OnlyValues("reasoning_effort", ("none",)), "crmne/ruby_llm: reasoning is true or false"),
    _rule(NotAbove("top_p", 0.99), f"{_RANGE} p"),
    _rule(NotAbove("presence_penalty", 1), f"{_RANGE} presence_penalty"),
    _rule(NotAbove("frequency_penalty", 1), f"{_RANGE} frequency_penalty"),
    _rule(By(_lose_too_low), f"{_RANGE} p and penalties"),
)
