"""What a model answers: the same for the same model and text, computed whenever it is read and stored nowhere.

Tokens: the prompt's are a quarter of the UTF-8 bytes of its text, rounded up; the answer's are 5 to 44, at most
max_tokens. An answer always fits: it ends with `stop` unless a fault says otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.emulator.rowfaults import Effect, Tokens
from tests.emulator.schema import fit

Json = dict[str, Any]

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
MESSAGES = "/v1/messages"
ENDPOINTS = (RESPONSES, CHAT, EMBEDDINGS)
"""Those that a batch of the OpenAI flavours may have here."""

DIMENSIONS = 8


class Body(msgspec.Struct, frozen=True):
    """What is read of a request's body, at any endpoint."""

    model: Any = None
    messages: Any = None
    system: Any = None
    input: Any = None
    instructions: Any = None
    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    response_format: Any = None
    text: Any = None
    output_config: Any = None
    tools: Any = None
    tool_choice: Any = None
    logprobs: Any = None
    include: Any = None
    service_tier: Any = None


decode_body = msgspec.json.Decoder(Body).decode


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the model sees it. `digest` stands for model and text, `inputs` counts those of an embedding."""

    body: Body
    digest: bytes
    prompt: int
    completion: int
    inputs: int = 1

    @property
    def most(self) -> int:
        """The most tokens that the answer may have; those it has if the request states no bound."""
        stated = _limits(self.body)
        return min(stated) if stated else self.completion

    @property
    def seed(self) -> int:
        return int.from_bytes(self.digest, "big")


def with_model(body: Body, model: str | None) -> Body:
    """A body whose model stands on its batch."""
    return body if isinstance(body.model, str) else msgspec.structs.replace(body, model=model)


def read(body: Body, endpoint: str) -> Asked:
    """Any body that has been decoded; what is not as it should be has no text."""
    pieces = list(_texts(body, endpoint))
    text = "\n".join(pieces).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(f"{body.model}\0".encode("utf-8", "surrogatepass") + text, digest_size=8).digest()
    size = len(text) - max(len(pieces) - 1, 0)
    prompt = -(-size // 4) + _token_ids(body.input)
    if endpoint == EMBEDDINGS:
        return Asked(body, digest, prompt, 0, inputs_of(body.input))
    wanted = 5 + digest[7] % 40
    return Asked(body, digest, prompt, min([wanted, *_limits(body)]))


def _limits(body: Body) -> list[int]:
    stated = (body.max_completion_tokens, body.max_tokens, body.max_output_tokens)
    return [limit for limit in stated if isinstance(limit, int)]


def inputs_of(value: Any) -> int:
    """How many inputs an embedding row has; a list of token ids is one."""
    if isinstance(value, list) and not (value and isinstance(value[0], int)):
        return len(value)
    return 1


def _token_ids(value: Any) -> int:
    if not isinstance(value, list):
        return 0
    return sum(1 if isinstance(item, int) else _token_ids(item) for item in value)


def _texts(body: Body, endpoint: str) -> Iterator[str]:
    if body.instructions is not None:
        yield from _content(body.instructions)
    if body.system is not None:
        yield from _content(body.system)
    if endpoint in (CHAT, MESSAGES):
        yield from _messages(body.messages)
    elif endpoint == RESPONSES:
        yield from _messages(body.input) if isinstance(body.input, list) else _content(body.input)
    else:
        yield from _content(body.input)


def _messages(messages: Any) -> Iterator[str]:
    if isinstance(messages, list):
        for message in messages:
            if isinstance(message, dict):
                yield from _content(message.get("content"))


def _content(content: Any) -> Iterator[str]:
    """Strings, and the text of parts and of what stands in them, as in a tool's result."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict):
                yield from _content(part.get("text", part.get("content")))
            else:
                yield from _content(part)


def content_of(asked: Asked) -> str:
    """`answer` and the digest, or JSON that fits the schema asked for: by a field, or at the end of the question."""
    schema = _schema(asked.body)
    if schema is None or "type" not in schema:
        schema = _schema_in_words(asked.body) or schema
    if schema is not None:
        value = fit(schema, asked.seed)
        if isinstance(value, dict) and isinstance(value.get("row_code"), str):
            # As a model copies the code that stands last in the question.
            value["row_code"] = _last_question(asked.body).rpartition(" ")[2]
        return json.dumps(value, ensure_ascii=False)
    return f"answer {asked.digest.hex()}"


def _schema(body: Body) -> Json | None:
    text = body.text.get("format") if isinstance(body.text, dict) else None
    config = body.output_config.get("format") if isinstance(body.output_config, dict) else None
    match body.response_format or text or config:
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
        case {"type": "json_schema", "schema": dict(schema)}:
            return schema
        case {"type": "json_object"}:
            return {"properties": {"answer": {}}}
        case _:
            return None


