"""Bedrock's records: what a row asks for, what is wrong with it, and its line of the results.

Sources: botocore 1.43 (bedrock-runtime/2023-09-30, service-2.json: ConverseRequest), recorded requests and answers,
AWS's pages on the data and the results of batch inference; maximhq/bifrost#4516 and BoundaryML/baml#3036 for what
records may not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tests.emulator.answers import CHAT, Asked, Body, content_of, read
from tests.emulator.batch import Batch
from tests.emulator.errors import Json, Problem, Refusal, problem_of, refuse
from tests.emulator.refusals import Refused, refusal_of
from tests.emulator.results import blocks, cut_tail, outcome, with_swapped_keys
from tests.emulator.rowfaults import MARK, Effect, marked
from tests.emulator.settings import Settings
from tests.emulator.validation import JSON_ERRORS, Checked, LineError, lines_of

if TYPE_CHECKING:  # the other providers are played without botocore
    from botocore.model import ServiceModel

MAX_ROWS = 50_000
NOT_IN_BATCHES = ("modelId", "toolConfig", "outputConfig")
ENDS = {"stop": "end_turn", "length": "max_tokens", "filtered": "content_filtered"}


class Row(msgspec.Struct, frozen=True, rename={"record_id": "recordId", "request": "modelInput"}):
    request: dict[str, Any]
    record_id: str


decode_row = msgspec.json.Decoder(Row).decode
encode = msgspec.json.Encoder().encode


@cache
def service(name: str) -> ServiceModel:
    """What the SDK's data say of a service."""
    import botocore.session

    session = botocore.session.get_session()
    return session.get_service_model(name)


def problem_with(request: Json) -> str | None:
    """What Converse does not take in a request."""
    from botocore.validate import ParamValidator

    if unknown := [name for name in NOT_IN_BATCHES if name in request]:
        return f"Malformed input request: #: extraneous key [{unknown[0]}] is not permitted"
    shape = service("bedrock-runtime").shape_for("ConverseRequest")
    report = ParamValidator().validate({"modelId": "m", **request}, shape)
    if report.has_errors():
        return f"Malformed input request: {report.generate_report()}"
    if not request.get("messages"):
        return "The model returned the following errors: messages: Field required"
    return None


def custom_id_of(record: str) -> str:
    """What a record's id stands for in a bill: other characters are hexadecimal behind `x0`."""
    return bytes.fromhex(record[2:]).decode() if record.startswith("x0") else record


def check(path: Path, model: str, least: int, *, is_truthful: bool) -> Checked:
    """The rows as they will run. What is wrong with a whole file is told of the job."""
    found = Checked()
    found.model = model
    ids = set()
    for number, start, raw in lines_of(path):
        try:
            told = msgspec.json.decode(raw)
            row = decode_row(raw)
        except JSON_ERRORS:
            found.errors.append(LineError("", f"Line {number} of the input is not a valid JSON record.", line=number))
            return found
        if not row.record_id.isalnum() or not row.record_id.isascii() or told.keys() - {"recordId", "modelInput"}:
            found.errors.append(LineError("", f"Line {number} of the input has an invalid record.", line=number))
            return found
        ids.add(row.record_id)
        asked, index = asked_of(row.request, model), len(found.draft.starts)
        problem = problem_with(row.request) if is_truthful else None
        if problem is not None:
            found.refused[index] = Refused(400, Problem(problem))
        elif is_truthful and (refused := refusal_of("bedrock", "converse", {**row.request, "model": model})):
            found.refused[index] = refused
        if MARK in raw:
            found.marks[index], found.digests[index] = marked(raw), asked.digest
        found.draft.add(start, len(raw), asked.prompt, asked.completion, asked.most)
    rows = len(found.draft.starts)
    if rows < least:
        words = f"Batch job contains less records ({rows}) than the required minimum of: {least}"
        found.errors.append(LineError("", words))
    elif rows > MAX_ROWS:
        found.errors.append(LineError("", f"Batch job contains more records ({rows}) than allowed: {MAX_ROWS}"))
    return found


def asked_of(request: Json, model: str) -> Asked:
    """The request as a model sees it."""
    turns = [{"content": request.get("system") or []}, *(request.get("messages") or [])]
    texts = [
        {"content": [{"type": "text", "text": block["text"]} for block in turn["content"] if "text" in block]}
        for turn in turns
    ]
    return read(
        Body(model=model, messages=texts, max_tokens=(request.get("inferenceConfig") or {}).get("maxTokens")), CHAT
    )


def answer(asked: Asked, effect: Effect) -> Json:
    tokens = effect.tokens(asked.prompt, asked.completion, asked.most)
    content = [{"text": content_of(asked)}] if effect.finish == "stop" else []
    if tokens.reasoning:
        content.insert(0, {"reasoningContent": {"reasoningText": {"text": "so", "signature": "QUFB"}}})
    fresh = tokens.input - tokens.cached - tokens.cache_write
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": ENDS[effect.finish],
        "usage": {
            "inputTokens": fresh,
            "outputTokens": tokens.output,
            "totalTokens": tokens.input + tokens.output,
            "cacheReadInputTokens": tokens.cached,
            "cacheReadInputTokenCount": tokens.cached,
            "cacheWriteInputTokens": tokens.cache_write,
            "cacheWriteInputTokenCount": tokens.cache_write,
            "serverToolUsage": {},
        },
        "metrics": {"latencyMs": 189},
    }


def result_lines(batch: Batch, settings: Settings) -> Iterator[bytes]:
    """The one file of results, errors among them, in no order that is promised."""
    lines = with_swapped_keys(_lines(batch), batch, "recordId")
    return cut_tail(lines) if batch.plan.has_cut_tail else lines


def _lines(batch: Batch) -> Iterator[bytes]:
    rows = batch.rows
    if rows is None or batch.plan.does_nothing:
        return
    for _, rank, raw in rows.lines(rows.by_rank() if batch.plan.is_shuffled else rows.in_order()):
        effect = outcome(batch, rank)
        if effect is None or effect.unrun is not None:
            continue
        row = decode_row(raw)
        told = encode(_result(batch, row, effect)) + b"\n"
        copies = 0 if effect.place == "none" else effect.copies
        yield from (told[: len(told) // 2] + b"\n" if effect.is_broken else told for _ in range(copies))
        if effect.has_stranger:
            yield encode({**_result(batch, row, effect), "recordId": f"nobody{row.record_id}"}) + b"\n"


def _result(batch: Batch, row: Row, effect: Effect) -> Json:
    told: Json = {"modelInput": row.request, "recordId": row.record_id}
    if "id_null" in effect.odd:
        # A record without an id gets one.
        told["recordId"] = f"GEN{asked_of(row.request, '').digest.hex()[:8].upper()}"
    if effect.status == 200:
        return told | {"modelOutput": answer(asked_of(row.request, batch.model or ""), effect)}
    if effect.status == 0:
        return told
    problem = effect.problem or problem_of(effect.status, effect.code)
    return told | {"error": {"errorCode": effect.status, "errorMessage": effect.message or problem.message}}


__all__ = ["Refusal", "answer", "asked_of", "blocks", "check", "decode_row", "problem_with", "refuse", "result_lines"]
