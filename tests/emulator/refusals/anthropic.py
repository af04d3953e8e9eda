"""What Anthropic refuses at messages, in batches and synchronously.

Sources: docs.claude.com (extended and adaptive thinking, effort, structured outputs, migration guides, models
overview), and the threads and recorded answers that `docs/reference/emulator.md` lists. What no model takes stands in
`anthropic_params`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.emulator.errors import Json
from tests.emulator.refusals.refused import Refused, first, refused
from tests.emulator.refusals.strict import anthropic_problem

KNOWN = r"claude-(\d|instant|(opus|sonnet|haiku|fable|mythos)-)"
"""Of other names nothing is known, and nothing that goes by the model is refused."""

SAMPLING = ("temperature", "top_p", "top_k")

NEWEST = r"claude-(fable|mythos)-5|claude-(opus|sonnet)-5|claude-haiku-5|claude-opus-4-[789]"
ADAPTIVE = rf"{NEWEST}|claude-mythos-preview|claude-(opus|sonnet)-4-6"
NO_SAMPLING = rf"{NEWEST}|claude-mythos-preview"
ONE_OF_TWO = r"claude-(opus-4-[156]|sonnet-4-[56]|haiku-4-5)"
EFFORTS = (
    (NEWEST, ("high", "low", "max", "medium", "xhigh")),
    (r"claude-opus-4-5", ("high", "low", "medium")),
    (ADAPTIVE, ("high", "low", "max", "medium")),
)
OUTPUT_FORMAT = rf"{NEWEST}|claude-(haiku|sonnet|opus)-4-[56]|claude-opus-4-1|claude-mythos-preview"
NO_THINKING = r"claude-(2|instant|3-(haiku|opus|sonnet|5))"
ALWAYS_THINKS = r"claude-(fable|mythos)|claude-opus-5-5"
BETWEEN_TOOLS = r"claude-sonnet-5-5"
CAPPED_WITHOUT_THINKING = r"claude-opus-5|claude-(sonnet|haiku)-5-5"
NO_FORCED_TOOL = r"claude-(fable|mythos)-(5|preview)|claude-(opus|sonnet)-5-5"
NO_PREFILL = rf"{ADAPTIVE}"
MOST_TOKENS = (
    (r"claude-3-(haiku|opus|sonnet)|claude-2|claude-instant", 4_096),
    (r"claude-3-5", 8_192),
    (r"claude-opus-4-(0|1|2025)", 32_000),
    (r"claude-3-7|claude-(haiku|opus|sonnet)-4-5|claude-sonnet-4-(0|2025)", 64_000),
    (r"claude-(opus|sonnet)-4-[6-9]|claude-(opus|sonnet|haiku|fable|mythos)-5|claude-mythos", 128_000),
)
LEAST_BUDGET = 1_024


def messages(model: str, body: Json) -> Refused | None:
    """The first refusal of a request."""
    return first(_messages(model, body))


def _messages(model: str, body: Json) -> Iterator[Refused | None]:
    yield _most_tokens(model, body)
    yield from _sampling(model, body)
    yield from _thinking(model, body)
    yield from _output(model, body)
    yield from _stops(body.get("stop_sequences"))
    yield from _texts(model, body)
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        yield _forced_tool(model, body)


def _fits(model: str, pattern: str) -> bool:
    return re.match(pattern, model) is not None


def _most_tokens(model: str, body: Json) -> Refused | None:
    most = next((most for pattern, most in MOST_TOKENS if _fits(model, pattern)), None)
    told = body.get("max_tokens")
    if most is None or not isinstance(told, int) or told <= most:
        return None
    words = f"max_tokens: {told} > {most}, which is the maximum allowed number of output tokens for {model}"
    return refused(words)


def _sampling(model: str, body: Json) -> Iterator[Refused | None]:
    told = [name for name in SAMPLING if body.get(name) is not None]
    if told and _fits(model, NO_SAMPLING):
        yield refused(f"`{told[0]}` is deprecated for this model.")
    if {"temperature", "top_p"} <= set(told) and _fits(model, ONE_OF_TWO):
        words = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
        yield refused(words)
    for name in ("temperature", "top_p"):
        value = body.get(name)
        if isinstance(value, int | float) and not 0 <= value <= 1:
            side = "less than or equal to 1" if value > 1 else "greater than or equal to 0"
            yield refused(f"{name}: Input should be {side}")


def _thinking(model: str, body: Json) -> Iterator[Refused | None]:
    thinking = body.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind is None or not isinstance(thinking, dict):
        return
    if kind in ("enabled", "adaptive") and _fits(model, NO_THINKING):
        yield refused(f"'{model}' does not support thinking.")
    if kind == "adaptive" and not _fits(model, ADAPTIVE):
        yield refused("adaptive thinking is not supported on this model")
    if kind == "enabled":
        yield from _budget(model, body, thinking)
    if kind == "disabled":
        yield _disabled(model, body)
    if kind in ("enabled", "adaptive"):
        if body.get("temperature") not in (None, 1):
            words = "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
            yield refused(words)
        if body.get("top_k") is not None:
            yield refused("`top_k` must be unset when thinking is enabled or in adaptive mode.")
        if body.get("top_p") is not None and body["top_p"] < 0.95:
            yield refused("`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled.")


def _budget(model: str, body: Json, thinking: Json) -> Iterator[Refused | None]:
    if _fits(model, NEWEST):
        words = (
            '"thinking.type.enabled" is not supported for this model. '
            'Use "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.'
        )
        yield refused(words)
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int):
        yield refused("thinking.enabled.budget_tokens: Field required")
    elif budget < LEAST_BUDGET:
        words = f"thinking.enabled.budget_tokens: Input should be greater than or equal to {LEAST_BUDGET}"
        yield refused(words)
    elif isinstance(body.get("max_tokens"), int) and body["max_tokens"] <= budget:
        yield refused("`max_tokens` must be greater than `thinking.budget_tokens`.")


def _disabled(model: str, body: Json) -> Refused | None:
    if _fits(model, BETWEEN_TOOLS):
        words = '"thinking.type.disabled" is not supported for this model. Use "thinking.type.between_tools" instead.'
        return refused(words)
    if _fits(model, ALWAYS_THINKS):
        return refused('"thinking.type.disabled" is not supported for this model.')
    effort = (body.get("output_config") or {}).get("effort")
    if effort in ("xhigh", "max") and _fits(model, CAPPED_WITHOUT_THINKING):
        return refused(f"effort '{effort}' is not supported with thinking disabled")
    return None


def _output(model: str, body: Json) -> Iterator[Refused | None]:
    config = body.get("output_config")
    if not isinstance(config, dict):
        return
    effort = config.get("effort")
    if effort is not None and _fits(model, KNOWN):
        known = next((efforts for pattern, efforts in EFFORTS if _fits(model, pattern)), ())
        if not known:
            yield refused("This model does not support the effort parameter.")
        elif effort not in known:
            levels = ", ".join(known)
            yield refused(f"This model does not support effort level '{effort}'. Supported levels: {levels}.")
    form = config.get("format")
    if isinstance(form, dict):
        yield _format(model, form)


def _format(model: str, form: Json) -> Refused | None:
    if _fits(model, KNOWN) and not _fits(model, OUTPUT_FORMAT):
        return refused(f"'{model}' does not support output format.")
    unknown = next((name for name in form if name not in ("type", "schema")), None)
    if unknown is not None:
        return refused(f"output_config.format.{unknown}: Extra inputs are not permitted")
    problem = anthropic_problem(form.get("schema"))
    return None if problem is None else refused(f"output_config.format.schema: {problem}")


def _stops(stops: Any) -> Iterator[Refused | None]:
    for stop in stops if isinstance(stops, list) else ():
        if not str(stop).strip():
            yield refused("stop_sequences: each stop sequence must contain non-whitespace")


def _texts(model: str, body: Json) -> Iterator[Refused | None]:
    told = body.get("messages")
    found = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    for number, message in enumerate(found):
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "text" and not part.get("text"):
                yield refused(f"messages.{number}: text content blocks must be non-empty")
    system = body.get("system")
    for part in system if isinstance(system, list) else ():
        if isinstance(part, dict) and not part.get("text"):
            yield refused("system: text content blocks must be non-empty")
    if found and found[-1].get("role") == "assistant" and _fits(model, NO_PREFILL):
        words = (
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )
        yield refused(words)


def _forced_tool(model: str, body: Json) -> Refused | None:
    if _fits(model, NO_FORCED_TOOL):
        return refused("tool_choice: this model does not support forcing tool use")
    if (body.get("thinking") or {}).get("type") == "enabled":
        return refused("Thinking may not be enabled when tool_choice forces tool use.")
    return None
