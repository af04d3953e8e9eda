"""What the parameters of an Anthropic request must be, whichever model it names."""

from __future__ import annotations

from typing import Any

from tests.emulator.refusals.refused import Refused, refused
from tests.emulator.settings import Settings

SAMPLING = ("temperature", "top_p", "top_k")
PARAMS = frozenset(
    (
        "model max_tokens messages system metadata stop_sequences tools tool_choice thinking output_config "
        "service_tier cache_control container inference_geo"
    ).split()
)


def problem_of_params(params: Any, settings: Settings) -> Refused | None:
    """The first thing wrong with them, None if all is well."""
    message = _complaint(params, settings)
    if message is None and settings.models is not None and params["model"] not in settings.models:
        return refused(f"model: {params['model']}", status=404)
    return None if message is None else refused(message)


def _complaint(params: Any, settings: Settings) -> str | None:
    for name in ("model", "max_tokens", "messages"):
        if params.get(name) is None:
            return f"{name}: Field required"
    sampling = frozenset(SAMPLING) if params["model"] not in settings.no_sampling else frozenset[str]()
    for name in params:
        if name not in PARAMS | sampling:
            return f"{name}: Extra inputs are not permitted"
    if not isinstance(params["max_tokens"], int) or params["max_tokens"] < 1:
        return "max_tokens: Input should be greater than or equal to 1"
    return _messages_complaint(params["messages"])


def _messages_complaint(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            return f"messages.{index}: Input does not match the expected shape."
        if message.get("role") not in ("user", "assistant"):
            return f"messages.{index}.role: Input should be 'user' or 'assistant'"
        if not message.get("content"):
            return f"messages.{index}.content: Field required"
    return None
