"""Dialect of Bedrock: fields without a counterpart, named before anything is sent."""

from __future__ import annotations

from orchestrator.backends.bedrock.requests import LEFT_OUT, TAKEN
from orchestrator.policy.dialect import structured
from orchestrator.policy.dialect.draft import MODEL, Draft
from orchestrator.policy.dialect.rules import NEUTRAL, By, NotAbove, NotMore, TableRule

_BEDROCK = ("bedrock",)
_ANY = ""


def check_fields(draft: Draft) -> None:
    """Note the loss of a field without a counterpart. A value equal to the default is left out."""
    for name, value in [*draft.fields.items()]:
        if name in TAKEN or name in LEFT_OUT or name == MODEL:
            continue
        if value is None or (name in NEUTRAL and value == NEUTRAL[name]):
            del draft.fields[name]
        else:
            draft.lose(name, f"takes no {name} in a batch")


BEDROCK_RULES = (
    TableRule(
        _BEDROCK, _ANY, By(structured.ask_in_prompt), "BoundaryML/baml#3036: batches enforce no schema, take no tools"
    ),
    TableRule(_BEDROCK, _ANY, By(check_fields), "botocore 1.43: ConverseRequest has no such field"),
    TableRule(_BEDROCK, _ANY, NotAbove("temperature", 1), "botocore 1.43: temperature is from 0 to 1"),
    TableRule(_BEDROCK, _ANY, NotMore("stop", 2500), "botocore 1.43: up to 2,500 stop sequences"),
)
