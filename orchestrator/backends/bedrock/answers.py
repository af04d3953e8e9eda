"""Converse's answers, result lines and errors of AWS in OpenAI's shape. Pure.

Sources: botocore 1.43 (service-2.json of bedrock, bedrock-runtime and s3), recorded answers, AWS's page on results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import unescape
from typing import Any

from orchestrator.backends import lenient
from orchestrator.backends.bedrock.requests import custom_id_of
from orchestrator.backends.openai_shape import UNKNOWN_RESULT, answered_row, choice_of, completion_of, failed_row
from orchestrator.core.finish_reasons import is_error

_ENDS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "content_filtered": "content_filter: content_filtered",
    "guardrail_intervened": "content_filter: guardrail_intervened",
    "malformed_tool_use": "function_call_filter: malformed_tool_use",
}
_STATUSES = {
    "ConflictException": 409,
    "ServiceQuotaExceededException": 429,
    "SlowDown": 429,
    # Bad credentials come with 400 from one service and 403 from another.
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "UnrecognizedClientException", "InvalidAccessKeyId",
         "InvalidClientTokenId", "InvalidToken", "SignatureDoesNotMatch", "InvalidSignatureException",
         "IncompleteSignature", "MissingAuthenticationToken", "RequestExpired", "RequestTimeTooSkewed"),
        401,
    ),
    # A bucket that is not there, or elsewhere, is a matter of settings. No row is lost for it.
    **dict.fromkeys(("NoSuchBucket", "PermanentRedirect", "AuthorizationHeaderMalformed"), 403),
}  # fmt: skip
"""Statuses of errors whose own status says something else at other providers."""
BAD_CREDENTIALS = 401
_LEAST_STATUS = 400
_UNKNOWN_STATUS = 502
_XML_WORDS = re.compile(r"<(Code|Message)>([^<]*)</")
Json = dict[str, Any]


def error_of(content: bytes, kind: str) -> Json | None:
    """Return the error object in an answer, by JSON, XML or the header `x-amzn-errortype`; None for a stranger's."""
    told = lenient.decode_object(content)
    if told is None:
        found = dict(_XML_WORDS.findall(content.decode(errors="replace"))) if b"<Error" in content else {}
        told = {"code": found.get("Code"), "message": unescape(found.get("Message", ""))}
    code = kind or lenient.text(told.get("__type") or told.get("code"))
    code = code.partition(":")[0].rpartition("#")[2]
    # A refused signature is explained by the whole request, with the session's token, from the second line on.
    said = lenient.text(told.get("message") or told.get("Message")).partition("\n")[0]
    return {"code": code, "type": code, "param": None, "message": said or code} if code else None


def status_of(code: str, status: int) -> int:
    return _STATUSES.get(code, status)


def completion(answer: Mapping[str, Any]) -> Json:
    """Convert any answer to a chat completion's body: it is paid for, and must not be lost because of its shape.

    Extensions: `reasoning_content`, and `other_content` with blocks that have no place in OpenAI's shape.
    """
    if is_error(answer):
        return dict(answer)
    blocks = lenient.mapping(lenient.mapping(answer.get("output")).get("message")).get("content")
    texts, thoughts, calls, others = list[str](), list[str](), list[Json](), list[Any]()
    for block in blocks if isinstance(blocks, list) else []:
        match block:
            case {"text": str(text)}:
                texts.append(text)
            case {"citationsContent": {"content": list(parts)}}:
                texts += [lenient.mapping(part).get("text") or "" for part in parts]
                others.append(block)
            case {"reasoningContent": {"reasoningText": {"text": str(thought)}}}:
                thoughts.append(thought)
            case {"toolUse": {"name": str(name), "toolUseId": str(call_id), **call}}:
                function = {"name": name, "arguments": json.dumps(call.get("input") or {})}
                calls.append({"id": call_id, "type": "function", "function": function})
            case _:
                others.append(block)
    reason = answer.get("stopReason")
    end = _ENDS.get(reason, reason) if isinstance(reason, str) else None
    tier = lenient.mapping(answer.get("serviceTier")).get("type")
    usage = _usage(lenient.mapping(answer.get("usage")))
    return completion_of([choice_of(texts, thoughts, calls, others, end)], usage, None, None, tier)


def _usage(usage: Mapping[str, Any]) -> Json:
    """Count tokens as OpenAI does: the whole prompt in one sum, with the parts read from and written to the cache."""
    read, put = _number(usage, "cacheReadInputTokens"), _number(usage, "cacheWriteInputTokens")
    prompt, output = _number(usage, "inputTokens") + read + put, _number(usage, "outputTokens")
    if not usage or not (prompt or output):
        return {}
    details = usage.get("cacheDetails")
    parts = map(lenient.mapping, details) if isinstance(details, list) else ()
    lasting = sum(_number(part, "inputTokens") for part in parts if part.get("ttl") == "1h")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": put, "cache_write_1h_tokens": lasting},
    }


def _number(usage: Mapping[str, Any], name: str) -> int:
    return lenient.count(usage.get(name), lenient.MOST_TOKENS) or 0


def result_line(line: bytes) -> bytes:
    """Return a result's line in OpenAI's shape; a line that is not JSON stays as it is."""
    told = lenient.decode_object(line)
    if told is None:
        return line
    custom_id, answer, error = custom_id_of(told.get("recordId")), told.get("modelOutput"), told.get("error")
    if isinstance(answer, dict):
        row = answered_row(custom_id, 200, completion(answer))
    elif error is not None:
        found = lenient.mapping(error)
        status = lenient.count(found.get("errorCode")) or 0
        said = lenient.text(found.get("errorMessage", error))
        body = {"error": {"message": said, "type": None, "param": None, "code": None}}
        row = answered_row(custom_id, status if status >= _LEAST_STATUS else _UNKNOWN_STATUS, body)
    else:
        row = failed_row(custom_id, UNKNOWN_RESULT)
    return json.dumps(row).encode()


def objects_of(content: bytes) -> tuple[list[Json], str | None]:
    """Return the objects in a listing of a bucket as OpenAI's files, and the mark of the next page."""
    text = content.decode(errors="replace")
    if "<ListBucketResult" not in text:
        raise ValueError("the answer is not a listing of a bucket")
    files = [
        {
            "id": (key := unescape(found["key"])),
            "filename": key.rpartition("/")[2],
            "bytes": _tag("Size", found["rest"]),
            "created_at": _tag("LastModified", found["rest"]),
        }
        for found in re.finditer(r"<Contents>.*?<Key>(?P<key>[^<]*)</Key>(?P<rest>.*?)</Contents>", text, re.DOTALL)
    ]
    return files, _tag("NextContinuationToken", text)


def _tag(name: str, text: str) -> str | None:
    found = re.search(f"<{name}>([^<]*)</{name}>", text)
    return None if found is None else unescape(found[1])


def account_in(content: bytes) -> str | None:
    """Return the number of the account in the answer to `GetCallerIdentity`."""
    return _tag("Account", content.decode(errors="replace"))
