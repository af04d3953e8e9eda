"""What an OpenAI-compatible Batch API tells of batches and files, in whichever of the known spellings. Pure.

The client passes on what it was given: words of other cases, times as text, fields that are not there.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from openai.types import Batch, FileObject

from orchestrator.backends import SHARD_KEY, Check, LineProblem, RemoteBatch, RemoteFile
from orchestrator.wire import BatchStatus

ORDER_SLACK = timedelta(minutes=1)
SKEW_SECONDS = 60.0

_OTHER_WORDS = {
    "queued": BatchStatus.VALIDATING,
    "pending": BatchStatus.VALIDATING,
    "running": BatchStatus.IN_PROGRESS,
    "inprogress": BatchStatus.IN_PROGRESS,
    "success": BatchStatus.COMPLETED,
    "succeeded": BatchStatus.COMPLETED,
    "timeout_exceeded": BatchStatus.EXPIRED,
    "cancellation_requested": BatchStatus.CANCELLING,
    "canceling": BatchStatus.CANCELLING,
    "canceled": BatchStatus.CANCELLED,
}


def status_of(word: object) -> BatchStatus:
    """A provider's status word. One that nobody knows is no end: such a batch is looked at again."""
    plain = str(word).strip().lower().replace(" ", "_").replace("-", "_")
    try:
        return BatchStatus(plain)
    except ValueError:
        return _OTHER_WORDS.get(plain, BatchStatus.IN_PROGRESS)


def time_of(value: object) -> datetime | None:
    """Seconds since 1970 or an ISO text as aware UTC; None for what is neither."""
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value)
            return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        return datetime.fromtimestamp(value, UTC) if isinstance(value, int | float) else None
    except (ValueError, OverflowError, OSError):
        return None


def remote_batch(batch: Batch) -> RemoteBatch:
    """A batch as we speak of it. Raises ValueError for what the client takes for one and is none."""
    if not isinstance(batch, Batch) or not batch.id:
        raise ValueError("the answer is no batch")
    counts, usage = batch.request_counts, batch.usage
    problems: list[Any] = (batch.errors.data if batch.errors else None) or []
    return RemoteBatch(
        id=batch.id,
        status=status_of(batch.status),
        completed=(counts.completed or 0) if counts else 0,
        failed=(counts.failed or 0) if counts else 0,
        input_tokens=(usage.input_tokens or 0) if usage else 0,
        output_tokens=(usage.output_tokens or 0) if usage else 0,
        upstream_seconds=float((batch.model_extra or {}).get("upstream_seconds") or 0.0),
        output_file_id=batch.output_file_id or None,
        error_file_id=batch.error_file_id or None,
        problems=tuple(LineProblem(p.code or "error", p.message or "", p.line) for p in problems),
        shard=(batch.metadata or {}).get(SHARD_KEY),
        # Nothing is counted before the file has been read.
        rows=(counts.total or None) if counts else None,
        created_at=time_of(batch.created_at),
        over_at=time_of(batch.completed_at or batch.cancelled_at or batch.expired_at or batch.failed_at),
    )


def remote_file(file: FileObject) -> RemoteFile:
    """A file as we speak of it. Raises ValueError for what the client takes for one and is none."""
    if not isinstance(file, FileObject) or not file.id:
        raise ValueError("the answer is no file")
    return RemoteFile(file.id, file.filename or "", file.bytes or 0, time_of(file.created_at))


class Listing:
    """Whether a listing that comes page by page has its newest first: then what is older than wanted ends the search.

    No provider promises an order, so it is believed only once times have fallen for more than a minute and never rose
    by as much.
    """

    def __init__(self) -> None:
        self._first: datetime | None = None
        self._lowest: datetime | None = None
        self._rose = False

    def see(self, at: datetime | None) -> None:
        """The creation time of the next entry, None where it has none."""
        if at is None:
            return
        if self._first is None or self._lowest is None:
            self._first = self._lowest = at
        self._rose |= at > self._lowest + ORDER_SLACK
        self._lowest = min(self._lowest, at)

    @property
    def newest_first(self) -> bool:
        """Whether it has, as far as was seen."""
        if self._first is None or self._lowest is None or self._rose:
            return False
        return self._first - self._lowest > ORDER_SLACK


def clock_check(date: datetime | None, now: datetime) -> Check | None:
    """What to say of a clock that differs from the backend's by more than a minute; None of one that does not."""
    if date is None or abs(skew := (now - date).total_seconds()) <= SKEW_SECONDS:
        return None
    side = "ahead of" if skew > 0 else "behind"
    found = f"the clock here is {abs(skew):,.0f} s {side} the backend's: deadlines are kept by the one here"
    return Check("clock", False, found)
