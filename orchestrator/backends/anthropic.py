"""Anthropic's Message Batches behind the verbs of a Batch API, through the official client.

There are no files there: a batch's requests are inline, and so an input file's upload is its translation, beside it.
A batch carries no metadata either. Its rows' ids say whose they are: a tag of the shard, and the line's number.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import anthropic
import httpx2
import msgspec
from anthropic.types.messages import MessageBatch

from orchestrator import wire
from orchestrator.backends import (
    BATCH_GONE,
    Check,
    Intent,
    LineProblem,
    Order,
    RemoteBatch,
    RemoteFile,
    Sighting,
    inline,
)
from orchestrator.backends.anthropic_errors import UNREADABLE, meaning
from orchestrator.backends.files import durable, split_lines
from orchestrator.backends.message_results import result_line
from orchestrator.errors import OrchError
from orchestrator.wire import BatchStatus

log = logging.getLogger(__name__)

PAGE = 100
FIND_SLACK = timedelta(seconds=60)
UNDECIDED = "has as many rows and was made then; whether it is ours shows when it has ended"
UNDECIDED = "has as many rows and was made then; whether it is ours shows when it has ended"
_BATCHES = "/v1/messages/batches"
_RESULTS = "results:"
_ALL_REFUSED = "refused:"


class _Row(msgspec.Struct):
    custom_id: str
    result: Any


class _Counts(msgspec.Struct):
    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int

    @property
    def total(self) -> int:
        return self.processing + self.succeeded + self.errored + self.canceled + self.expired


class _Batch(msgspec.Struct):
    """A batch as it is checked: the client takes any answer for one."""

    id: str
    processing_status: str
    request_counts: _Counts
    created_at: Annotated[datetime, msgspec.Meta(tz=True)]
    ended_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    archived_at: datetime | None = None


_decode_row = msgspec.json.Decoder(_Row).decode


class AnthropicBackend:
    """The verbs of a Batch API on an `anthropic` client. `max_tokens` is for rows that name none.

    A row that cannot be translated is not sent: it stands in the error file, with the field's name. A batch all of
    whose rows are such is none: its id is `refused:` and the shard's, and it is completed from the start.
    """

    appear_seconds: float = 600.0

    def __init__(self, name: str, client: anthropic.Anthropic, max_tokens: int) -> None:
        self._name = name
        self._client = client
        # A create that is sent twice is paid twice: the client must not do it by itself.
        self._once = client.with_options(max_retries=0)
        self._max_tokens = max_tokens

    def close(self) -> None:
        self._client.close()

    @property
    def _key(self) -> str:
        return str(self._client.api_key)

    def account(self) -> str:
        return f"key:{sha256(self._key.encode()).hexdigest()[:12]}"

    def upload(self, path: Path, name: str) -> str:
        """Translate an input file, beside it. Raises InputError for a line that is no request, and JobFilesError."""
        left_out = inline.translate_file(path, name.removesuffix(".jsonl"), self._max_tokens)
        if left_out:
            fields = ", ".join(f"{field} ({rows:,} rows)" for field, rows in sorted(left_out.items()))
            log.warning("%s: %s: left out, as Anthropic has no counterpart: %s", self._name, name, fields)
        return inline.file_id(path)

    def create(self, order: Order) -> RemoteBatch:
        path = inline.path_of(order.input_file_id)
        if inline.refused_rows(path) == order.rows:
            return _all_refused(order.shard, order.rows)
        with inline.opened(inline.requests(path)) as content, self._translated("create a batch", creating=True):
            # Not `batches.create`: it would hold every request, and a file goes out in pieces.
            return _remote(_checked(self._once.post(_BATCHES, content=content, cast_to=MessageBatch)))

    def find(self, intent: Intent) -> Sighting:
        rows = intent.rows - inline.refused_rows(intent.input_path)
        if rows == 0:
            return Sighting(_all_refused(intent.shard, intent.rows))
        undecided = None
        for page in self._pages():
            recent = [batch for batch in page if batch.created_at >= intent.since - FIND_SLACK]
            if not recent:
                break
            for batch in recent:
                if batch.request_counts.total != rows or intent.is_known(batch.id):
                    continue
                if batch.processing_status != "ended":
                    undecided = f"batch {batch.id} {UNDECIDED}"
                elif self._tag_of(batch) == inline.shard_tag(intent.shard):
                    return Sighting(_remote(batch))
        return Sighting(undecided=undecided)

    def _tag_of(self, batch: _Batch) -> str | None:
        """The tag in the first row of its results that can be read; None where there is none."""
        if batch.archived_at is not None:
            return None
        with self._translated(f"read {batch.id}"), self._results(batch.id) as lines:
            for line in lines:
                with suppress(*wire.NO_JSON):
                    return inline.tag_of(_decode_row(line).custom_id)
        return None

    def batches(self) -> Iterator[RemoteBatch]:
        for page in self._pages():
            yield from map(_remote, page)

    def _pages(self) -> Iterator[list[_Batch]]:
        after: str | None = None
        more: bool | None = True
        while more:
            with self._translated("list batches"):
                page = self._client.messages.batches.list(limit=PAGE, after_id=after or anthropic.omit)
                found, more = [_checked(batch) for batch in page.data], page.has_more
            if not found:
                return
            yield found
            after = found[-1].id

    def files(self) -> Iterator[RemoteFile]:
        """None: there are no files there."""
        return iter(())

    def retrieve(self, batch_id: str) -> RemoteBatch:
        if batch_id.startswith(_ALL_REFUSED):
            return _all_refused(batch_id.removeprefix(_ALL_REFUSED))
        with self._translated(f"retrieve {batch_id}"):
            try:
                return _remote(_checked(self._client.messages.batches.retrieve(batch_id)))
            except anthropic.NotFoundError as error:
                # A gateway's 404 is about an address; rows that are given up on its word would be paid again.
                if error.type is None:
                    raise
                gone = LineProblem(BATCH_GONE, "the backend knows this batch no longer")
                return RemoteBatch(batch_id, BatchStatus.FAILED, problems=(gone,))

    def cancel(self, batch_id: str) -> None:
        if batch_id.startswith(_ALL_REFUSED):
            return
        with self._translated(f"cancel {batch_id}"):
            try:
                self._client.messages.batches.cancel(batch_id)
            except (anthropic.BadRequestError, anthropic.ConflictError, anthropic.NotFoundError):
                if not self.retrieve(batch_id).status.is_final:
                    raise

    def download(self, file_id: str, path: Path, input_path: Path) -> None:
        """Raises OSError where `path` cannot be written, and JobFilesError where what was sent is not there."""
        batch_id, _, kind = file_id.removeprefix(_RESULTS).rpartition(":")
        with durable(path) as target:
            if kind != "output":
                target.writelines(inline.refusals(input_path))
            if kind == "refused":
                return
            with (
                inline.opened(input_path) as source,
                self._translated(f"download {file_id}"),
                self._results(batch_id) as lines,
            ):
                ids = inline.Ids(source, inline.tag_sent(input_path))
                for line in lines:
                    found, told = _result(line, ids)
                    if found == kind:
                        target.write(told + b"\n")

    @contextmanager
    def _results(self, batch_id: str) -> Iterator[Iterator[bytes]]:
        # Not `batches.results`: it asks for the batch first, goes to whatever address that names, and holds each row
        # as a tree of objects.
        address = f"{_BATCHES}/{batch_id}/results"
        with self._client.get(address, cast_to=bytes, stream=True, stream_cls=anthropic.Stream[bytes]) as stream:
            yield split_lines(stream.response.iter_bytes())

    def partial(self, batch_id: str, kind: str, path: Path) -> bool:
        """False: results can be read when the batch has ended."""
        return False

    def read_on(self, batch_id: str, kind: str, first: int, most: int) -> bytes | None:
        """None: results can be read when the batch has ended."""
        return None

    def forget_file(self, file_id: str) -> None:
        """Delete what `upload` has left; results go away by themselves, 29 days after the batch was made."""
        inline.forget(file_id)

    def check(self, models: Sequence[str]) -> Iterator[Check]:
        try:
            next(self._pages(), None)
        except OrchError as error:
            yield Check("batches", False, str(error))
            return
        yield Check("batches", True, f"can be listed, as {self.account()}")
        for model in models:
            try:
                with self._translated(f"look {model} up"):
                    found = f"is there: {self._client.models.retrieve(model).display_name}"
                yield Check(f"model {model}", True, found)
            except OrchError as error:
                yield Check(f"model {model}", False, str(error))

    @contextmanager
    def _translated(self, what: str, *, creating: bool = False) -> Iterator[None]:
        try:
            yield
        except (anthropic.AnthropicError, httpx2.HTTPError, *UNREADABLE) as error:
            message = f"{self._name}: cannot {what}"
            # Not `from error`: the client's own texts may hold the key, and a log shows causes.
            raise meaning(error, message, creating=creating, secret=self._key) from None


def _result(line: bytes, ids: inline.Ids) -> tuple[str, bytes]:
    """A line of the results in OpenAI's shape, and the file it belongs to; what is no row stays as it is."""
    try:
        row = _decode_row(line)
        return result_line(ids.ours(row.custom_id), row.custom_id, row.result)
    except wire.NO_JSON:
        return "output", line


