"""Reads batches and files of OpenAI-compatible APIs leniently, in all known spellings. Pure.

Accepts raw JSON with upper or lower case, numbers as text, missing fields, and undocumented shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from orchestrator.backends import HOME_KEY, SHARD_KEY, DoctorCheck, LineProblem, RemoteBatch, RemoteFile, lenient
from orchestrator.core.batch_api import BatchStatus

SKEW_SECONDS = 60.0
MOST_PROBLEMS = 1000
DEEPEST = 4

_OTHER_WORDS = {
    "queued": BatchStatus.VALIDATING,
    "pending": BatchStatus.VALIDATING,
    "created": BatchStatus.VALIDATING,
    "running": BatchStatus.IN_PROGRESS,
    "inprogress": BatchStatus.IN_PROGRESS,
    "processing": BatchStatus.IN_PROGRESS,
    "success": BatchStatus.COMPLETED,
    "succeeded": BatchStatus.COMPLETED,
    "complete": BatchStatus.COMPLETED,
    "done": BatchStatus.COMPLETED,
    "finished": BatchStatus.COMPLETED,
    "ended": BatchStatus.COMPLETED,
    "error": BatchStatus.FAILED,
    "errored": BatchStatus.FAILED,
    "failure": BatchStatus.FAILED,
    "timeout": BatchStatus.EXPIRED,
    "timed_out": BatchStatus.EXPIRED,
    "timeout_exceeded": BatchStatus.EXPIRED,
    "cancellation_requested": BatchStatus.CANCELLING,
    "canceling": BatchStatus.CANCELLING,
    "canceled": BatchStatus.CANCELLED,
    "aborted": BatchStatus.CANCELLED,
}
_ENDS = (BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED, BatchStatus.FAILED)


def status_of(said: object) -> BatchStatus | None:
    """Return the status that a provider's word means, or None if the word is unknown."""
    word = lenient.word(said)
    try:
        return BatchStatus(word)
    except ValueError:
        return _OTHER_WORDS.get(word)


def _status(told: Mapping[str, Any]) -> BatchStatus:
    """Return a batch's status. For an unknown word, return the final state that has a time, else running."""
    known = status_of(told.get("status"))
    if known is not None:
        return known
    return next((end for end in _ENDS if lenient.time(told.get(f"{end}_at")) is not None), BatchStatus.IN_PROGRESS)


def remote_batch(told: object, asked: str | None = None) -> RemoteBatch:
    """Read a batch. `asked` is the requested id, which the answer may omit.

    Raises ValueError if the answer is not a batch, or is a different batch.
    """
    told = lenient.mapping(lenient.unwrapped(told))
    found = lenient.batch_id(told, asked, mark="status")
    counts, usage = lenient.mapping(told.get("request_counts")), lenient.mapping(told.get("usage"))
    completed, failed = (lenient.count(counts.get(name)) for name in ("completed", "failed"))
    return RemoteBatch(
        id=found,
        status=_status(told),
        completed=completed or 0,
        failed=failed or 0,
        is_counted=completed is not None or failed is not None,
        input_tokens=lenient.count(usage.get("input_tokens"), lenient.MOST_TOKENS) or 0,
        output_tokens=lenient.count(usage.get("output_tokens"), lenient.MOST_TOKENS) or 0,
        upstream_seconds=lenient.seconds(told.get("upstream_seconds")),
        input_file_id=lenient.name(told.get("input_file_id")),
        output_file_id=lenient.name(told.get("output_file_id")),
        error_file_id=lenient.name(told.get("error_file_id")),
        problems=tuple(_problems(told.get("errors")))[:MOST_PROBLEMS],
        shard=shard_of(told),
        home=lenient.name(lenient.mapping(told.get("metadata")).get(HOME_KEY)),
        # A total of 0 means that the provider has not read the file yet.
        rows=lenient.count(counts.get("total")) or None,
        created_at=lenient.time(told.get("created_at")),
        over_at=next((at for end in _ENDS if (at := lenient.time(told.get(f"{end}_at"))) is not None), None),
    )


def shard_of(told: object) -> str | None:
    """Return the shard id that a batch carries, even if the batch is otherwise unreadable."""
    return lenient.name(lenient.mapping(lenient.mapping(told).get("metadata")).get(SHARD_KEY))


def _problems(told: object, depth: int = 0) -> Iterator[LineProblem]:
    """Yield the reasons for a refusal. Accepts OpenAI's list of objects, a list of texts, a map of codes, or one
    value.
    """
    if depth > DEEPEST or not told:
        return
    if isinstance(told, list):
        for one in told:
            yield from _problems(one, depth + 1)
    elif isinstance(told, dict):
        inner = next((told[key] for key in ("data", "errors", "error") if told.get(key)), None)
        if "message" in told or "code" in told:
            line = lenient.count(told.get("line"))
            yield LineProblem(
                lenient.text(told.get("code")) or "error", lenient.text(told.get("message")), line or None
            )
        elif inner is not None:
            yield from _problems(inner, depth + 1)
        elif told.get("object") != "list":
            yield from (LineProblem(lenient.text(code), lenient.text(said)) for code, said in told.items())
    else:
        yield LineProblem("error", lenient.text(told))


def remote_file(told: object) -> RemoteFile:
    """Read a file object. Raises ValueError if the answer is not a file object."""
    found = lenient.mapping(lenient.unwrapped(told))
    file_id = lenient.name(found.get("id"))
    if file_id is None:
        raise ValueError("the answer is not a file")
    size = lenient.count(found.get("bytes"), lenient.MOST_TOKENS)
    return RemoteFile(file_id, lenient.text(found.get("filename")), size, lenient.time(found.get("created_at")))


def clock_check(date: datetime | None, now: datetime) -> DoctorCheck | None:
    """Return a check that reports a clock more than a minute off the backend's; None if the clock is right or `date`
    is None.
    """
    if date is None or abs(skew := (now - date).total_seconds()) <= SKEW_SECONDS:
        return None
    side = "ahead of" if skew > 0 else "behind"
    found = f"the clock here is {abs(skew):,.0f} s {side} the backend's: deadlines follow the clock here"
    return DoctorCheck("clock", False, found)
