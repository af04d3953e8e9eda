"""Converts xAI's batches, lists and results to OpenAI's shape. Pure.

Sources: xai-sdk 1.21.0 (batch.py, proto/v6/batch_pb2.py), a recorded batch, xAI's guide and reference, and clients
tested against xAI: litellm (llms/xai/batches), vercel/ai#19525, CultivateLabs/raif#525.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from orchestrator.backends import lenient, openai_shape
from orchestrator.backends.batch_names import metadata_in
from orchestrator.backends.google_errors import CANCELLED, row_status
from orchestrator.core.error_body import openai_error

RESULTS = "results:"
"""Prefix of a result id; the batch's id follows. The results are pages, not a file."""
_COUNTS = {"total": "num_requests", "completed": "num_success", "failed": "num_error"}
_DATE = len("2026-08-10")
Json = dict[str, Any]


def batch_of(told: object, at: datetime) -> object:
    """Return a batch in OpenAI's shape, as of the time `at`. A value that is not an object stays unchanged."""
    found = lenient.mapping(told)
    if not found:
        return told
    state = lenient.mapping(found.get("state"))
    reason = lenient.text(found.get("cancel_by_xai_message"))
    status = _status(found, state, at) if state or reason or found.get("cancel_time") else None
    created = _latest(found.get("create_time"))
    batch: Json = {
        "request_counts": {ours: state[theirs] for ours, theirs in _COUNTS.items() if theirs in state},
        "created_at": None if created is None else min(created, at).isoformat(),
    }
    if (batch_id := lenient.name(found.get("batch_id"))) is not None:
        batch["id"] = batch_id
    if found.get("input_file_id"):
        batch["input_file_id"] = found["input_file_id"]
    if (named := metadata_in(found.get("name"))) is not None:
        batch["metadata"] = named
    if status is None:
        return batch
    batch["status"] = status
    if status == "failed":
        batch["errors"] = reason
    if batch_id is not None and status in ("completed", "cancelled", "expired") and _has_results(state):
        batch["output_file_id"] = f"{RESULTS}{batch_id}"
    return batch


def _status(found: Mapping[str, Any], state: Mapping[str, Any], at: datetime) -> str:
    """Derive the status from counts and times, because xAI states no status."""
    total, pending = (lenient.count(state.get(f"num_{name}")) for name in ("requests", "pending"))
    if found.get("cancel_by_xai_message"):
        # xAI did not accept its rows, or stopped the remaining ones.
        return "cancelled" if total else "failed"
    if found.get("cancel_time"):
        return "cancelling" if pending else "cancelled"
    if total == 0:
        return "validating"
    if pending == 0 and total:
        return "completed"
    expires = _latest(found.get("expire_time"))
    return "expired" if expires is not None and at >= expires else "in_progress"


def _has_results(state: Mapping[str, Any]) -> bool:
    return any(lenient.count(state.get(name)) for name in ("num_success", "num_error"))


def _latest(value: object) -> datetime | None:
    """Return the latest time that a value can mean. For a date, this is the end of the day."""
    found = lenient.time(value)
    is_date = isinstance(value, str) and len(value.strip()) == _DATE
    return found + timedelta(days=1) if found is not None and is_date else found


def list_of(told: object, name: str, convert: Callable[[object], object]) -> object:
    """Return a list in OpenAI's shape. A list without a next-page token is complete."""
    found = lenient.with_entries(told, convert, name)
    return {**found, "has_more": next_page(told) is not None} if isinstance(found, dict) else found


def next_page(told: object) -> str | None:
    """Return the token of the next page; None on the last page."""
    return lenient.name(lenient.mapping(told).get("pagination_token"))


def result_line(told: object) -> bytes:
    """Return a result as a line in OpenAI's shape. The answer's body is under the endpoint's name, in its format."""
    found = lenient.mapping(told)
    result = lenient.mapping(found.get("batch_result")) or found
    bodies = lenient.mapping(result.get("response")).values()
    body = next(iter(bodies), None)
    error = result.get("error") or found.get("error_message")
    custom_id = found.get("batch_request_id")
    if body is not None:
        row = openai_shape.answered_row(custom_id, 200, body)
    elif lenient.mapping(error).get("code") == CANCELLED:
        row = openai_shape.failed_row(custom_id, openai_shape.CANCELLED)
    elif error:
        row = openai_shape.answered_row(custom_id, row_status(error), {"error": openai_error({"error": error})})
    else:
        row = openai_shape.failed_row(custom_id, openai_shape.UNKNOWN_RESULT)
    return openai_shape.line(row)
