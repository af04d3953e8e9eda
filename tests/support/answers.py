"""What the upstream says: deterministic answers and errors in the shapes of vLLM's OpenAI server."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from typing import Any

from tests.support.engine import count_tokens

Json = dict[str, Any]

_ERROR_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
NOT_JSON = 'I would rather say it in my own words: {"oops'


def error(status: int, message: str, kind: str | None = None, param: str | None = None) -> Json:
    """vLLM's error body: `code` is the status as an integer."""
    kind = kind or _ERROR_TYPES.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def context_error(limit: int, wanted: int, prompt: int) -> Json:
    return error(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested {wanted} output tokens "
        f"and your prompt contains {prompt} input tokens, for a total of {prompt + wanted} tokens. "
        "Please reduce the length of the input prompt or the number of requested output tokens.",
        param="input_tokens",
    )


def text_of(content: Any) -> str:
    """The text of a message's content, which is a string, a list of parts or null."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return ""


def inputs_of(value: Any) -> list[str]:
    """The inputs of an embedding or completion: one or many, each a text or a list of token ids."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        return []
    if isinstance(value[0], int):
        return [json.dumps(value)]
    return [item if isinstance(item, str) else json.dumps(item) for item in value]


def echo(text: str) -> str:
    """The content of an answer, where the body asks for no form: a test can compute it from its own prompt."""
    return "echo:" + hashlib.sha256(text.encode()).hexdigest()[:16]


def content_for(body: Json, text: str) -> str:
    wanted = body.get("response_format") or {}
    structured = body.get("structured_outputs") or {}
    if wanted.get("type") == "json_schema":
        return _json_text(wanted["json_schema"].get("schema", {}), text)
    if "json" in structured:
        schema = structured["json"]
        return _json_text(json.loads(schema) if isinstance(schema, str) else schema, text)
    if structured.get("choice"):
        return str(_pick(structured["choice"], echo(text)))
    if wanted.get("type") == "json_object":
        return json.dumps({"echo": echo(text)})
    return echo(text)


def _json_text(schema: Json, text: str) -> str:
    return json.dumps(satisfy(schema, echo(text)))


def _pick(options: list[Any], seed: str) -> Any:
    return options[int(seed[-8:], 16) % len(options)]


def satisfy(schema: Json, seed: str, root: Json | None = None) -> Any:
    """A value that the (simple, finite) JSON schema accepts, the same for the same `seed` ("echo:<hex>")."""
    root = schema if root is None else root
    if "$ref" in schema:
        target: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return satisfy(target, seed, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return _pick(schema["enum"], seed)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return satisfy(schema[choice][0], seed, root)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    return _value(kind[0] if isinstance(kind, list) else kind, schema, seed, root)


def _value(kind: str, schema: Json, seed: str, root: Json) -> Any:
    match kind:
        case "object":
            return {name: satisfy(part, seed, root) for name, part in schema.get("properties", {}).items()}
        case "array":
            size = max(schema.get("minItems", 0), min(1, schema.get("maxItems", 1)))
            return [satisfy(schema.get("items", {}), seed, root) for _ in range(size)]
        case "integer":
            return schema.get("minimum", min(1, schema.get("maximum", 1)))
        case "number":
            return schema.get("minimum", min(0.5, schema.get("maximum", 0.5)))
        case "boolean":
            return True
        case "null":
            return None
        case "string" if schema.get("format") == "date":
            return "2026-11-30"
        case _:
            return seed.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]


def vector(text: str, size: int) -> list[float]:
    """An embedding in [-1, 1), a function of the text alone."""
    stream = hashlib.shake_256(text.encode()).digest(size * 2)
    return [value / 32768 for value in struct.unpack(f"<{size}h", stream)]


def usage(prompt: int, completion: int, cached: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def logprobs_of(text: str) -> Json:
    """Tokens of three characters; how sure the model is of each goes by the text."""
    sure = -(hashlib.sha256(text.encode()).digest()[0] / 1024)
    pieces = [text[start : start + 3] for start in range(0, len(text), 3)]
    told = [{"token": piece, "logprob": sure, "bytes": list(piece.encode()), "top_logprobs": []} for piece in pieces]
    return {"content": told, "refusal": None}


def chat(
    name: str, model: str, created: int, content: str, finish: str, used: Json, *, logprobs: bool = False
) -> Json:
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, "refusal": None, "reasoning": None},
                "logprobs": logprobs_of(content) if logprobs else None,
                "finish_reason": finish,
                "stop_reason": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": used,
    }


def completion(name: str, model: str, created: int, texts: list[str], finish: str, used: Json) -> Json:
    choices = [
        {"index": i, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        for i, text in enumerate(texts)
    ]
    return {
        "id": f"cmpl-{name}",
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
        "usage": used,
    }


def embeddings(name: str, model: str, created: int, texts: list[str], body: Json) -> Json:
    tokens = sum(count_tokens(text) for text in texts)
    data: list[Json] = []
    for index, text in enumerate(texts):
        values: Any = vector(text, body.get("dimensions") or 8)
        if body.get("encoding_format") == "base64":
            values = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
        data.append({"index": index, "object": "embedding", "embedding": values})
    used = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
    return {
        "id": f"embd-{name}",
        "object": "list",
        "created": created,
        "model": model,
        "data": data,
        "usage": used,
    }


def models(names: list[str], created: int, max_model_len: int) -> Json:
    data: list[Json] = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": name,
            "parent": None,
            "max_model_len": max_model_len,
            "permission": [],
        }
        for name in names
    ]
    return {"object": "list", "data": data}
