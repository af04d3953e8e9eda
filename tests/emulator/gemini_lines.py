"""Gemini's requests and results: what a row asks for, what is wrong with it, and its line.

Sources: google-genai 3.6.1 (types.py), recorded requests and answers, Gemini's guide to batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.emulator.answers import CHAT, Asked, Body, content_of, read, tool_of
from tests.emulator.batch import Batch
from tests.emulator.errors import Json, problem_of, refuse, rpc_number
from tests.emulator.refusals import Refused, refusal_of
from tests.emulator.results import blocks, cut_tail, outcome, with_swapped_keys
from tests.emulator.rowfaults import MARK, Effect, marked
from tests.emulator.settings import Settings
from tests.emulator.validation import JSON_ERRORS, Checked, lines_of

REQUEST = {
    "contents",
    "systemInstruction",
    "generationConfig",
    "tools",
    "toolConfig",
    "safetySettings",
    "cachedContent",
}
CONFIG = {
    *("temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "seed", "candidateCount", "presencePenalty"),
    *("frequencyPenalty", "responseLogprobs", "logprobs", "responseMimeType", "responseJsonSchema", "responseSchema"),
    *("thinkingConfig", "responseModalities"),
}
FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "filtered": "SAFETY"}


class Row(msgspec.Struct, frozen=True):
    request: dict[str, Any]
    key: str


decode_row = msgspec.json.Decoder(Row).decode
encode = msgspec.json.Encoder().encode


def refused_by(flavour: str, model: str, request: Json) -> Refused | None:
    """What the model does not take of a request that the API knows."""
    return refusal_of(flavour, "generateContent", {**request, "model": model})


def check_request(request: Json) -> None:
    """Raises Refusal for what the API does not know."""
    for where, known, told in (
        ("", REQUEST, request),
        (" at 'generation_config'", CONFIG, request.get("generationConfig") or {}),
    ):
        if unknown := sorted(told.keys() - known):
            words = f'Invalid JSON payload received. Unknown name "{unknown[0]}"{where}: Cannot find field.'
            raise refuse(400, words, code="INVALID_ARGUMENT")
    if not request.get("contents"):
        raise refuse(400, "* GenerateContentRequest.contents: contents is not specified", code="INVALID_ARGUMENT")


def check_file(path: Path) -> None:
    """Raises Refusal: one malformed row refuses the batch."""
    rows = 0
    for number, _, raw in lines_of(path):
        rows += 1
        try:
            row = decode_row(raw)
        except JSON_ERRORS:
            raise refuse(400, f"Failed to parse line {number} of the input file.", code="INVALID_ARGUMENT") from None
        check_request(row.request)
    if not rows:
        raise refuse(400, "The input file is empty.", code="INVALID_ARGUMENT")


def check(path: Path, model: str, *, is_truthful: bool) -> Checked:
    found = Checked()
    found.model = model
    for _, start, raw in lines_of(path):
        request, index = decode_row(raw).request, len(found.draft.starts)
        asked = asked_of(request, model)
        refused = refused_by("gemini", model, request) if is_truthful else None
        if refused is not None:
            found.refused[index] = refused
        if MARK in raw:
            found.marks[index], found.digests[index] = marked(raw), asked.digest
        found.draft.add(start, len(raw), asked.prompt, asked.completion, asked.most)
    return found


def asked_of(request: Json, model: str) -> Asked:
    """The request as a model sees it."""
    config = request.get("generationConfig") or {}
    turns = [request.get("systemInstruction") or {}, *request["contents"]]
    messages = [{"content": [part for part in turn.get("parts", ()) if "text" in part]} for turn in turns]
    schema = config.get("responseJsonSchema") or _json_schema(config.get("responseSchema"))
    wanted = {"type": "json_schema", "json_schema": {"schema": schema}} if schema else None
    if wanted is None and config.get("responseMimeType") == "application/json":
        wanted = {"type": "json_object"}
    declared = [one for tool in request.get("tools") or () for one in tool.get("functionDeclarations", ())]
    tools = [
        {"function": {"name": one["name"], "parameters": one.get("parametersJsonSchema") or {"type": "object"}}}
        for one in declared
    ]
    mode = ((request.get("toolConfig") or {}).get("functionCallingConfig") or {}).get("mode")
    body = Body(
        model=model,
        messages=messages,
        max_tokens=config.get("maxOutputTokens"),
        response_format=wanted,
        tools=tools,
        tool_choice="required" if mode == "ANY" else None,
    )
    return read(body, CHAT)


def _json_schema(told: Any) -> Any:
    """OpenAPI's schema as JSON Schema: its types are in capitals."""
    if isinstance(told, list):
        return [_json_schema(one) for one in told]
    if not isinstance(told, dict):
        return told
    found = {name: one if name == "enum" else _json_schema(one) for name, one in told.items()}
    kind = told.get("type")
    return found | {"type": kind.lower()} if isinstance(kind, str) else found


