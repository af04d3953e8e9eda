"""Converts answers and result rows of other APIs to OpenAI's shape. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from orchestrator.core.errors import InputError

Json = dict[str, Any]
REFUSED = "unsupported_parameter"
"""Error code of a row that orch did not send because one of its fields has no counterpart."""
CANCELLED = {"code": "batch_cancelled", "message": "The batch was cancelled before the request ran."}
EXPIRED = {"code": "batch_expired", "message": "The batch expired before the request ran."}
UNKNOWN_RESULT = {"code": "unknown_result", "message": "The backend returned a result of an unknown kind."}


def completion_of(choices: list[Json], usage: Json, answer_id: Any, model: Any, tier: Any) -> Json:
    """Return the body of a chat completion. `created` is 0, because other APIs state no time."""
    return {
        "id": answer_id, "object": "chat.completion", "created": 0, "model": model, "choices": choices,
        "usage": usage, "service_tier": tier,
    }  # fmt: skip


def choice_of(
    texts: list[str], thoughts: list[str], calls: list[Json], others: list[Any], end: str | None, index: int = 0
) -> Json:
    """Return a choice. Extensions: `reasoning_content`, and `other_content` with parts that OpenAI's shape lacks."""
    message: Json = {"role": "assistant", "content": "".join(texts) if texts else None, "refusal": None}
    more = {"tool_calls": calls, "reasoning_content": "".join(thoughts), "other_content": others}
    message |= {name: value for name, value in more.items() if value}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": end}


def cached_usage(fresh: int, read: int, put: int, put_for_an_hour: int, output: int) -> Json:
    """Count tokens as OpenAI does: the whole prompt, with its parts read from and written to the cache.

    `fresh` is the remainder of the prompt. Tokens cached for an hour are counted separately, because they cost more
    than tokens cached for five minutes.
    """
    prompt = fresh + read + put
    parts = {"cached_tokens": read, "cache_write_tokens": put, "cache_write_1h_tokens": put_for_an_hour}
    return {
        "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
        "prompt_tokens_details": parts,
    }  # fmt: skip


def answered_row(custom_id: object, status: int, body: object, request_id: object = None) -> Json:
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": None, "custom_id": custom_id, "response": response, "error": None}


def failed_row(custom_id: object, error: Json) -> Json:
    """Return the result of a row that got an error instead of an answer."""
    return {"id": None, "custom_id": custom_id, "response": None, "error": error}


def unsent_row(custom_id: str, error: InputError) -> Json:
    """Return the result of a row that orch did not send. It names the field that has no counterpart."""
    message = f"{error.field}: {error.message}"
    told = {"message": message, "type": "invalid_request_error", "param": error.field, "code": REFUSED}
    return answered_row(custom_id, 400, {"error": told})


def line(row: Json) -> bytes:
    """Return a row as a line of JSON, without a newline."""
    try:
        return msgspec.json.encode(row)
    except (OverflowError, UnicodeEncodeError):
        # A number beyond 64 bits or a lone surrogate: a paid answer must not be lost.
        return json.dumps(row).encode()
