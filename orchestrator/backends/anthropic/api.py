"""The calls of Anthropic's Message Batches, answered in OpenAI's shape.

Sources: anthropic 2.12.0 (resources/messages/batches.py, types), Anthropic's reference of Message Batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, BinaryIO

from orchestrator.backends import BATCH_GONE, BatchOrder, call_errors, lenient
from orchestrator.backends.anthropic.results import cause_of, completion, result_line
from orchestrator.backends.api import ApiAnswer, ApiRefusal
from orchestrator.backends.openai_http import HttpAPI, converted, path_of
from orchestrator.backends.result_lines import lines
from orchestrator.core.errors import AccountError, BackendBusy, OrchError
from orchestrator.policy.row_errors import Disposition, classify

RESULTS = "results:"
"""Prefix of a result id; the batch's id follows. Ids of an earlier version had a third part."""
_BATCHES = "messages/batches"
_VERSION = "2023-06-01"
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")
_ENDED = ("ended", "completed", "complete", "done")
_CANCELLED_BEFORE = (400, 404, 409)
_OVERLOADED = 529


def headers_of(key: str) -> dict[str, str]:
    """Return the headers of a call, with the key both as the API documents it and as gateways expect it."""
    return {"x-api-key": key, "Authorization": f"Bearer {key}", "anthropic-version": _VERSION}


class AnthropicAPI(HttpAPI):
    """The calls, on an HTTP client that has Anthropic's address and version and sends the key."""

    def model(self, name: str) -> ApiAnswer:
        return self._get(path_of("models", name))

    def submit(self, order: BatchOrder, rows: BinaryIO) -> ApiAnswer:
        return converted(self._send(_BATCHES, rows), batch_of)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        token = {} if after is None else {"after_id": after}
        return converted(
            self._get(_BATCHES, limit=str(limit), **token), lambda told: lenient.with_entries(told, batch_of)
        )

    def batch(self, batch_id: str) -> ApiAnswer:
        return converted(self._get(path_of(_BATCHES, batch_id)), lambda told: batch_of(told, batch_id))

    def cancel(self, batch_id: str) -> None:
        self._cancel(f"{path_of(_BATCHES, batch_id)}/cancel", batch_id, _CANCELLED_BEFORE)

    @contextmanager
    def content(self, file_id: str) -> Iterator[Iterator[bytes]]:
        batch_id = file_id.removeprefix(RESULTS).partition(":")[0]
        with self.whole(f"{path_of(_BATCHES, batch_id)}/results") as chunks:
            yield (result_line(line) + b"\n" for line in lines(chunks))

    def ask(self, path: str, body: bytes) -> ApiAnswer:
        return converted(super().ask("messages", body), lambda told: isinstance(told, dict) and completion(told))

    def _reason(self, status: int, body: object) -> tuple[int, object]:
        error = lenient.mapping(lenient.mapping(body).get("error"))
        return status, {**error, "code": cause_of(error) or error.get("type")} if error else {}


def batch_of(told: object, asked: str | None = None) -> object:
    """Return a batch in OpenAI's shape. Other values stay unchanged. `asked` replaces an id that the answer omits."""
    found = lenient.mapping(told)
    if not found:
        return told
    name, created_at = lenient.name(found.get("id")), found.get("created_at")
    if name is None and "processing_status" not in found:
        return {"created_at": created_at}
    counts = {one: lenient.count(lenient.mapping(found.get("request_counts")).get(one)) or 0 for one in _COUNTS}
    # A batch always has rows, so counts that are all zero are unknown counts.
    is_told = any(counts.values())
    batch: dict[str, Any] = {"id": name, "created_at": created_at, "request_counts": {"total": sum(counts.values())}}
    word = lenient.word(found.get("processing_status"))
    ended = word in _ENDED
    if ended and lenient.time(found.get("archived_at")) is not None:
        gone = {"code": BATCH_GONE, "message": "its results are no longer kept"}
        return batch | {"status": "failed", "errors": [gone]}
    if is_told:
        batch["request_counts"] |= {"completed": counts["succeeded"], "failed": counts["errored"]}
    if ended:
        batch["output_file_id"] = f"{RESULTS}{name or asked}"
    return batch | {"status": _status(word, counts), "completed_at": found.get("ended_at")}


def _status(word: str, counts: Mapping[str, int]) -> str:
    if word in _ENDED:
        if counts["expired"]:
            return "expired"
        total = sum(counts.values())
        return "cancelled" if total and counts["canceled"] == total else "completed"
    return "cancelling" if word in ("canceling", "cancelling") else "in_progress"


def of_answer(error: ApiRefusal, message: str, creating: bool) -> OrchError:
    """Convert a refusal from Anthropic to our error; an `OfAnswer`."""
    status, code = error.status, call_errors.code_of(error)
    # For an account without credit, Anthropic answers 400; only the message says so.
    if status == HTTPStatus.BAD_REQUEST and classify(status, code, None, message).disposition is Disposition.STOP:
        return AccountError(message, status=status, code=code, hint=call_errors.ACCOUNT_HINT)
    if status == _OVERLOADED:
        after = call_errors.asked_pause(error.headers)
        return BackendBusy(message, status=status, code=code, retry_after=after)
    # At Anthropic, a conflict refuses this call; at other providers, an earlier call may have been carried out.
    return call_errors.of_answer(error, message, creating and status != HTTPStatus.CONFLICT)
