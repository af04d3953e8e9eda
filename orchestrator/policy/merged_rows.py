"""Conversion of finished rows to lines of the merged result, and of OpenAI's output and error files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from orchestrator.core import batch_api
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.jsonl import single_line
from orchestrator.core.model import FinishedRow, RequestState, Why
from orchestrator.policy.answer_check import AnswerCheck, raw_output
from orchestrator.policy.answer_text import answer_of, response_json
from orchestrator.policy.grounding import read_quotes
from orchestrator.policy.row_errors import QUARANTINED
from orchestrator.policy.unpriced import may_have_unpriced, unpriced
from orchestrator.settings.model_lists import rung_of


class _Answered(msgspec.Struct, gc=False):
    response: batch_api.ResultResponse | None = None


_decode_line = json_decoder(_Answered).decode
_encode = msgspec.json.Encoder().encode


def _encode_line(value: Any) -> bytes:
    return single_line(_encode(value))


class _Tokens(msgspec.Struct, gc=False):
    input: int
    cached: int
    cache_write: int
    output: int
    reasoning: int
    cache_write_1h: int | UnsetType
    input_audio: int | UnsetType
    output_audio: int | UnsetType
    input_image: int | UnsetType
    output_image: int | UnsetType
    web_searches: int | UnsetType


class _Origin(msgspec.Struct, gc=False):
    backend: str | None
    upstream: str | None
    model: str
    batch_id: str | None
    tier: str | None
    attempt: int
    rung: int | None
    tokens: _Tokens
    cost_usd: str
    latency_ms: int | None
    settled_at: datetime | None
    finish_reason: str | None
    repaired: bool
    prompt_version: str
    document_cut_from_tokens: int | None
    document_sent_as: str | None
    document_notes: str | None
    carried_from: str | None
    why: Why | None
    cost_estimated: bool | UnsetType
    unpriced: Sequence[str] | UnsetType


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    document: str
    task: str
    stage: str | None
    part: int | None
    parts: int | None
    status: RequestState
    output: Any
    error: Mapping[str, str | None] | None
    provenance: _Origin
    quotes: Any


def merged_row(row: FinishedRow, line: bytes | None, check: AnswerCheck | None) -> bytes:
    """Return one line of the merged result: identity, outcome, parsed output and provenance."""
    output, finish_reason = output_of(row, line, check)
    if row.error_code in QUARANTINED:
        output = None  # the answer may be about another document
    error = None if row.error_code is None else {"code": row.error_code, "message": row.error_message}
    quotes = UNSET if row.quotes is None else read_quotes(row.quotes)
    origin = _origin(row, finish_reason, _unpriced(row, line))
    stage = None if row.parts is None else row.stage
    return _encode_line(
        _Line(
            row.custom_id, row.document, row.task, stage, row.part, row.parts, row.state, output, error, origin,
            quotes,
        )
    )  # fmt: skip


def output_of(row: FinishedRow, line: bytes | None, check: AnswerCheck | None) -> tuple[Any, str | None]:
    """Return the answer in a row's result line, and its finish reason.

    A checked answer is returned as its check reads it. An unchecked answer without text is the whole body, as raw
    JSON.
    """
    response = None if line is None else _decode_line(line).response
    if response is None or not 200 <= response.status_code < 300:
        return None, None
    body = response_json(response)
    answer = answer_of(body)
    is_checked = check is not None and row.state is RequestState.SUCCEEDED
    output = check.output(answer, body) if check and is_checked else raw_output(answer, body)
    return output, answer.finish_reason


def _origin(row: FinishedRow, finish_reason: str | None, not_priced: Sequence[str]) -> _Origin:
    """Return a row's provenance. Fields that are rarely known are left out if empty, instead of null or 0."""
    alias, rung = rung_of(row.model)
    usage = row.usage
    tokens = _Tokens(
        usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens, usage.output_tokens,
        usage.reasoning_tokens, usage.cache_write_1h_tokens or UNSET, usage.input_audio_tokens or UNSET,
        usage.output_audio_tokens or UNSET, usage.input_image_tokens or UNSET, usage.output_image_tokens or UNSET,
        usage.web_searches or UNSET,
    )  # fmt: skip
    return _Origin(
        row.backend, row.upstream, row.answered_by or alias, row.batch_id, row.tier, row.attempt + 1,
        # Which model of its alias's list answered; unknown if another job, with its own list, answered.
        rung if row.carried_from is None else None,
        tokens, f"{row.cost:f}", row.latency_ms, row.settled_at, finish_reason, row.repaired, row.prompt_version,
        row.cut_from_tokens, row.sent_as, row.notes, row.carried_from, row.why,
        # The cost is an estimate if the answer states no tokens.
        row.is_guessed or UNSET, not_priced or UNSET,
    )  # fmt: skip


def _unpriced(row: FinishedRow, line: bytes | None) -> Sequence[str]:
    """Return the names of the answer's kinds of usage that its cost does not cover."""
    counted = row.usage.input_tokens + row.usage.output_tokens
    if line is None or not may_have_unpriced(line, counted):
        return ()
    response = _decode_line(line).response
    return () if response is None else unpriced(response_json(response), counted)


class _Plain(msgspec.Struct):
    """A result line in OpenAI's form, without the fields that our own server adds."""

    id: msgspec.Raw = msgspec.Raw(b"null")
    custom_id: msgspec.Raw = msgspec.Raw(b"null")
    response: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")


_decode_plain = json_decoder(_Plain).decode


def batch_row(row: FinishedRow, line: bytes | None) -> bytes:
    """Return one line in the form of OpenAI's output and error files."""
    if line is not None:
        plain = _decode_plain(line)
        # The answer may come from another row with the same body, and then names that row.
        plain.custom_id = msgspec.Raw(msgspec.json.encode(row.custom_id))
        return _encode_line(plain)
    error = {"code": row.error_code or row.state, "message": row.error_message or f"This request is {row.state}."}
    return _encode_line({"id": f"batch_req_{row.seq}", "custom_id": row.custom_id, "response": None, "error": error})
