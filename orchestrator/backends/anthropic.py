"""Anthropic's Message Batches behind the verbs of a Batch API, through the official client.

There are no files there: a batch's requests are inline, and so an input file's upload is its translation, beside it.
A batch carries no metadata either. Its rows' ids say whose they are: a tag of the shard, and the line's number.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import msgspec

from orchestrator.backends import (
    BATCH_GONE,
    BatchOrder,
    DoctorCheck,
    Download,
    Intent,
    LineProblem,
    RemoteBatch,
    RemoteFile,
    Sighting,
    calls,
    inline,
    lenient,
)
from orchestrator.backends.anthropic_errors import UNREADABLE, meaning
from orchestrator.backends.files import keep
from orchestrator.backends.message_results import result_line
from orchestrator.backends.openai_read import Listing
from orchestrator.backends.result_lines import lines
from orchestrator.core import wire
from orchestrator.core.errors import OrchError
from orchestrator.core.wire import BatchStatus

log = logging.getLogger(__name__)

PAGE = 100
FIND_PAGES = 50
FURTHEST_OFF = timedelta(hours=26)
"""By so much the provider's clock may be off where nothing tells by how much it is."""
FIND_SLACK = timedelta(minutes=10)
LATEST = timedelta(hours=1)
"""So long after the intent an unanswered create may still have been carried out."""
UNDECIDED = "has as many rows and was made then; whether it is ours shows when it has ended"
UNTAGGED = "has as many rows and was made then; whether it is ours shows when its results can be read"
UNREAD = "the list shows a batch that cannot be read, such as one without an id: it may be the one that is looked for"
GONE = (404, 410)
_BATCHES = "/v1/messages/batches"
_RESULTS = "results:"
_ALL_REFUSED = "refused:"
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")
_ENDED = ("ended", "completed", "complete", "done")


