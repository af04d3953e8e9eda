"""Batch operations at a provider without files and metadata. A create holds the requests; row ids identify a batch.

A row's id contains a tag of its shard and the digest of its request (`inline_rows`). So the results of an ended batch
reveal its shard. A running batch shows only its creation time and number of rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Protocol

from orchestrator.backends import (
    BatchOrder,
    Intent,
    RemoteBatch,
    RemoteFile,
    SentLines,
    Sighting,
    by_request,
    call_limits,
    inline_rows,
    lenient,
)
from orchestrator.backends.api import ApiAnswer, BatchAPI
from orchestrator.backends.batch_lists import FURTHEST_OFF
from orchestrator.backends.batches import GONE
from orchestrator.backends.chat_rows import Translate
from orchestrator.backends.lenient_batches import remote_batch
from orchestrator.backends.profiles import Profile
from orchestrator.backends.result_lines import lines
from orchestrator.backends.translated import NOTHING_SENT, TranslatedBatches, all_refused
from orchestrator.core.errors import BackendError, BackendRefused, Uncertain

UNDECIDED = "matches in rows and time; its results will show if it is ours"
UNTAGGED = "matches in rows and time, but its results cannot be read yet: they will show if it is ours"
UNREAD = "the list shows a batch that cannot be read, such as one without an id; it may be the one that was made"
FIND_SLACK = timedelta(minutes=10)
LATEST = timedelta(hours=1)
"""Longest time after an intent in which a provider may still carry out its unanswered create."""


class InlineAPI(BatchAPI, Protocol):
    def submit(self, order: BatchOrder, rows: BinaryIO) -> ApiAnswer:
        """Create a batch from a file of rows, separated by commas."""


class InlineBatches(TranslatedBatches):
    """Batch operations at a provider whose creates hold the requests.

    A row holds its request under `field`. `root` is the folder of input files; users may move it.
    """

    _api: InlineAPI

    def __init__(
        self,
        name: str,
        api: InlineAPI,
        profile: Profile,
        translate: Translate,
        field: str,
        root: Path = inline_rows.ANYWHERE,
    ) -> None:
        super().__init__(name, api, profile, translate)
        self._field, self._root = field, root

    def upload(self, path: Path, name: str) -> str:
        """Translate an input file into files beside it, and return the file's id.

        Raises JobFilesError, or InputError for an invalid line.
        """
        return self._upload(path, name, self._translate)

    def _upload(self, path: Path, name: str, translate: Translate) -> str:
        is_sent = inline_rows.write_rows(path, name.removesuffix(".jsonl"), self._field, translate)
        return inline_rows.file_id(path, self._root) if is_sent else f"{NOTHING_SENT}{name}"

    def create(self, order: BatchOrder) -> RemoteBatch:
        if order.input_file_id.startswith(NOTHING_SENT):
            return super().create(order)
        path = inline_rows.path_of(order.input_file_id, self._root)
        if not inline_rows.rows_path(path).exists():  # earlier versions wrote different files
            inline_rows.write_rows(path, order.shard, self._field, self._translate)
        with (
            inline_rows.opened(inline_rows.rows_path(path)) as rows,
            self._translated("create a batch", call_limits.transfer(), creating=True),
        ):
            return remote_batch(self._api.submit(order, rows).json())

    def find(self, intent: Intent) -> Sighting:
        """Search by creation time and number of rows, then confirm a batch by the ids in its results."""
        rows = intent.rows - sum(1 for _ in inline_rows.unsent_lines(intent.input_path))
        if rows == 0:
            return Sighting(all_refused(intent.shard, intent.rows))
        listed, undecided = self._read_list(intent.since)
        skew, found = _clock_skew(listed, intent), list[RemoteBatch]()
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
        """Return the account's batches since about `since`, and the reason why some may be missing."""
        unread = list[object]()
        found, undecided, _ = self._search(lambda _: True, since, unread, is_one=False)
        is_unread = any(_may_be_since(entry, since - FURTHEST_OFF) for entry in unread)
        return found, undecided or (UNREAD if is_unread else None)

    def _tag_of(self, batch: RemoteBatch) -> str | None:
        """Return the first tag among the results; "" if no result has a tag, None if no result is readable."""
        if batch.output_file_id is None:
            return ""
        untagged = None
        try:
            with self._translated(f"read {batch.id}"), self._api.content(batch.output_file_id) as chunks:
                for line in lines(chunks):
                    if (row := lenient.decode_object(line)) is None:
                        continue
                    if (tag := inline_rows.tag_of(row.get("custom_id"))) is not None:
                        return tag
                    untagged = ""
        except BackendRefused as refusal:
            if refusal.status not in GONE:
                raise
        except BackendError:
            return None
        return untagged

    def _identity(self, one: RemoteBatch | RemoteFile) -> Hashable:
        return one.id, one.created_at

    def tagged(self, since: datetime) -> list[RemoteBatch] | None:
        """Return None, because only a batch's results show its tag."""
        return None

    def batches_since(self, since: datetime) -> list[RemoteBatch]:
        found, undecided = self._read_list(since)
        if undecided is not None:
            raise Uncertain(f"{self._name}: {undecided}")
        return found

    def listed(self, batch_id: str, since: datetime) -> Sighting:
        found, undecided = self._read_list(since)
        batch = next((one for one in found if one.id == batch_id), None)
        return Sighting(undecided=undecided) if batch is None else Sighting(batch)

    def input_ids(self, batch: RemoteBatch) -> frozenset[str] | None:
        """Return None, because the provider has no input files."""
        return None

    def input_lines(self, batch: RemoteBatch) -> SentLines | None:
        """Return the provider's row ids by the request digest that each id contains, read from the batch's
        results.
        """
        ids = None if batch.output_file_id is None else self._ids_in(batch.output_file_id)
        if ids is None:
            return None
        return by_request((one, digest) for one in ids if (digest := inline_rows.digest_of(one)) is not None)

    def files(self) -> Iterator[RemoteFile]:
        """Yield nothing, because the provider has no files."""
        return iter(())

    def size_of(self, file_id: str) -> int | None:
        """Return None, because the size of the results is unknown."""

    def forget_file(self, file_id: str) -> None:
        """Delete the local files that `upload` wrote. The results stay, because deleting them would delete the
        batch.
        """
        if file_id.startswith(inline_rows.INLINE):
            inline_rows.forget(inline_rows.path_of(file_id, self._root))

    def _read_lines(self, chunks: Iterable[bytes], input_path: Path) -> Iterator[bytes]:
        with inline_rows.opened(input_path) as source:
            ids = inline_rows.Ids(source, inline_rows.shard_tag(inline_rows.shard_of(input_path)))
            yield from map(ids.renamed, super()._read_lines(chunks, input_path))

    def _beside(self, input_path: Path) -> Iterator[bytes]:
        return inline_rows.unsent_lines(input_path)


def _clock_skew(listed: Sequence[RemoteBatch], intent: Intent) -> timedelta | None:
    """Return how far the provider's clock is ahead of ours, judged by our batches in its list.

    Returns None if the list has none of our batches.
    """
    ahead = sorted(
        batch.created_at - asked
        for batch in listed
        if batch.created_at is not None and (asked := intent.known(batch.id)) is not None
    )
    return ahead[len(ahead) // 2] if ahead else None


def _may_be_of(batch: RemoteBatch, since: datetime, skew: timedelta | None) -> bool:
    if batch.created_at is None:
        return True
    off = batch.created_at - since
    if skew is None:
        return abs(off) <= FURTHEST_OFF
    return skew - FIND_SLACK <= off <= skew + LATEST


def _may_be_since(entry: object, earliest: datetime) -> bool:
    if not (told := lenient.mapping(entry)):
        return False
    created_at = lenient.time(told.get("created_at"))
    return created_at is None or created_at >= earliest
