"""Anthropic's Message Batches behind the verbs of a Batch API.

Anthropic has no files: a batch's requests are inline, so uploading an input file means translating it into a local
file. Batches carry no metadata either: row ids identify them, as a tag of the shard, the line's number and digest.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

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
    inline_rows,
    lenient,
)
from orchestrator.backends.anthropic import inline
from orchestrator.backends.anthropic.api import RESULTS, AnthropicAPI, is_its_own, of_answer
from orchestrator.backends.anthropic.messages import translate
from orchestrator.backends.anthropic.results import decode_row, read_result, sent_row
from orchestrator.backends.api import ApiRefusal
from orchestrator.backends.batches import GONE, InlineBatches
from orchestrator.backends.files import keep
from orchestrator.backends.listing import FURTHEST_OFF
from orchestrator.backends.profiles import Profile
from orchestrator.backends.remote import remote_batch
from orchestrator.backends.result_lines import lines
from orchestrator.core import batch_api
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.counts import number_of
from orchestrator.core.errors import BackendRefused, OrchError, Uncertain
from orchestrator.policy.preflight import DirectAnswer, body_of

log = logging.getLogger(__name__)
UNDECIDED = "matches in rows and time; its results will show if it is ours"
UNTAGGED = "matches in rows and time, but its results cannot be read yet: they will show if it is ours"
UNREAD = "the list shows a batch that cannot be read, such as one without an id; it may be the one that was made"
ALL_REFUSED = "refused:"
FIND_SLACK = timedelta(minutes=10)
LATEST = timedelta(hours=1)
"""Time after the intent in which an unanswered create may still be carried out."""


class AnthropicBatches(InlineBatches):
    """The verbs on Anthropic's calls. `max_tokens` is for rows without one.

    A row that cannot be translated is not sent: the error file has it, with the field's name. If no row can be
    translated, no batch is created: its id is `refused:` and the shard's, and it is completed from the start.
    """

    _api: AnthropicAPI
    _of_answer = staticmethod(of_answer)

    def __init__(
        self, name: str, api: AnthropicAPI, profile: Profile, max_tokens: int, root: Path = inline_rows.ANYWHERE
    ) -> None:
        super().__init__(name, api, profile, root)
        self._max_tokens = max_tokens

    def account(self) -> str:
        return f"key:{sha256(self._api.api_key.encode()).hexdigest()[:12]}"

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
            return _all_refused(order.shard, order.rows)
        with (
            inline_rows.opened(inline.requests(path)) as content,
            self._translated("create a batch", calls.transfer(), creating=True),
        ):
            return remote_batch(self._api.submit(content).json())

    def ask(self, endpoint: str, line: bytes) -> DirectAnswer:
        params, _ = translate(body_of(line), self._max_tokens)
        return self._ask(endpoint, msgspec.json.encode(params))

    def lists_model(self, model: str) -> bool | None:
        try:
            with self._translated(f"look {model} up"):
                self._api.model(model)
        except BackendRefused as refusal:
            return False if refusal.status in GONE else None
        except OrchError:
            return None
        return True

    def find(self, intent: Intent) -> Sighting:
        rows = intent.rows - inline.refused_rows(intent.input_path)
        if rows == 0:
            return Sighting(_all_refused(intent.shard, intent.rows))
        listed, undecided = self._read_list(intent.since)
        skew = _clock_skew(listed, intent)
        found = []
        for batch in listed:
            if batch.rows not in (None, rows) or intent.known(batch.id) is not None:
                continue
            if not _may_be_of(batch, intent.since, skew):
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

    def untold(self, since: datetime) -> list[RemoteBatch]:
        found, undecided = self._read_list(since)
        if undecided is not None:
            raise Uncertain(f"{self._name}: {undecided}")
        return found

    def input_lines(self, batch: RemoteBatch) -> SentLines | None:
        """See `Backend`. The ids of its results have the digests."""
        try:
            with self._translated(f"read {batch.id}"), self._api.content(batch.id) as chunks:
                return by_request(filter(None, map(sent_row, lines(chunks))))
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
        with self._translated(f"read {batch.id}"), self._api.content(batch.id) as chunks:
            for line in lines(chunks):
                with suppress(*batch_api.JSON_ERRORS):
                    if (tag := inline_rows.tag_of(decode_row(line).custom_id)) is not None:
                        return tag
                    untagged = ""
        return untagged

    def _identity(self, one: RemoteBatch | RemoteFile) -> Hashable:
        return one.id, one.created_at

    def retrieve(self, batch_id: str) -> RemoteBatch | None:
        if batch_id.startswith(ALL_REFUSED):
            return _all_refused(batch_id.removeprefix(ALL_REFUSED))
        return super().retrieve(batch_id)

    def _is_its_own(self, refusal: ApiRefusal) -> bool:
        return is_its_own(refusal)

    def cancel(self, batch_id: str) -> None:
        if batch_id.startswith(ALL_REFUSED):
            return
        with self._translated(f"cancel {batch_id}"):
            try:
                self._api.cancel(batch_id)
            except ApiRefusal as refusal:
                now = self.retrieve(batch_id) if refusal.status in (400, 404, 409) else None
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
            self._api.content(batch_id) as chunks,
        ):
            ids = inline_rows.Ids(source, inline.tag_sent(input_path))

            def told(came: Iterable[bytes]) -> Iterator[bytes]:
                yield from (line.rstrip(b"\n") for line in own)
                for line in lines(came):
                    found, row = read_result(line, ids)
                    if found == kind:
                        yield row

            return keep(chunks, told, path, (httpx2.HTTPError, ValueError))

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
                    found = f"is there: {lenient.mapping(self._api.model(model).json()).get('display_name')}"
                yield DoctorCheck(f"model {model}", True, found)
            except OrchError as error:
                yield DoctorCheck(f"model {model}", False, str(error))


def _all_refused(shard: str, rows: int = 0) -> RemoteBatch:
    """Return a batch without sent rows. Only its creation knows their number."""
    batch_id = f"{ALL_REFUSED}{shard}"
    return RemoteBatch(
        batch_id,
        BatchStatus.COMPLETED,
        failed=rows,
        is_counted=True,
        error_file_id=f"{RESULTS}{batch_id}:refused",
        shard=shard,
    )


def _clock_skew(listed: Sequence[RemoteBatch], intent: Intent) -> timedelta | None:
    """Return how far the provider's clock is ahead, judged by our batches in its list; None without any."""
    ahead = sorted(
        batch.created_at - asked
        for batch in listed
        if batch.created_at is not None and (asked := intent.known(batch.id)) is not None
    )
    return ahead[len(ahead) // 2] if ahead else None


def _may_be_of(batch: RemoteBatch, since: datetime, skew: timedelta | None) -> bool:
    """True if a batch may result from an intent of that time."""
    if batch.created_at is None:
        return True
    off = batch.created_at - since
    if skew is None:
        return abs(off) <= FURTHEST_OFF
    return skew - FIND_SLACK <= off <= skew + LATEST


def _may_be_since(entry: object, earliest: datetime) -> bool:
    """True if an unreadable entry may be a batch made since then."""
    if not (told := lenient.mapping(entry)):
        return False
    created_at = lenient.time(told.get("created_at"))
    return created_at is None or created_at >= earliest