class _Row(msgspec.Struct):
    custom_id: Any
    result: Any


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch as it is told; `counts` by their names, None where there are none."""

    id: str
    status: str
    counts: Mapping[str, int] | None
    created_at: datetime | None
    ended_at: datetime | None
    is_archived: bool

    @property
    def total(self) -> int | None:
        """All of its rows, None where nobody says."""
        return None if self.counts is None else sum(self.counts.values())

    @property
    def has_ended(self) -> bool:
        return self.status in _ENDED


def _batch(told: object, asked: str | None = None) -> _Batch:
    """Raises ValueError where it is none, or another one than was asked for."""
    found = lenient.mapping(told)
    name = lenient.name(found.get("id"))
    if name is None and asked is not None and "processing_status" in found:
        name = asked
    if name is None:
        raise ValueError("the answer is no batch")
    if asked is not None and name != asked:
        raise ValueError(f"the answer is about {name[:100]}")
    counts = {one: lenient.count(lenient.mapping(found.get("request_counts")).get(one)) for one in _COUNTS}
    # Counts of nothing at all say nothing: no batch is without rows.
    is_counted = any(counts.values())
    return _Batch(
        name,
        lenient.word(found.get("processing_status")),
        {one: count or 0 for one, count in counts.items()} if is_counted else None,
        lenient.time(found.get("created_at")),
        lenient.time(found.get("ended_at")),
        lenient.time(found.get("archived_at")) is not None,
    )


_decode_row = msgspec.json.Decoder(_Row).decode


class AnthropicBatches:
    """The verbs of a Batch API on an `anthropic` client. `max_tokens` is for rows that name none.

    A row that cannot be translated is not sent: it stands in the error file, with the field's name. A batch all of
    whose rows are such is none: its id is `refused:` and the shard's, and it is completed from the start.
    """

    appear_seconds: float = 600.0

    def __init__(self, name: str, client: anthropic.Anthropic, max_tokens: int, silent: float | None = None) -> None:
        """`silent` is for how many seconds a transfer may bring nothing, None for as long as any other call."""
        self._name = name
        # A create that is sent twice is paid twice, and a client that waits by itself holds up others.
        self._client = client.with_options(max_retries=0)
        self._files = self._client if silent is None else self._client.with_options(timeout=calls.timeouts(silent))
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

    def create(self, order: BatchOrder) -> RemoteBatch:
        path = inline.path_of(order.input_file_id)
        if inline.refused_rows(path) == order.rows:
            return _all_refused(order.shard, order.rows)
        with (
            inline.opened(inline.requests(path)) as content,
            self._translated("create a batch", calls.transfer(), creating=True),
        ):
            # Not `batches.create`: it would hold every request, and a file goes out in pieces.
            answer = self._files.post(_BATCHES, content=content, cast_to=httpx2.Response)
            return _remote(_batch(lenient.decode(answer.content)))

    def find(self, intent: Intent) -> Sighting:
        rows = intent.rows - inline.refused_rows(intent.input_path)
        if rows == 0:
            return Sighting(_all_refused(intent.shard, intent.rows))
        listed, undecided = self._read_list(intent.since)
        skew = _skew(listed, intent)
        found = []
        for batch in listed:
            if batch.total not in (None, rows) or intent.known(batch.id) is not None:
                continue
            if not _is_of_then(batch, intent.since, skew):
                continue
            if not batch.has_ended:
                undecided = f"batch {batch.id} {UNDECIDED}"
            elif (tag := self._tag_of(batch)) == inline.shard_tag(intent.shard):
                found.append(_remote(batch))
            elif tag is None:
                undecided = f"batch {batch.id} {UNTAGGED}"
        if found:
            return Sighting(found[0], doubles=tuple(found[1:]))
        return Sighting(undecided=undecided, is_blank=not listed)

    def _read_list(self, since: datetime) -> tuple[list[_Batch], str | None]:
        """The account's batches of about that time, and why others may be there that were not seen."""
        listing, found, unread = Listing(), list[_Batch](), list[object]()
        earliest = since - FURTHEST_OFF
        for number, page in enumerate(self._pages(unread)):
            if number >= FIND_PAGES and not listing.newest_first:
                return found, (
                    f"the first {number * PAGE:,} batches of the account are not listed newest first: whether "
                    "the one that is looked for comes later cannot be told"
                )
            found += page
            for batch in page:
                listing.see(batch.created_at)
            if listing.newest_first and all(one.created_at and one.created_at < earliest for one in page):
                break
        return found, UNREAD if any(_may_be_since(entry, earliest) for entry in unread) else None

    def listed(self, batch_id: str, since: datetime) -> Sighting:
        found, undecided = self._read_list(since)
        batch = next((one for one in found if one.id == batch_id), None)
        return Sighting(undecided=undecided) if batch is None else Sighting(_remote(batch))

    def _tag_of(self, batch: _Batch) -> str | None:
        """The tag in the first row of its results that has one; "" where none has, None where no row can be read."""
        if batch.is_archived:
            return ""
        untagged = None
        with self._translated(f"read {batch.id}"), self._results(batch.id) as found:
            for line in found:
                with suppress(*wire.JSON_ERRORS):
                    if (tag := inline.tag_of(_decode_row(line).custom_id)) is not None:
                        return tag
                    untagged = ""
        return untagged

    def batches(self) -> Iterator[RemoteBatch]:
        for page in self._pages():
            yield from map(_remote, page)

    def _pages(self, unread: list[object] | None = None) -> Iterator[list[_Batch]]:
        after: str | anthropic.Omit = anthropic.omit
        seen: set[Hashable] = set()
        more = True
        while more:
            with self._translated("list batches"):
                answer = self._client.messages.batches.with_raw_response.list(limit=PAGE, after_id=after)
                told = lenient.decode(answer.http_response.content)
                listed = lenient.readable(lenient.entries(told, is_first=not seen), _batch, unread)
            found = lenient.unseen(listed, lambda one: (one.id, one.created_at), seen)
            if not found:
                return
            yield found
            after = found[-1].id
            # A list that does not say whether there is more ends with an empty page, or one that is known.
            more = lenient.mapping(told).get("has_more") is not False

    def files(self) -> Iterator[RemoteFile]:
        """None: there are no files there."""
        return iter(())

    def retrieve(self, batch_id: str) -> RemoteBatch | None:
        if batch_id.startswith(_ALL_REFUSED):
            return _all_refused(batch_id.removeprefix(_ALL_REFUSED))
        with self._translated(f"retrieve {batch_id}"):
            try:
                answer = self._client.messages.batches.with_raw_response.retrieve(batch_id)
            except anthropic.APIStatusError as error:
                # A gateway's 404 is about an address.
                if error.status_code not in GONE or error.type is None:
                    raise
                return None
            return _remote(_batch(lenient.decode(answer.http_response.content), batch_id))

    def cancel(self, batch_id: str) -> None:
        if batch_id.startswith(_ALL_REFUSED):
            return
        with self._translated(f"cancel {batch_id}"):
            try:
                self._client.messages.batches.with_raw_response.cancel(batch_id)
            except (anthropic.BadRequestError, anthropic.ConflictError, anthropic.NotFoundError):
                now = self.retrieve(batch_id)
                if now is None or not now.status.is_final:
                    raise

    def download(self, file_id: str, path: Path, input_path: Path) -> Download:
        """Raises OSError where `path` cannot be written, and JobFilesError where what was sent is not there."""
        batch_id, _, kind = file_id.removeprefix(_RESULTS).rpartition(":")
        own = inline.refusals(input_path) if kind != "output" else iter(())
        if kind == "refused":
            return keep((), lambda _: (line.rstrip(b"\n") for line in own), path, ())
        with (
            inline.opened(input_path) as source,
            self._translated(f"download {file_id}", calls.transfer()),
            self._results(batch_id, tidy=False) as chunks,
        ):
            ids = inline.Ids(source, inline.tag_sent(input_path))

            def told(came: Iterable[bytes]) -> Iterator[bytes]:
                yield from (line.rstrip(b"\n") for line in own)
                for line in lines(came):
                    found, row = _result(line, ids)
                    if found == kind:
                        yield row

            return keep(chunks, told, path, (httpx2.HTTPError, ValueError))

    def size_of(self, file_id: str) -> int | None:
        """None: nothing tells how long results are."""

    @contextmanager
    def _results(self, batch_id: str, *, tidy: bool = True) -> Iterator[Iterator[bytes]]:
        # Not `batches.results`: it asks for the batch first, goes to whatever address that names, and holds each row
        # as a tree of objects.
        address = f"{_BATCHES}/{batch_id}/results"
        with self._files.get(address, cast_to=bytes, stream=True, stream_cls=anthropic.Stream[bytes]) as stream:
            chunks = stream.response.iter_bytes()
            yield lines(chunks) if tidy else chunks

    def partial(self, batch_id: str, kind: str, path: Path) -> bool:
        """False: results can be read when the batch has ended."""
        return False

    def read_on(self, batch_id: str, kind: str, first: int, most: int) -> bytes | None:
        """None: results can be read when the batch has ended."""
        return None

    def forget_file(self, file_id: str) -> None:
        """Delete what `upload` has left; results go away by themselves, 29 days after the batch was made."""
        inline.forget(file_id)

    def check(self, models: Sequence[str]) -> Iterator[DoctorCheck]:
        try:
            next(self._pages(), None)
        except OrchError as error:
            yield DoctorCheck("batches", False, str(error))
            return
        yield DoctorCheck("batches", True, f"can be listed, as {self.account()}")
        for model in models:
            try:
                with self._translated(f"look {model} up"):
                    found = f"is there: {self._client.models.retrieve(model).display_name}"
                yield DoctorCheck(f"model {model}", True, found)
            except OrchError as error:
                yield DoctorCheck(f"model {model}", False, str(error))

    @contextmanager
    def _translated(
        self, what: str, pace: AbstractContextManager[None] | None = None, *, creating: bool = False
    ) -> Iterator[None]:
        try:
            with pace or calls.control():
                yield
        except (anthropic.AnthropicError, httpx2.HTTPError, *UNREADABLE) as error:
            message = f"{self._name}: cannot {what}"
            # Not `from error`: the client's own texts may hold the key, and a log shows causes.
            raise meaning(error, message, creating=creating, secret=self._key) from None


