"""Anthropic's Message Batches behind the verbs of a Batch API, through the official client.

Anthropic has no files: a batch's requests are inline, so uploading an input file means translating it into a local
file. Batches carry no metadata either: row ids identify them, as a tag of the shard, the line's number and digest.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import msgspec

from orchestrator.backends import (
    BatchOrder,
    DoctorCheck,
    Download,
    Intent,
    RemoteBatch,
    RemoteFile,
    SentLines,
    Sighting,
    by_request,
    calls,
    direct,
    inline_rows,
    lenient,
    sent_line,
)
from orchestrator.backends.anthropic import inline
from orchestrator.backends.anthropic.messages import translate
from orchestrator.backends.anthropic.read import (
    ALL_REFUSED,
    RESULTS,
    UNREADABLE,
    all_refused,
    clock_skew,
    code_of,
    decode_row,
    may_be_of,
    meaning,
    read_result,
    remote_batch,
    sent_row,
)
from orchestrator.backends.anthropic.results import completion
from orchestrator.backends.files import keep
from orchestrator.backends.listing import FURTHEST_OFF, PAGE, ListAnswer, ListedBatches
from orchestrator.backends.result_lines import lines
from orchestrator.core import batch_api
from orchestrator.core.counts import number_of
from orchestrator.core.errors import BackendRefused, NotSent, OrchError, Uncertain
from orchestrator.core.refused_fields import ProviderError
from orchestrator.policy.preflight import DirectAnswer, body_of

log = logging.getLogger(__name__)
UNDECIDED = "matches in rows and time; whether it is ours will show when it has ended"
UNTAGGED = "matches in rows and time; whether it is ours will show when its results can be read"
UNREAD = "the list shows a batch that cannot be read, such as one without an id; it may be the one that was made"
GONE = (404, 410)
_MESSAGES = "/v1/messages"
_BATCHES = f"{_MESSAGES}/batches"
_JSON: Any = {"headers": {"Content-Type": "application/json"}}


class AnthropicBatches(ListedBatches):
    """The verbs of a Batch API on an `anthropic` client. `max_tokens` is for rows without one.

    A row that cannot be translated is not sent: the error file has it, with the field's name. If no row can be
    translated, no batch is created: its id is `refused:` and the shard's, and it is completed from the start.
    """

    appear_seconds: float = 600.0

    def __init__(
        self,
        name: str,
        client: anthropic.Anthropic,
        max_tokens: int,
        silent: float | None = None,
        root: Path = inline_rows.ANYWHERE,
    ) -> None:
        """Use a client; `silent` is the longest silence of a transfer in seconds, None as for other calls.

        `root` is the folder of input files that may be moved.
        """
        self._name = name
        self._root = root
        # A repeated create is paid twice, and a client that waits by itself blocks other calls.
        self._client = client.with_options(max_retries=0)
        self._files = self._client if silent is None else self._client.with_options(timeout=calls.timeouts(silent))
        self._patient = self._client.with_options(timeout=calls.timeouts(calls.ASK_SECONDS))
        self._max_tokens = max_tokens

    def close(self) -> None:
        self._client.close()

    @property
    def _key(self) -> str:
        return str(self._client.api_key)

    def account(self) -> str:
        return f"key:{sha256(self._key.encode()).hexdigest()[:12]}"

    def upload(self, path: Path, name: str) -> str:
        """Translate an input file into a file beside it. Raises JobFilesError, or InputError for an invalid line."""
        left_out = inline.translate_file(path, name.removesuffix(".jsonl"), self._max_tokens)
        if left_out:
            fields = ", ".join(f"{field} ({number_of(rows, 'row')})" for field, rows in sorted(left_out.items()))
            log.warning("%s: %s: left out, as Anthropic has no counterpart: %s", self._name, name, fields)
        return inline_rows.file_id(path, self._root)

    def create(self, order: BatchOrder) -> RemoteBatch:
        path = inline_rows.path_of(order.input_file_id, self._root)
        if inline.refused_rows(path) == order.rows:
            return all_refused(order.shard, order.rows)
        with (
            inline_rows.opened(inline.requests(path)) as content,
            self._translated("create a batch", calls.transfer(), creating=True),
        ):
            # Not `batches.create`: it would hold every request in memory; a file goes out in pieces.
            answer = self._files.post(_BATCHES, content=content, cast_to=httpx2.Response)
            return remote_batch(lenient.decode(answer.content))

    def ask(self, endpoint: str, line: bytes) -> DirectAnswer:
        params, _ = translate(body_of(line), self._max_tokens)
        try:
            with self._translated("ask one row", calls.control(calls.ASK_SECONDS), creating=True):
                try:
                    answer = self._patient.post(
                        _MESSAGES, content=msgspec.json.encode(params), cast_to=httpx2.Response, options=_JSON
                    )
                except anthropic.APIStatusError as error:
                    told = ProviderError(
                        error.status_code, code_of(error), error.type, message=error.api_message or error.message
                    )
                    return direct.refused(told, self._key)
                message = lenient.mapping(lenient.decode(answer.content))
                return direct.answered(json.dumps(completion(message)).encode(), self._key)
        except OrchError as error:
            return direct.unanswered(error, may_be_billed=not isinstance(error, NotSent))

    def lists_model(self, model: str) -> bool | None:
        try:
            with self._translated(f"look {model} up"):
                self._client.models.retrieve(model)
        except BackendRefused as refusal:
            return False if refusal.status in GONE else None
        except OrchError:
            return None
        return True

    def find(self, intent: Intent) -> Sighting:
        rows = intent.rows - inline.refused_rows(intent.input_path)
        if rows == 0:
            return Sighting(all_refused(intent.shard, intent.rows))
        listed, undecided = self._read_list(intent.since)
        skew = clock_skew(listed, intent)
        found = []
        for batch in listed:
            if batch.rows not in (None, rows) or intent.known(batch.id) is not None:
                continue
            if not may_be_of(batch, intent.since, skew):
                continue
            if not batch.status.is_final:
                undecided = f"batch {batch.id} {UNDECIDED}"
            elif (tag := self._tag_of(batch)) == inline_rows.shard_tag(intent.shard):
                found.append(batch)
            elif tag is None:
                undecided = f"batch {batch.id} {UNTAGGED}"
        if found:
            return Sighting(found[0], doubles=tuple(found[1:]))
        return Sighting(undecided=undecided, is_blank=not listed)

    def _read_list(self, since: datetime) -> tuple[list[RemoteBatch], str | None]:
        """Return the account's batches of about that time, and why others may be missing."""
        unread = list[object]()
        found, undecided, _ = self._search(lambda _: True, since, unread, is_one=False)
        is_unread = any(_may_be_since(entry, since - FURTHEST_OFF) for entry in unread)
        return found, undecided or (UNREAD if is_unread else None)

    def tagged(self, since: datetime) -> list[RemoteBatch] | None:
        """Return None: only a batch's results carry its tag."""
        return None

    def input_ids(self, batch: RemoteBatch) -> frozenset[str] | None:
        """Return None: there are no input files."""
        return None

    def untold(self, since: datetime) -> list[RemoteBatch]:
        found, undecided = self._read_list(since)
        if undecided is not None:
            raise Uncertain(f"{self._name}: {undecided}")
        return found

    def sent_line(self, line: bytes) -> tuple[str, bytes]:
        return sent_line(line)

    def input_lines(self, batch: RemoteBatch) -> SentLines | None:
        """See `Backend`. The ids of its results have the digests."""
        try:
            with self._translated(f"read {batch.id}"), self._results(batch.id) as found:
                return by_request(filter(None, map(sent_row, found)))
        except BackendRefused as refusal:
            if refusal.status not in GONE:
                raise
            return None

    def listed(self, batch_id: str, since: datetime) -> Sighting:
        found, undecided = self._read_list(since)
        batch = next((one for one in found if one.id == batch_id), None)
        return Sighting(undecided=undecided) if batch is None else Sighting(batch)

    def _tag_of(self, batch: RemoteBatch) -> str | None:
        """Return the tag of the first result row with one; "" if no row has one, None if no row is readable."""
        if batch.problems:
            return ""
        untagged = None
        with self._translated(f"read {batch.id}"), self._results(batch.id) as found:
            for line in found:
                with suppress(*batch_api.JSON_ERRORS):
                    if (tag := inline_rows.tag_of(decode_row(line).custom_id)) is not None:
                        return tag
                    untagged = ""
        return untagged

    def _batch_pages(self, unread: list[object] | None = None) -> Iterator[list[RemoteBatch]]:
        return self._pages("list batches", self._page, remote_batch, unread)

    def _page(self, after: str | None) -> ListAnswer:
        listed = self._client.messages.batches.with_raw_response.list(limit=PAGE, after_id=after or anthropic.omit)
        return lenient.decode(listed.http_response.content), None

    def _identity(self, one: RemoteBatch | RemoteFile) -> Hashable:
        return one.id, one.created_at

    def files(self) -> Iterator[RemoteFile]:
        """Yield nothing: Anthropic has no files."""
        return iter(())

    def retrieve(self, batch_id: str) -> RemoteBatch | None:
        if batch_id.startswith(ALL_REFUSED):
            return all_refused(batch_id.removeprefix(ALL_REFUSED))
        with self._translated(f"retrieve {batch_id}"):
            try:
                answer = self._client.messages.batches.with_raw_response.retrieve(batch_id)
            except anthropic.APIStatusError as error:
                # A gateway's 404 is about an address.
                if error.status_code not in GONE or error.type is None:
                    raise
                return None
            return remote_batch(lenient.decode(answer.http_response.content), batch_id)

    def cancel(self, batch_id: str) -> None:
        if batch_id.startswith(ALL_REFUSED):
            return
        with self._translated(f"cancel {batch_id}"):
            try:
                self._client.messages.batches.with_raw_response.cancel(batch_id)
            except (anthropic.BadRequestError, anthropic.ConflictError, anthropic.NotFoundError):
                now = self.retrieve(batch_id)
                if now is None or not now.status.is_final:
                    raise

    def download(self, file_id: str, path: Path, input_path: Path) -> Download:
        """Raises OSError if `path` cannot be written, and JobFilesError if the sent input is missing."""
        batch_id, _, kind = file_id.removeprefix(RESULTS).rpartition(":")
        own = inline.refusals(input_path) if kind != "output" else iter(())
        if kind == "refused":
            return keep((), lambda _: (line.rstrip(b"\n") for line in own), path, ())
        with (
            inline_rows.opened(input_path) as source,
            self._translated(f"download {file_id}", calls.transfer()),
            self._results(batch_id, tidy=False) as chunks,
        ):
            ids = inline_rows.Ids(source, inline.tag_sent(input_path))

            def told(came: Iterable[bytes]) -> Iterator[bytes]:
                yield from (line.rstrip(b"\n") for line in own)
                for line in lines(came):
                    found, row = read_result(line, ids)
                    if found == kind:
                        yield row

            return keep(chunks, told, path, (httpx2.HTTPError, ValueError))

    def size_of(self, file_id: str) -> int | None:
        """Return None: the length of results is unknown."""

    @contextmanager
    def _results(self, batch_id: str, *, tidy: bool = True) -> Iterator[Iterator[bytes]]:
        # Not `batches.results`: it fetches the batch first, follows any address in it, and holds each row as objects.
        address = f"{_BATCHES}/{batch_id}/results"
        with self._files.get(address, cast_to=bytes, stream=True, stream_cls=anthropic.Stream[bytes]) as stream:
            chunks = stream.response.iter_bytes()
            yield lines(chunks) if tidy else chunks

    def partial(self, batch_id: str, kind: str, path: Path) -> bool:
        """Return False: results are readable only once the batch has ended."""
        return False

    def read_on(self, batch_id: str, kind: str, first: int, most: int) -> bytes | None:
        """Return None: results are readable only once the batch has ended."""
        return None

    def forget_file(self, file_id: str) -> None:
        """Delete the files of `upload`; results expire 29 days after the batch was created."""
        inline.forget(file_id, self._root)

    def check(self, models: Sequence[str]) -> Iterator[DoctorCheck]:
        try:
            next(self._batch_pages(), None)
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
            # Not `from error`: the client's own texts may contain the key, and a log shows causes.
            raise meaning(error, message, creating=creating, secret=self._key) from None


def _may_be_since(entry: object, earliest: datetime) -> bool:
    """True if an unreadable entry may be a batch made since then."""
    if not (told := lenient.mapping(entry)):
        return False
    created_at = lenient.time(told.get("created_at"))
    return created_at is None or created_at >= earliest