def answer(asked: Asked, effect: Effect, model: str) -> Json:
    tokens = effect.tokens(asked.prompt, asked.completion, asked.most)
    candidate: Json = {"finishReason": FINISH[effect.finish], "index": 0}
    tool = tool_of(asked) if effect.finish == "stop" else None
    if tool is not None:
        call = {"name": tool[0], "args": tool[1], "id": asked.digest.hex()[:8]}
        candidate["content"] = {"role": "model", "parts": [{"functionCall": call}]}
    elif effect.finish == "stop":
        candidate["content"] = {"role": "model", "parts": [{"text": content_of(asked)}]}
    usage = {
        "promptTokenCount": tokens.input,
        "cachedContentTokenCount": tokens.cached,
        "candidatesTokenCount": tokens.output - tokens.reasoning,
        "thoughtsTokenCount": tokens.reasoning,
        "totalTokenCount": tokens.input + tokens.output,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens.input}],
    }
    return {
        "candidates": [candidate],
        "usageMetadata": {name: value for name, value in usage.items() if value},
        "modelVersion": model,
        "responseId": asked.digest.hex(),
    }


def result_lines(batch: Batch, settings: Settings) -> Iterator[bytes]:
    """The one file of results, errors among them."""
    lines = with_swapped_keys(_lines(batch, settings), batch, "key")
    return cut_tail(lines) if batch.plan.has_cut_tail else lines


def _lines(batch: Batch, settings: Settings) -> Iterator[bytes]:
    rows = batch.rows
    if rows is None or batch.plan.does_nothing:
        return
    for _, rank, raw in rows.lines(rows.by_rank() if batch.plan.is_shuffled else rows.in_order()):
        effect = outcome(batch, rank)
        if effect is None or effect.unrun is not None:
            continue
        row = decode_row(raw)
        copies = 0 if effect.place == "none" else effect.copies
        told = encode(_result(batch, row, effect, settings)) + b"\n"
        yield from (told[: len(told) // 2] + b"\n" if effect.is_broken else told for _ in range(copies))
        if effect.has_stranger:
            yield encode({**_result(batch, row, effect, settings), "key": f"nobody-asked-{row.key}"}) + b"\n"


def _result(batch: Batch, row: Row, effect: Effect, settings: Settings) -> Json:
    if effect.status == 200:
        asked = asked_of(row.request, batch.model or "")
        told = answer(asked, effect, f"{batch.model}{settings.snapshot}")
        if settings.truthful and "responseJsonSchema" in (row.request.get("generationConfig") or {}):
            # crmne/ruby_llm#894: none of 502 rows of two jobs had the shape that was asked for.
            told["candidates"][0]["content"] = {"role": "model", "parts": [{"text": '{"": null}'}]}
        return {"key": row.key, "response": told}
    if effect.status == 0:
        return {"key": row.key}
    problem = effect.problem or problem_of(effect.status, effect.code)
    return {
        "key": row.key,
        "error": {"code": rpc_number(effect.status), "message": effect.message or problem.message},
    }


__all__ = [
    "answer",
    "asked_of",
    "blocks",
    "check",
    "check_file",
    "check_request",
    "decode_row",
    "refused_by",
    "result_lines",
]