def _skew(listed: Sequence[_Batch], intent: Intent) -> timedelta | None:
    """By how much the provider's clock is ahead, as batches of ours show that are listed; None where none is."""
    ahead = sorted(
        batch.created_at - asked
        for batch in listed
        if batch.created_at is not None and (asked := intent.known(batch.id)) is not None
    )
    return ahead[len(ahead) // 2] if ahead else None


def _is_of_then(batch: _Batch, since: datetime, skew: timedelta | None) -> bool:
    """Whether a batch may have been made of an intent of that time."""
    if batch.created_at is None:
        return True
    off = batch.created_at - since
    if skew is None:
        return abs(off) <= FURTHEST_OFF
    return skew - FIND_SLACK <= off <= skew + LATEST


def _may_be_since(entry: object, earliest: datetime) -> bool:
    """Whether an entry that cannot be read may be a batch that was made since then."""
    if not (told := lenient.mapping(entry)):
        return False
    created_at = lenient.time(told.get("created_at"))
    return created_at is None or created_at >= earliest


def _result(line: bytes, ids: inline.Ids) -> tuple[str, bytes]:
    """A line of the results in OpenAI's shape, and the file it belongs to; what is no row stays as it is."""
    try:
        row = _decode_row(line)
    except wire.JSON_ERRORS:
        return "output", line
    theirs = lenient.text(row.custom_id)
    return result_line(ids.ours(theirs), theirs, row.result)


def _remote(batch: _Batch) -> RemoteBatch:
    counts, ended = batch.counts or dict.fromkeys(_COUNTS, 0), batch.has_ended
    if ended and batch.is_archived:
        gone = LineProblem(BATCH_GONE, "its results are not kept any longer")
        return RemoteBatch(
            batch.id, BatchStatus.FAILED, problems=(gone,), rows=batch.total, created_at=batch.created_at
        )
    # Where nothing went wrong there, the rows that were refused here make the error file: nothing is to be fetched.
    is_told = batch.counts is not None
    kind = "error" if not is_told or counts["errored"] or counts["canceled"] or counts["expired"] else "refused"
    return RemoteBatch(
        id=batch.id,
        status=_status(batch, counts),
        completed=counts["succeeded"],
        failed=counts["errored"],
        is_counted=is_told,
        output_file_id=f"{_RESULTS}{batch.id}:output" if ended and (counts["succeeded"] or not is_told) else None,
        error_file_id=f"{_RESULTS}{batch.id}:{kind}" if ended else None,
        rows=batch.total,
        created_at=batch.created_at,
        over_at=batch.ended_at,
    )


def _status(batch: _Batch, counts: Mapping[str, int]) -> BatchStatus:
    if batch.has_ended:
        if counts["expired"]:
            return BatchStatus.EXPIRED
        total = sum(counts.values())
        return BatchStatus.CANCELLED if total and counts["canceled"] == total else BatchStatus.COMPLETED
    return BatchStatus.CANCELLING if batch.status in ("canceling", "cancelling") else BatchStatus.IN_PROGRESS


def _all_refused(shard: str, rows: int = 0) -> RemoteBatch:
    """A batch none of whose rows was sent. How many they are, only its making knows."""
    batch_id = f"{_ALL_REFUSED}{shard}"
    return RemoteBatch(
        batch_id,
        BatchStatus.COMPLETED,
        failed=rows,
        is_counted=True,
        error_file_id=f"{_RESULTS}{batch_id}:refused",
        shard=shard,
    )