def _checked(batch: MessageBatch) -> _Batch:
    """Raises msgspec.ValidationError where it is no batch."""
    return msgspec.convert(batch, _Batch, from_attributes=True)


def _remote(batch: _Batch) -> RemoteBatch:
    counts, ended = batch.request_counts, batch.processing_status == "ended"
    if ended and batch.archived_at is not None:
        gone = LineProblem(BATCH_GONE, "its results are not kept any longer")
        return RemoteBatch(
            batch.id, BatchStatus.FAILED, problems=(gone,), rows=counts.total, created_at=batch.created_at
        )
    # Where nothing went wrong there, the rows that were refused here make the error file: nothing is to be fetched.
    kind = "error" if counts.errored or counts.canceled or counts.expired else "refused"
    return RemoteBatch(
        id=batch.id,
        status=_status(batch),
        completed=counts.succeeded,
        failed=counts.errored,
        output_file_id=f"{_RESULTS}{batch.id}:output" if ended and counts.succeeded else None,
        error_file_id=f"{_RESULTS}{batch.id}:{kind}" if ended else None,
        rows=counts.total,
        created_at=batch.created_at,
        over_at=batch.ended_at,
    )


def _status(batch: _Batch) -> BatchStatus:
    counts = batch.request_counts
    match batch.processing_status:
        case "in_progress":
            return BatchStatus.IN_PROGRESS
        case "canceling":
            return BatchStatus.CANCELLING
        case "ended" if counts.expired:
            return BatchStatus.EXPIRED
        case "ended":
            return BatchStatus.CANCELLED if counts.canceled == counts.total else BatchStatus.COMPLETED
        case unknown:
            raise ValueError(f"a batch that is {unknown!r}")


def _all_refused(shard: str, rows: int = 0) -> RemoteBatch:
    """A batch none of whose rows was sent. How many they are, only its making knows."""
    batch_id = f"{_ALL_REFUSED}{shard}"
    return RemoteBatch(
        batch_id, BatchStatus.COMPLETED, failed=rows, error_file_id=f"{_RESULTS}{batch_id}:refused", shard=shard
    )
