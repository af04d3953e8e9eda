"""A provider's Batch API behind a home's replica: irreversible calls wait until the replica has their records.

A batch is created, or a row asked, only once the intent is replicated. A successor then does not pay a second time. A
file is deleted at a provider only once its results are replicated. A batch is cancelled only once the reason is
replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from orchestrator.backends import (
    Backend,
    BatchOrder,
    DoctorCheck,
    Download,
    Intent,
    RemoteBatch,
    RemoteFile,
    SentLines,
    Sighting,
)
from orchestrator.core.errors import BackendError, NotSent, StorageError
from orchestrator.policy.preflight import DirectAnswer


class _Replicated:
    """A Batch API whose irreversible calls first wait for `settled`.

    `settled` returns once all records are replicated and this daemon is active. Each method of `Backend` is written
    out here: a new method is a type error until somebody decides whether it waits.
    """

    def __init__(self, api: Backend, settled: Callable[[], None]) -> None:
        self._api = api
        self._settled = settled
        self.appear_seconds = api.appear_seconds

    def upload(self, path: Path, name: str) -> str:
        """See `Backend`. Does not wait: an upload is free, and its file can be found again by name."""
        return self._api.upload(path, name)

    def create(self, order: BatchOrder) -> RemoteBatch:
        try:
            self._settled()
        except StorageError as error:
            raise NotSent(f"not sent: {error.message}") from error
        return self._api.create(order)

    def ask(self, endpoint: str, line: bytes) -> DirectAnswer:
        try:
            self._settled()
        except StorageError as error:
            raise NotSent(f"not sent: {error.message}") from error
        return self._api.ask(endpoint, line)

    def cancel(self, batch_id: str) -> None:
        self._require("cancelled")
        self._api.cancel(batch_id)

    def forget_file(self, file_id: str) -> None:
        self._require("deleted")
        self._api.forget_file(file_id)

    # Reading needs no fence.

    def account(self) -> str:
        return self._api.account()

    def lists_model(self, model: str) -> bool | None:
        return self._api.lists_model(model)

    def find(self, intent: Intent) -> Sighting:
        return self._api.find(intent)

    def retrieve(self, batch_id: str) -> RemoteBatch | None:
        return self._api.retrieve(batch_id)

    def tagged(self, since: datetime) -> list[RemoteBatch] | None:
        return self._api.tagged(since)

    def input_ids(self, batch: RemoteBatch) -> frozenset[str] | None:
        return self._api.input_ids(batch)

    def batches_since(self, since: datetime) -> list[RemoteBatch]:
        return self._api.batches_since(since)

    def sent_line(self, line: bytes) -> tuple[str, bytes]:
        return self._api.sent_line(line)

    def input_lines(self, batch: RemoteBatch) -> SentLines | None:
        return self._api.input_lines(batch)

    def listed(self, batch_id: str, since: datetime) -> Sighting:
        return self._api.listed(batch_id, since)

    def download(self, file_id: str, path: Path, input_path: Path) -> Download:
        return self._api.download(file_id, path, input_path)

    def size_of(self, file_id: str) -> int | None:
        return self._api.size_of(file_id)

    def partial(self, batch_id: str, kind: str, path: Path) -> bool:
        return self._api.partial(batch_id, kind, path)

    def read_on(self, batch_id: str, kind: str, first: int, most: int) -> bytes | None:
        return self._api.read_on(batch_id, kind, first, most)

    def batches(self) -> Iterator[RemoteBatch]:
        return self._api.batches()

    def files(self) -> Iterator[RemoteFile]:
        return self._api.files()

    def check(self, models: Sequence[str]) -> Iterator[DoctorCheck]:
        return self._api.check(models)

    def close(self) -> None:
        self._api.close()

    def _require(self, what: str) -> None:
        try:
            self._settled()
        except StorageError as error:
            raise BackendError(f"not {what}: {error.message}") from error


def behind_replica(api: Backend, settled: Callable[[], None]) -> Backend:
    """Wrap a hosted Batch API for the daemon of a home with a replica."""
    return _Replicated(api, settled)
