"""Merged lines as a job has them, made by what makes them: an answer, its row, `merged_row`."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from orchestrator.core.model import FinishedRow, Job, RequestState, Span, Usage
from orchestrator.policy.answer_check import OutputCheck
from orchestrator.policy.merged_rows import merged_row
from tests.support import stored

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "topic": {"type": "string"},
        "pages": {"type": "integer"},
        "score": {"type": ["number", "null"]},
        "urgent": {"type": "boolean"},
        "kind": {"enum": ["letter", "bill"]},
        "sender": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "town": {"type": "string"}},
        },
        "dates": {"type": "array", "items": {"type": "string"}},
        "rest": {},
    },
    "required": ["topic"],
}
ANSWER = {
    "topic": "Überraschung, \"again\"", "pages": 3, "score": 0.5, "urgent": True, "kind": "bill",
    "sender": {"name": "Ann", "town": None}, "dates": ["2026-01-01", "x"], "rest": {"a": [1, None]},
}  # fmt: skip
TASKS = [
    {"id": "facts", "prompt": "?", "model": "m", "schema": SCHEMA},
    {"id": "gist", "prompt": "?", "model": "m"},
]


def job(job_id: str = "letters-1", **facts: Any) -> Job:
    """A job of two tasks: `facts`, whose answers have a schema, and `gist`, whose answers are text."""
    spec = {"name": "letters", "documents": [{"path": "d"}], "tasks": TASKS}
    return stored.job(job_id, **{"name": "letters", "spec": spec, **facts})


def line(seq: int, text: str | None, *, task: str = "facts", state: str = "succeeded", **facts: Any) -> bytes:
    """A merged line; `text` is what the model answered, None where there is no result line."""
    given: dict[str, Any] = {
        "seq": seq, "custom_id": f"{task}-{seq}", "document": f"d/{seq}.txt", "task": task, "model": "m",
        "prompt_version": "v1", "cut_from_tokens": None, "state": RequestState(state), "attempt": 0,
        "result": ("s.1", "output", Span(0, 1)), "answered_by": "m-1", "upstream": "http://gpu", "latency_ms": 7,
        "usage": Usage(100, 20, 30, 4, 5), "tier": None, "cost": Decimal("0.000001847917"), "error_code": None,
        "error_message": None, "carried_from": None, "backend": "gpu", "batch_id": "b", **facts,
    }  # fmt: skip
    body = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    raw = {"id": "1", "custom_id": "x", "response": {"status_code": 200, "body": body}, "error": None}
    check = OutputCheck({} if task == "facts" else None)
    return merged_row(FinishedRow(**given), None if text is None else json.dumps(raw).encode(), check)


def lines() -> list[bytes]:
    """A row of each fate: an answer, a text, one that failed its check, one that never ran, one with more in it."""
    return [
        line(0, json.dumps(ANSWER)),
        line(1, "Ann writes.\r\n=1+1", task="gist", carried_from="letters-0", cost=Decimal(0)),
        line(2, "no JSON", state="failed", error_code="invalid_json", error_message="the answer is not JSON"),
        line(3, None, state="expired", error_code="batch_expired", error_message="late", answered_by=None),
        line(4, json.dumps({"topic": "x", "pages": 2**70, "more": 1})),
        line(5, "", task="gist", state="failed", error_code="empty_answer", error_message="nothing"),
    ]
