"""Dialect of Bedrock: fields without a counterpart, named before anything is sent."""

from __future__ import annotations

from orchestrator.backends.bedrock.requests import LEFT_OUT, TAKEN
from orchestrator.policy.dialect import structured
from orchestrator.policy.dialect.rules import By, NotAbove, NotMore, OnlyFields, TableRule

_BEDROCK = ("bedrock",)
_ANY = ""


BEDROCK_RULES = (
    TableRule(
        _BEDROCK, _ANY, By(structured.ask_in_prompt), "BoundaryML/baml#3036: batches enforce no schema, take no tools"
    ),
    TableRule(
        _BEDROCK,
        _ANY,
        OnlyFields(TAKEN | LEFT_OUT, " in a batch"),
        "botocore 1.43: ConverseRequest has no such field",
    ),
    TableRule(_BEDROCK, _ANY, NotAbove("temperature", 1), "botocore 1.43: temperature is from 0 to 1"),
    TableRule(_BEDROCK, _ANY, NotMore("stop", 2500), "botocore 1.43: up to 2,500 stop sequences"),
)
