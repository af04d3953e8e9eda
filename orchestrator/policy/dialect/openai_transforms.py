"""Rules for OpenAI's model families that do not fit on a table line. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.core.batch_api import CHAT, RESPONSES
from orchestrator.policy.dialect import structured
from orchestrator.policy.dialect.draft import Draft, named
from orchestrator.policy.dialect.families import openai_most_tokens, openai_reasoning
from orchestrator.policy.dialect.rules import NEUTRAL, Bounded
from orchestrator.policy.request_bodies import input_of

__all__ = [
    "ask_responses_strictly", "ask_without_json_mode", "bound_answer", "check_effort", "check_included_logprobs",
    "check_tools",
    "reasons", "respell", "to_responses",
]  # fmt: skip

_LOGPROBS = "message.output_text.logprobs"


def _effort(draft: Draft) -> Any:
    if draft.endpoint == RESPONSES:
        return named(draft.fields.get("reasoning"), "effort")
    return draft.fields.get("reasoning_effort")


def reasons(draft: Draft) -> bool:
    """Return True if the model reasons about this request, and so accepts no sampling fields."""
    return openai_reasoning(draft.model).is_on(_effort(draft))


def check_effort(draft: Draft) -> None:
    """Note the loss of a reasoning effort that the model does not accept."""
    effort, known = _effort(draft), openai_reasoning(draft.model)
    if effort is None or effort in known.efforts:
        return
    field = "reasoning" if draft.endpoint == RESPONSES else "reasoning_effort"
    words = ", ".join(sorted(known.efforts))
    draft.lose(field, f"takes no {field} {effort}" if words == "" else f"takes no {field} {effort}, only {words}")


def check_tools(draft: Draft) -> None:
    """Note the loss of tools if the model reasons about this request, even if only by default."""
    if draft.fields.get("tools") and reasons(draft):
        draft.lose("tools", f"takes tools at {CHAT} only with reasoning_effort none")
        if draft.drop:
            for name in ("tool_choice", "parallel_tool_calls"):
                draft.fields.pop(name, None)


def bound_answer(draft: Draft) -> None:
    """Lower an answer bound above the model's maximum. No answer of the model exceeds the maximum."""
    most = openai_most_tokens(draft.model)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        Bounded(name, most=most).apply(draft)


def check_included_logprobs(draft: Draft) -> None:
    """Note the loss of token probabilities, which the Responses API requests through `include`."""
    included = draft.fields.get("include")
    if not isinstance(included, list) or _LOGPROBS not in included:
        return
    draft.lose("logprobs", "takes no logprobs")
    if draft.drop:
        others = [one for one in included if one != _LOGPROBS]
        draft.fields.pop("include") if not others else draft.fields.update(include=others)


def ask_without_json_mode(draft: Draft) -> None:
    """Ask for a schema in the prompt, and note the loss of `json_object`.

    For models that support neither schemas nor JSON mode.
    """
    structured.ask_in_prompt(draft)
    for name, asked in ((structured.FIELD, draft.fields.get(structured.FIELD)), ("text", draft.fields.get("text"))):
        wanted = named(asked, "format") if name == "text" else asked
        if named(wanted, "type") == "json_object":
            draft.lose(name, "takes no json_object")


def ask_responses_strictly(draft: Draft) -> None:
    """Convert a schema of the Responses API to its strict form."""
    text = draft.fields.get("text")
    asked = named(text, "format")
    if not isinstance(text, dict) or not isinstance(asked, dict) or asked.get("type") != "json_schema":
        return
    plain = {name: value for name, value in asked.items() if name != "type"}
    chat = Draft({structured.FIELD: {"type": "json_schema", "json_schema": plain}}, draft.model, draft.recipient, "")
    structured.ask_strictly(chat)
    found = chat.fields.get(structured.FIELD)
    if found is None:
        others = {name: value for name, value in text.items() if name != "format"}
        draft.fields.pop("text") if not others else draft.fields.update(text=others)
        draft.edits.extend(chat.edits)
    else:
        draft.fields["text"] = {**text, "format": {"type": "json_schema", **found["json_schema"]}}


_RENAMED = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
_NO_COUNTERPART = (
    "seed", "stop", "n", "presence_penalty", "frequency_penalty", "logit_bias", "prediction", "modalities", "audio",
    "web_search_options", "functions", "function_call",
)  # fmt: skip


def to_responses(draft: Draft) -> None:
    """Convert a chat completion's body for the Responses API."""
    draft.endpoint = RESPONSES
    respell(draft)
    draft.fields.setdefault("store", False)  # orch never fetches these answers by id
    draft.edits.append(input_of)


def respell(draft: Draft) -> None:
    """Convert the field names of a chat completion to those of the Responses API."""
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
