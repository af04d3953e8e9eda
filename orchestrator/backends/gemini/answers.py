"""Converts Gemini's answers, result lines, batches, files and errors to OpenAI's shape. Pure.

Sources: google-genai 3.6.1 (types.py, batches.py), recorded answers and batches, Google's list of RPC codes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.backends import lenient
from orchestrator.backends.batch_names import metadata_in
from orchestrator.backends.google_errors import row_status
from orchestrator.backends.openai_shape import UNKNOWN_RESULT, answered_row, choice_of, completion_of, failed_row
from orchestrator.backends.openai_shape import line as line_of
from orchestrator.core.error_body import openai_error, read_error_value
from orchestrator.core.finish_reasons import is_error

_FILTERED = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "MODEL_ARMOR", "IMAGE_SAFETY",
     "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"}
)  # fmt: skip
_CALLS = frozenset(
    {"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE"}
)
_ENDS = {"STOP": "stop", "MAX_TOKENS": "length"}
_COUNTS = {"total": "requestCount", "completed": "successfulRequestCount", "failed": "failedRequestCount"}
Json = dict[str, Any]


def _plain_id(name: object) -> str | None:
    found = lenient.name(name)
    return None if found is None else found.rpartition("/")[2]


def batch_of(operation: object) -> object:
    """Return an operation as a batch in OpenAI's shape. A value that is not an object stays unchanged."""
    told = lenient.mapping(operation)
    if not told:
        return operation
    facts = lenient.mapping(told.get("metadata"))
    if not facts:
        # `metadata` holds all facts about a batch. Without it, the answer says nothing.
        return {}
    stats, output = lenient.mapping(facts.get("batchStats")), lenient.mapping(facts.get("output"))
    answer = lenient.mapping(told.get("response"))
    word = lenient.word(facts.get("state"))
    batch: Json = {
        "request_counts": {ours: stats[theirs] for ours, theirs in _COUNTS.items() if theirs in stats},
        "created_at": facts.get("createTime"),
        "completed_at": facts.get("endTime"),
        "output_file_id": _plain_id(output.get("responsesFile") or answer.get("responsesFile")),
        "error_file_id": None,
    }
    if (found := _plain_id(told.get("name"))) is not None:
        batch["id"] = found
    if word:
        batch["status"] = word.removeprefix("batch_state_").removeprefix("job_state_")
    if (named := metadata_in(facts.get("displayName"))) is not None:
        batch["metadata"] = named
    if told.get("error"):
        batch["errors"] = [error_of({"error": told["error"]})]
    return batch


def listed(told: object, name: str, convert: Any) -> object:
    """Return a list in OpenAI's shape. A list without a next-page token is complete."""
    found = lenient.mapping(told)
    if not found and told != {}:
        return told
    entries = found.get(name, [])
    if not isinstance(entries, list):
        return told
    return {"data": [convert(one) for one in entries], "has_more": bool(found.get("nextPageToken"))}


def file_of(file: object) -> object:
    """Return a file in OpenAI's shape. Result files have no size, because their lines are translated."""
    told = lenient.mapping(file)
    told = lenient.mapping(told.get("file")) or told
    if not told:
        return file
    found: Json = {"id": _plain_id(told.get("name")), "filename": told.get("displayName")}
    if lenient.word(told.get("source")) != "generated":
        found["bytes"] = told.get("sizeBytes")
    return found | {"created_at": told.get("createTime")}


def model_of(model: object) -> object:
    return {"id": _plain_id(lenient.mapping(model).get("name"))}


def error_of(body: object) -> Json:
    """Return an error body's reason as OpenAI's error object. Gemini's status replaces a missing code."""
    found = openai_error(body)
    if found and not found["code"]:
        error = lenient.mapping(lenient.mapping(body).get("error"))
        found["code"] = lenient.text(error.get("status")).lower() or None
    return found


def status_of(body: object, status: int) -> int:
    """Return the HTTP status of an error, with 401 for an invalid key, which Gemini answers with 400."""
    return 401 if read_error_value(body).says_bad_key else status


