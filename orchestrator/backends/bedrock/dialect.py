"""Dialect of Bedrock: fields without a counterpart, named before anything is sent."""

from __future__ import annotations

from functools import partial

from orchestrator.backends.bedrock.requests import LEFT_OUT, TAKEN
from orchestrator.policy.dialect import structured
from orchestrator.policy.dialect.rules import By, NotAbove, NotMore, OnlyFields, TableRule

_rule = partial(TableRule, ("bedrock",), "")

BEDROCK_RULES = (
    _rule(By(structured.ask_in_prompt), "BoundaryML/baml#3036: batches enforce no schema, take no tools"),
    _rule(OnlyFields(TAKEN | LEFT_OUT, " in a batch"), "botocore 1.43: ConverseRequest has no such field"),
    _rule(NotAbove("temperature", 1), "botocore 1.43: temperature is from 0 to 1"),
    _rule(NotMore("stop", 2500), "botocore 1.43: up to 2,500 stop sequences"),
)
