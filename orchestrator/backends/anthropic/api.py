"""The calls of Anthropic's Message Batches, answered in OpenAI's shape.

Sources: anthropic 2.12.0 (resources/messages/batches.py, types), Anthropic's reference of Message Batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from orchestrator.backends import BATCH_GONE, lenient
from orchestrator.backends.anthropic.results import cause_of, completion
from orchestrator.backends.api import ApiAnswer, ApiRefusal
from orchestrator.backends.call_errors import asked_pause, code_of, unanswered
from orchestrator.backends.http_api import HttpAPI, converted, path_of
from orchestrator.core.errors import (
    AccountError,
    BackendBusy,
    BackendError,
    BackendRefused,
    NotSent,
    OrchError,
    Uncertain,
)
from orchestrator.core.refused_fields import ProviderError, names_request_field
from orchestrator.policy.row_errors import Disposition, classify, is_account

RESULTS = "results:"
"""The beginning of the id of results, before the batch's own and the kind: `output`, `error` or `refused`."""
_MESSAGES = "messages"
_BATCHES = "messages/batches"
_VERSION = "2023-06-01"
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")
_ENDED = ("ended", "completed", "complete", "done")
_BUSY_STATUSES = (429, 529)
_TOO_LARGE = 413
_ACCOUNT_HINT = "check the key and the account's credit; `orch doctor` tests it again"
Json = dict[str, Any]


def headers_of(key: str) -> dict[str, str]:
    """Return the headers of a call: the key as the API documents it, and as gateways expect it."""
    return {"x-api-key": key, "Authorization": f"Bearer {key}", "anthropic-version": _VERSION}


class AnthropicAPI(HttpAPI):
    """The calls on an HTTP client with Anthropic's address and version, which sends the key."""

    def model(self, name: str) -> ApiAnswer:
        return self._get(path_of("models", name))

    def submit(self, requests: BinaryIO) -> ApiAnswer:
        """Create a batch from the body of its request."""
        return converted(self._send(_BATCHES, requests), batch_of)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        token = {} if after is None else {"after_id": after}
        return converted(self._get(_BATCHES, limit=str(limit), **token), _list_of)

    def batch(self, batch_id: str) -> ApiAnswer:
        return converted(self._get(path_of(_BATCHES, batch_id)), lambda told: batch_of(told, batch_id))

    def cancel(self, batch_id: str) -> None:
        self._answer(self._http.post(f"{path_of(_BATCHES, batch_id)}/cancel"))

    def content(self, file_id: str) -> AbstractContextManager[Iterator[bytes]]:
        """Open the results of the batch with this id, in pieces."""
        return self.whole(f"{path_of(_BATCHES, file_id)}/results")

    def ask(self, path: str, body: bytes) -> ApiAnswer:
        return converted(super().ask(_MESSAGES, body), lambda told: isinstance(told, dict) and completion(told))

    def _reason(self, status: int, body: object) -> tuple[int, object]:
        error = lenient.mapping(lenient.mapping(body).get("error"))
        return status, {**error, "code": cause_of(error) or error.get("type")} if error else {}


def batch_of(told: object, asked: str | None = None) -> object:
    """Return a batch in OpenAI's shape; a value that is not an object stays as it is. An answer may omit the id
    `asked`."""
    found = lenient.mapping(told)
    if not found:
        return told
    name, created_at = lenient.name(found.get("id")), found.get("created_at")
    if name is None and "processing_status" not in found:
        return {"created_at": created_at}
    counts = {one: lenient.count(lenient.mapping(found.get("request_counts")).get(one)) or 0 for one in _COUNTS}
    # A batch always has rows, so counts without any are unknown.
    is_told = any(counts.values())
    batch: Json = {"id": name, "created_at": created_at, "request_counts": {"total": sum(counts.values())}}
    word = lenient.word(found.get("processing_status"))
    ended = word in _ENDED
    if ended and lenient.time(found.get("archived_at")) is not None:
        gone = {"code": BATCH_GONE, "message": "its results are no longer kept"}
        return batch | {"status": "failed", "errors": [gone]}
    if is_told:
        batch["request_counts"] |= {"completed": counts["succeeded"], "failed": counts["errored"]}
    if ended:
        # If nothing failed at Anthropic, the error file has only our own refused rows: nothing to fetch.
        failed = not is_told or counts["errored"] or counts["canceled"] or counts["expired"]
        results = f"{RESULTS}{name or asked}"
        batch["error_file_id"] = f"{results}:{'error' if failed else 'refused'}"
        if counts["succeeded"] or not is_told:
            batch["output_file_id"] = f"{results}:output"
    return batch | {"status": _status(word, counts), "completed_at": found.get("ended_at")}


def _status(word: str, counts: Mapping[str, int]) -> str:
    if word in _ENDED:
        if counts["expired"]:
            return "expired"
        total = sum(counts.values())
        return "cancelled" if total and counts["canceled"] == total else "completed"
    return "cancelling" if word in ("canceling", "cancelling") else "in_progress"


def _list_of(told: object) -> object:
    """Return a list in OpenAI's shape. A list without entries stays as it is: it may be any answer."""
    try:
        found = lenient.entries(told)
    except ValueError:
        return told
    return {**lenient.mapping(told), "data": [batch_of(one) for one in found]}


def is_its_own(error: ApiRefusal) -> bool:
    """True if a refusal is from the API, whose own refusals have an error object with a type."""
    return lenient.mapping(error.body).get("type") is not None


def of_answer(error: ApiRefusal, message: str, creating: bool) -> OrchError:
    """See `OfAnswer`."""
    status, code = error.status, code_of(error)
    # An account without credit shows only in the words of a bad request.
    no_credit = status == 400 and classify(status, code, None, message).disposition is Disposition.STOP
    names_field = names_request_field(ProviderError(status, code, message=error.said or None))
    if no_credit or is_account(status, code, names_field=names_field):
        return AccountError(message, status=status, code=code, hint=_ACCOUNT_HINT)
    if status in _BUSY_STATUSES:
        return BackendBusy(message, status=status, code=code, retry_after=asked_pause(error.headers))
    if status >= 500 or status == 408:
        return Uncertain(message) if creating else BackendError(message)
    if status < 400:
        return unanswered(error, message, creating, is_unread=True)
    # A gateway in front may refuse what is too large.
    if not is_its_own(error) and status != _TOO_LARGE:
        return NotSent(message, hint="check base_url")
    return BackendRefused(message, status=status, code=code)