def completion(answer: Mapping[str, Any]) -> Json:
    """Convert an answer of any shape to a chat completion's body, so that no paid answer is lost.

    Extensions: `reasoning_content`, and `other_content` with parts that have no place in OpenAI's shape.
    """
    if is_error(answer):
        return dict(answer)
    candidates = answer.get("candidates")
    found = [lenient.mapping(one) for one in candidates] if isinstance(candidates, list) else []
    blocked = lenient.mapping(answer.get("promptFeedback")).get("blockReason")
    if not found and blocked:
        found = [{"finishReason": blocked, "is_blocked": True}]
    usage = lenient.mapping(answer.get("usageMetadata"))
    choices = [_choice(one, number) for number, one in enumerate(found)]
    return completion_of(
        choices, _usage(usage), answer.get("responseId"), answer.get("modelVersion"), usage.get("serviceTier")
    )


def _choice(candidate: Mapping[str, Any], number: int) -> Json:
    texts, thoughts, calls, others = list[str](), list[str](), list[Json](), list[Any]()
    parts = lenient.mapping(candidate.get("content")).get("parts")
    for part in parts if isinstance(parts, list) else []:
        match part:
            case {"text": str(text), "thought": True}:
                thoughts.append(text)
            case {"text": str(text)}:
                texts.append(text)
            case {"functionCall": {"name": str(name), **call}}:
                calls.append(_call(name, call, part, len(calls)))
            case _:
                others.append(part)
    return choice_of(texts, thoughts, calls, others, _end(candidate, bool(calls)), number)


def _call(name: str, call: Mapping[Any, Any], part: Mapping[Any, Any], number: int) -> Json:
    arguments = json.dumps(call.get("args") or {})
    found: Json = {
        "id": call.get("id") or f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    if signature := part.get("thoughtSignature"):
        found["extra_content"] = {"google": {"thought_signature": signature}}
    return found


def _end(candidate: Mapping[str, Any], calls: bool) -> str | None:
    reason = candidate.get("finishReason")
    if not isinstance(reason, str):
        return None
    if candidate.get("is_blocked") or reason in _FILTERED:
        return f"content_filter: {reason}"
    if reason in _CALLS:
        return f"function_call_filter: {reason}"
    return "tool_calls" if calls and reason == "STOP" else _ENDS.get(reason, reason.lower())


def _usage(usage: Mapping[str, Any]) -> Json:
    """Count tokens as OpenAI does: thoughts are part of the answer, and tool prompts are part of the prompt."""
    prompt = lenient.tokens(usage, "promptTokenCount") + lenient.tokens(usage, "toolUsePromptTokenCount")
    thoughts = lenient.tokens(usage, "thoughtsTokenCount")
    output = lenient.tokens(usage, "candidatesTokenCount") + thoughts
    if not usage or not (prompt or output):
        return {}
    cached_audio = _of_kind(usage, "cacheTokensDetails", "AUDIO")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {
            "cached_tokens": lenient.tokens(usage, "cachedContentTokenCount"),
            # Cached audio is billed at the cache's price.
            "audio_tokens": max(0, _of_kind(usage, "promptTokensDetails", "AUDIO") - cached_audio),
        },
        "completion_tokens_details": {
            "reasoning_tokens": thoughts,
            "image_tokens": _of_kind(usage, "candidatesTokensDetails", "IMAGE"),
            "audio_tokens": _of_kind(usage, "candidatesTokensDetails", "AUDIO"),
        },
    }


def _of_kind(usage: Mapping[str, Any], name: str, kind: str) -> int:
    details = usage.get(name)
    found = map(lenient.mapping, details) if isinstance(details, list) else ()
    return sum(lenient.tokens(one, "tokenCount") for one in found if one.get("modality") == kind)


def result_line(line: bytes) -> bytes:
    """Return a result line in OpenAI's shape. A line that is not JSON stays unchanged."""
    told = lenient.decode_object(line)
    if told is None:
        return line
    key = told.get("key", lenient.mapping(told.get("metadata")).get("key"))
    return line_of(result_row(key, told.get("response"), told.get("error")))


def result_row(key: object, answer: object, error: object) -> Json:
    """Return a row's answer or error as OpenAI's result line."""
    if isinstance(answer, dict):
        return answered_row(key, 200, completion(answer), answer.get("responseId"))
    if error is not None:
        return answered_row(key, row_status(error), {"error": error_of({"error": error})})
    return failed_row(key, UNKNOWN_RESULT)
