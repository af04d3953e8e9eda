"""What Groq, Mistral, DeepSeek, xAI, Moonshot and OpenRouter refuse at chat completions.

Sources: their API references of 2026-11 and the threads that `docs/reference/emulator.md` lists.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from tests.emulator.errors import Json, Problem
from tests.emulator.refusals import openai
from tests.emulator.refusals.refused import Refused, first, out_of_range, refused, text_of, wanted
from tests.emulator.refusals.strict import groq_problem, parts

GROQ_SCHEMA = r"openai/gpt-oss|meta-llama/llama-4|moonshotai/kimi-k2"
GROQ_DOCS = "https://console.groq.com/docs/structured-outputs#supported-models"
GROQ_FIELDS = openai.CHAT_FIELDS | {
    *("reasoning_format", "include_reasoning", "search_settings", "documents", "citation_options"),
    *("compound_custom", "disable_tool_validation", "exclude_domains", "include_domains"),
}
GROQ_NEVER = ("logprobs", "logit_bias", "top_logprobs")

MISTRAL_FIELDS = frozenset(
    (
        "model messages temperature top_p max_tokens stream stop random_seed metadata response_format tools "
        "tool_choice presence_penalty frequency_penalty n prediction parallel_tool_calls prompt_mode safe_prompt "
        "reasoning_effort guardrails prompt_cache_key"
    ).split()
)

MISTRAL_EFFORTS = ("none", "high")
MISTRAL_NO_EFFORT = r"ministral|magistral|codestral|devstral|pixtral|open-"
DEEPSEEK_THINKS = r"deepseek-(reasoner|v4)"

XAI_REASONS = r"grok-4|grok-3-mini|grok-build"
XAI_NO_EFFORT = (
    r"grok-4(-0709|-latest)?$|grok-4-(fast|1-fast)|grok-4\.20(?!-multi)|grok-(code|build)"
    r"|grok-3(-fast|-latest)?$|grok-2"
)
XAI_EFFORTS = {
    r"grok-3-mini": ("low", "high"),
    r"grok-4\.3": ("none", "low", "medium", "high"),
    r"grok-4\.5": ("low", "medium", "high"),
    r"grok-4\.6|grok-4\.20-multi": ("low", "medium", "high", "xhigh"),
}
XAI_NOT_IN_SCHEMAS = {"minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"}
MOONSHOT_FIXED = r"kimi-k2\.[5-9]|kimi-k[3-9]|kimi-latest"
MOONSHOT_ALWAYS_THINKS = r"kimi-k2\.7-code|kimi-k3"
MOONSHOT_EFFORTS = {
    r"kimi-k3": ("low", "high", "max"),
    r"kimi-k2\.[5-9]|kimi-k2-thinking": ("minimal", "low", "medium", "high"),
}


def _format_of(body: Json) -> str | None:
    told = body.get("response_format")
    return told.get("type") if isinstance(told, dict) else None


def _without_json(body: Json, words: str) -> Refused | None:
    if _format_of(body) != "json_object" or "json" in text_of(body.get("messages")).lower():
        return None
    return refused(words, "messages")


def groq(model: str, body: Json) -> Refused | None:
    """The first refusal at Groq, whose batches refuse the same."""
    unknown = next((name for name in body if name not in GROQ_FIELDS), None)
    if unknown is not None:
        return refused(f"property '{unknown}' is unsupported")
    for name in GROQ_NEVER:
        if body.get(name):
            return refused(f"`{name}` is not supported with this model", name)
    if wanted(body, "n", 1):
        return refused("'n' : number must be at most 1", "n")
    words = "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."
    found = _groq_effort(model, body.get("reasoning_effort")) or _without_json(body, words)
    return found or out_of_range("temperature", body.get("temperature"), 0.0, 2.0) or _groq_schema(model, body)


def _groq_effort(model: str, effort: Any) -> Refused | None:
    if effort is None:
        return None
    known = ("low", "medium", "high") if "gpt-oss" in model else ("none", "default") if "qwen3" in model else ()
    if not known:
        return refused("`reasoning_effort` is not supported with this model", "reasoning_effort")
    if effort not in known:
        names = ", ".join(f"`{one}`" for one in known)
        return refused(f"`reasoning_effort` must be one of {names}", "reasoning_effort")
    return None


def _groq_schema(model: str, body: Json) -> Refused | None:
    if _format_of(body) != "json_schema":
        return None
    if not re.match(GROQ_SCHEMA, model):
        words = f"This model does not support response format `json_schema`. See supported models at {GROQ_DOCS}"
        return refused(words, "response_format")
    told = body["response_format"].get("json_schema") or {}
    if told.get("strict") and "gpt-oss" not in model:
        return refused("This model does not support `strict` response formats.", "response_format")
    problem = groq_problem(told.get("schema")) if told.get("strict") else None
    return None if problem is None else refused(f"invalid schema for response format: {problem}", "response_format")


def mistral(model: str, body: Json) -> Refused | None:
    """Fields that it does not know, in FastAPI's shape."""
    found = [
        {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted", "input": value}
        for name, value in body.items()
        if name not in MISTRAL_FIELDS
    ]
    effort = body.get("reasoning_effort")
    known = () if re.match(MISTRAL_NO_EFFORT, model) else MISTRAL_EFFORTS
    if not found and effort is not None and effort not in known:
        named = ", ".join(f"<ReasoningEffort.{one}: '{one}'>" for one in known)
        words = f"reasoning_effort='{effort}' is not supported for this model."
        words += f" Must be one of ({named})" if known else ""
        error = {"object": "error", "message": words, "type": "invalid_request_invalid_args", "code": "3051"}
        return Refused(400, Problem(words), json.dumps(error | {"param": None, "raw_status_code": 400}))
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature > 1.5:
        words = "Input should be less than or equal to 1.5"
        where = ["body", "temperature"]
        found.append({"type": "less_than_equal", "loc": where, "msg": words, "input": temperature})
    if not found:
        return None
    text = json.dumps({"detail": found})
    return Refused(422, Problem(str(found[0]["msg"])), text)


def deepseek(model: str, body: Json) -> Refused | None:
    if _format_of(body) == "json_schema":
        return refused("This response_format type is unavailable now", code="invalid_request_error")
    if model in ("deepseek-reasoner", "deepseek-r1"):
        for name in ("logprobs", "top_logprobs"):
            if body.get(name):
                return refused(f"{model} does not support the parameter `{name}`", code="invalid_request_error")
    if _forces_a_tool(body) and re.match(DEEPSEEK_THINKS, model) and not _is_unthinking(body):
        words = "Thinking mode" if "v4" in model else model
        return refused(f"{words} does not support this tool_choice", code="invalid_request_error")
    words = "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'."
    found = _without_json(body, words) or out_of_range("temperature", body.get("temperature"), 0.0, 2.0)
    return None if found is None else replace(found, problem=replace(found.problem, code="invalid_request_error"))


def xai(model: str, body: Json) -> Refused | None:
    """Its errors are two strings."""
    names = {"stop": None, "presence_penalty": 0, "frequency_penalty": 0} if re.match(XAI_REASONS, model) else {}
    bad = next((name for name, usual in names.items() if wanted(body, name, usual)), None)
    if bad is None and body.get("reasoning_effort") is not None and re.match(XAI_NO_EFFORT, model):
        bad = "reasoning_effort"
    words = "" if bad is None else f"Model {model} does not support parameter {_camel(bad)}."
    if bad is None and not _has_effort(XAI_EFFORTS, model, body):
        words = f"This model does not support 'reasoning_effort' value '{body['reasoning_effort']}'"
    if not words and _format_of(body) == "json_schema":
        schema = (body["response_format"].get("json_schema") or {}).get("schema")
        words = (
            "Invalid arguments passed to the model."
            if any(XAI_NOT_IN_SCHEMAS & part.keys() for _, part, _ in parts(schema))
            else ""
        )
    if not words:
        return None
    text = json.dumps({"code": "Client specified an invalid argument", "error": words})
    return Refused(400, Problem(words), text)


def _has_effort(efforts: dict[str, tuple[str, ...]], model: str, body: Json) -> bool:
    known = next((known for pattern, known in efforts.items() if re.match(pattern, model)), None)
    return known is None or body.get("reasoning_effort", known[0]) in known


def _camel(name: str) -> str:
    head, *more = name.split("_")
    return head + "".join(word.capitalize() for word in more)


def _forces_a_tool(body: Json) -> bool:
    return body.get("tool_choice") == "required" or isinstance(body.get("tool_choice"), dict)


def _is_unthinking(body: Json) -> bool:
    return (body.get("thinking") or {}).get("type") == "disabled"


def _moonshot_thinking(model: str, body: Json) -> str | None:
    """What is refused of thoughts, or beside them."""
    if body.get("thinking") and body.get("reasoning_effort"):
        return "cannot specify both 'thinking' and 'reasoning_effort'"
    if _is_unthinking(body):
        is_fixed = re.match(MOONSHOT_ALWAYS_THINKS, model)
        return "invalid thinking: only type=enabled is allowed for this model" if is_fixed else None
    kind = "required" if body.get("tool_choice") == "required" else "specified"
    return f"tool_choice '{kind}' is incompatible with thinking enabled" if _forces_a_tool(body) else None


def moonshot(model: str, body: Json) -> Refused | None:
    fixed = {"top_p": 0.95, "n": 1, "presence_penalty": 0, "frequency_penalty": 0}
    fixed["temperature"] = 0.6 if _is_unthinking(body) else 1
    if re.match(MOONSHOT_FIXED, model):
        if (words := _moonshot_thinking(model, body)) is not None:
            return refused(words)
        for name, value in fixed.items():
            if wanted(body, name, value):
                return refused(f"invalid {name}: only {value} is allowed for this model")
    if not _has_effort(MOONSHOT_EFFORTS, model, body):
        return refused(f"invalid reasoning_effort: {body['reasoning_effort']} is not supported for this model")
    return first([out_of_range("temperature", body.get("temperature"), 0.0, 1.0)])


def openrouter(model: str, body: Json) -> Refused | None:
    """What the provider behind it says of a schema; settings that its model lacks are left out there."""
    maker, _, name = model.partition("/")
    if maker != "openai":
        return None
    kept = {key: body[key] for key in ("response_format", "messages") if key in body}
    found = openai.chat(name, kept)
    if found is None or found.status != 400:
        return None
    raw = json.dumps({"error": found.problem.json()})
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw, "provider_name": "OpenAI"}}
    return Refused(400, Problem("Provider returned error"), json.dumps({"error": error}))
