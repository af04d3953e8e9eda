"""Converts a chat completion's body to the Responses API, for models that exist only there. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.policy.dialect.draft import Draft
from orchestrator.policy.dialect.rules import NEUTRAL, RESPONSES
from orchestrator.policy.endpoints import input_of

_RENAMED = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
_NO_COUNTERPART = (
    "seed", "stop", "n", "presence_penalty", "frequency_penalty", "logit_bias", "prediction", "modalities", "audio",
    "web_search_options", "functions", "function_call",
)  # fmt: skip


def to_responses(draft: Draft) -> None:
    """Move a body to the Responses API, with its field names."""
    draft.endpoint = RESPONSES
    respell(draft)
    draft.fields.setdefault("store", False)  # these answers are never fetched by id
    draft.edits.append(input_of)


def respell(draft: Draft) -> None:
    """Respell the fields of a chat completion for the Responses API."""
    fields = draft.fields
    for name in _NO_COUNTERPART:
        if name in fields and fields[name] == NEUTRAL.get(name):
            del fields[name]
        elif name in fields:
            draft.lose(name, f"is asked at {RESPONSES}, which takes no {name}")
    for name in ("max_completion_tokens", "max_tokens"):
        draft.rename(name, _RENAMED[name])
    if "reasoning_effort" in fields:
        fields["reasoning"] = {"effort": fields.pop("reasoning_effort"), **(fields.get("reasoning") or {})}
    text: dict[str, Any] = {}
    if "verbosity" in fields:
        text["verbosity"] = fields.pop("verbosity")
    if isinstance(asked := fields.pop("response_format", None), dict):
        text["format"] = {"type": asked.get("type"), **(asked.get("json_schema") or {})}
    if text:
        fields["text"] = text | (fields.get("text") or {})
    if fields.pop("logprobs", False):
        fields["include"] = [*(fields.get("include") or []), "message.output_text.logprobs"]