def _schema_in_words(body: Body) -> Json | None:
    """The JSON Schema that is the last paragraph but a code of the last question: a model can read it there too."""
    text = _last_question(body)
    if '"type"' not in text:
        return None
    for line in text.splitlines()[-3:]:
        if line.startswith("{") and line.endswith("}"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and "type" in found:
                return found
    return None


def _last_question(body: Body) -> str:
    asked = body.messages if isinstance(body.messages, list) else body.input
    return "".join(_messages(asked[-1:])) if isinstance(asked, list) else ""


def tool_of(asked: Asked) -> tuple[str, Json] | None:
    """Name and arguments of the tool call where the body forces one."""
    tools = [_tool(tool) for tool in asked.body.tools or ()]
    match asked.body.tool_choice:
        case "required" | {"type": "any"}:
            wanted = tools[0][0]
        case {"type": "function", "function": {"name": str(wanted)}} | {"type": "tool", "name": str(wanted)}:
            pass
        case _:
            return None
    return wanted, fit(dict(tools)[wanted], asked.seed)


def _tool(tool: Json) -> tuple[str, Json]:
    told = tool.get("function", tool)
    return told["name"], told.get("parameters", told.get("input_schema")) or {"type": "object"}


def answer(asked: Asked, endpoint: str, effect: Effect, *, model: str, tier: str, at: int) -> Json:
    """The body of a success; `model` as the provider calls it, `at` in unix seconds."""
    tokens = effect.tokens(asked.prompt, asked.completion, asked.most)
    match endpoint:
        case "/v1/embeddings":
            return _embedding(asked, model)
        case "/v1/responses":
            return _response(asked, effect, tokens, model, tier, at)
        case "/v1/messages":
            return _message(asked, effect, tokens, model, tier)
        case _:
            return _chat(asked, effect, tokens, model, tier, at)


_FINISH = {"stop": "stop", "length": "length", "filtered": "content_filter"}


def _chat(asked: Asked, effect: Effect, tokens: Tokens, model: str, tier: str, at: int) -> Json:
    message: Json = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
    finish = _FINISH[effect.finish]
    tool = tool_of(asked) if effect.finish == "stop" else None
    if tool is not None:
        called = {"name": tool[0], "arguments": json.dumps(tool[1])}
        message["tool_calls"] = [{"id": f"call_{asked.digest.hex()}", "type": "function", "function": called}]
        finish = "tool_calls"
    elif effect.finish != "filtered":
        message["content"] = content_of(asked) if effect.finish == "stop" else ""
    wanted = asked.body.logprobs is True and message["content"]
    logprobs = {"content": _logprobs(asked, message["content"]), "refusal": None} if wanted else None
    outside = tokens.reasoning if effect.reasons == "outside" else 0
    return {
        "id": f"chatcmpl-{asked.digest.hex()}",
        "object": "chat.completion",
        "created": at,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": tokens.input,
            "completion_tokens": tokens.output - outside,
            "total_tokens": tokens.input + tokens.output,
            "prompt_tokens_details": {**_cache_of(tokens), "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": tokens.reasoning, "audio_tokens": 0},
        },
        "service_tier": tier,
        "system_fingerprint": None,
    }


def _cache_of(tokens: Tokens) -> Json:
    """Models of OpenAI before gpt-5.6 count no writes."""
    written = {"cache_write_tokens": tokens.cache_write} if tokens.cache_write else {}
    return {"cached_tokens": tokens.cached, **written}


def _logprobs(asked: Asked, text: str) -> list[Json]:
    """Tokens of three characters; how sure the model is of each goes by the digest."""
    pieces = [text[start : start + 3] for start in range(0, len(text), 3)]
    sure = -asked.digest[0] / 1024
    return [{"token": piece, "logprob": sure, "bytes": list(piece.encode()), "top_logprobs": []} for piece in pieces]


def _response(asked: Asked, effect: Effect, tokens: Tokens, model: str, tier: str, at: int) -> Json:
    is_whole = effect.finish == "stop"
    cause = {"length": "max_output_tokens", "filtered": "content_filter"}.get(effect.finish)
    text = content_of(asked)
    logprobs = _logprobs(asked, text) if "message.output_text.logprobs" in (asked.body.include or ()) else []
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
    content = [part] if is_whole else []
    return {
        "id": f"resp_{asked.digest.hex()}",
        "object": "response",
        "created_at": at,
        "status": "completed" if is_whole else "incomplete",
        "error": None,
        "incomplete_details": None if is_whole else {"reason": cause},
        "model": model,
        "output": [
            {
                "id": f"msg_{asked.digest.hex()}",
                "type": "message",
                "status": "completed" if is_whole else "incomplete",
                "role": "assistant",
                "content": content,
            }
        ],
        "service_tier": tier,
        "usage": {
            "input_tokens": tokens.input,
            "input_tokens_details": _cache_of(tokens),
            "output_tokens": tokens.output,
            "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
            "total_tokens": tokens.input + tokens.output,
        },
    }


def _embedding(asked: Asked, model: str) -> Json:
    values = [round(byte / 255 - 0.5, 6) for byte in asked.digest[:DIMENSIONS]]
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": values} for index in range(asked.inputs)],
        "model": model,
        "usage": {"prompt_tokens": asked.prompt, "total_tokens": asked.prompt},
    }


_STOP = {"stop": "end_turn", "length": "max_tokens", "filtered": "refusal"}


def _message(asked: Asked, effect: Effect, tokens: Tokens, model: str, tier: str) -> Json:
    content: list[Json] = []
    stop = _STOP[effect.finish]
    if tokens.reasoning:
        content.append({"type": "thinking", "thinking": "so", "signature": asked.digest.hex()})
    tool = tool_of(asked)
    if effect.finish == "stop" and tool is not None:
        content.append({"type": "tool_use", "id": f"toolu_{asked.digest.hex()}", "name": tool[0], "input": tool[1]})
        stop = "tool_use"
    elif effect.finish == "stop":
        content.append({"type": "text", "text": content_of(asked)})
    return {
        "id": f"msg_{asked.digest.hex()}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": tokens.input - tokens.cached - tokens.cache_write,
            "cache_creation_input_tokens": tokens.cache_write,
            "cache_read_input_tokens": tokens.cached,
            "cache_creation": {"ephemeral_1h_input_tokens": tokens.cache_write if effect.is_hour else 0},
            "output_tokens": tokens.output,
            "output_tokens_details": {"thinking_tokens": tokens.reasoning},
            "service_tier": tier,
        },
    }
