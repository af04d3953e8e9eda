"""Turns finished rows into lines of the merged result, and of OpenAI's output and error files."""

from __future__ import annotations

from typing import Any

import msgspec

from orchestrator.core import batch_api
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.jsonl import single_line
from orchestrator.core.model import FinishedRow, RequestState, Usage
from orchestrator.policy.answer_check import AnswerCheck, raw_output
from orchestrator.policy.answer_text import answer_of, response_json
from orchestrator.policy.grounding import read_quotes
from orchestrator.policy.row_errors import QUARANTINED
from orchestrator.policy.unpriced import may_have_unpriced, unpriced
from orchestrator.settings.model_lists import rung_of

_decode_line = json_decoder(batch_api.ResultLine).decode


def _encode_line(value: Any) -> bytes:
    return single_line(msgspec.json.encode(value))


def merged_row(row: FinishedRow, line: bytes | None, check: AnswerCheck | None) -> bytes:
    """Return one line of the merged result: identity, outcome, parsed output and provenance."""
    output, finish_reason = output_of(row, line, check)
    if row.error_code in QUARANTINED:
        output = None  # the answer may be about another document
    error = None if row.error_code is None else {"code": row.error_code, "message": row.error_message}
    return _encode_line(
        {
            "custom_id": row.custom_id,
            "document": row.document,
            "task": row.task,
            "stage": row.stage,
            "part": row.part,
            "parts": row.parts,
            "status": row.state,
            "output": output,
            "error": error,
            "provenance": _provenance(row, finish_reason) | _unpriced(row, line),
        }
        | ({} if row.quotes is None else {"quotes": read_quotes(row.quotes)})
    )


def output_of(row: FinishedRow, line: bytes | None, check: AnswerCheck | None) -> tuple[Any, str | None]:
    """Return the answer in a row's result line, as its check reads it, and why it ended.

    An unchecked answer without text is returned as the whole body, as raw JSON.
    """
    response = None if line is None else _decode_line(line).response
    if response is None or not 200 <= response.status_code < 300:
        return None, None
    body = response_json(response)
    answer = answer_of(body)
    is_checked = check is not None and row.state is RequestState.SUCCEEDED
    output = check.output(answer, body) if check and is_checked else raw_output(answer, body)
    return output, answer.finish_reason


def _provenance(row: FinishedRow, finish_reason: str | None) -> dict[str, Any]:
    alias, rung = rung_of(row.model)
    return {
        "backend": row.backend,
        "upstream": row.upstream,
        "model": row.answered_by or alias,
        "batch_id": row.batch_id,
        "tier": row.tier,
        "attempt": row.attempt_number,
        # Which model of its alias's list answered; unknown if another job, with its own list, answered.
        "rung": rung if row.carried_from is None else None,
        "tokens": {
            "input": row.usage.input_tokens,
            "cached": row.usage.cached_tokens,
            "cache_write": row.usage.cache_write_tokens,
            "output": row.usage.output_tokens,
            "reasoning": row.usage.reasoning_tokens,
            **_rare_counts(row.usage),
        },
        "cost_usd": f"{row.cost:f}",
        "latency_ms": row.latency_ms,
        "settled_at": row.settled_at,
        "finish_reason": finish_reason,
        "repaired": row.repaired,
        "prompt_version": row.prompt_version,
        "document_cut_from_tokens": row.cut_from_tokens,
        "document_sent_as": row.sent_as,
        "document_notes": row.notes,
        "carried_from": row.carried_from,
        "why": row.why,
        **({"cost_estimated": True} if row.is_guessed else {}),
    }


def _unpriced(row: FinishedRow, line: bytes | None) -> dict[str, Any]:
    """Return the field for use that the cost does not cover; empty if the cost covers everything."""
    counted = row.usage.input_tokens + row.usage.output_tokens
    if line is None or not may_have_unpriced(line, counted):
        return {}
    response = _decode_line(line).response
    found = () if response is None else unpriced(response_json(response), counted)
    return {"unpriced": found} if found else {}


def _rare_counts(usage: Usage) -> dict[str, int]:
    counts = {
        "cache_write_1h": usage.cache_write_1h_tokens,
        "input_audio": usage.input_audio_tokens,
        "output_audio": usage.output_audio_tokens,
        "input_image": usage.input_image_tokens,
        "output_image": usage.output_image_tokens,
        "web_searches": usage.web_searches,
    }
    return {name: count for name, count in counts.items() if count}


class _Plain(msgspec.Struct):
    """A result line in OpenAI's form, without our own server's additions."""

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
